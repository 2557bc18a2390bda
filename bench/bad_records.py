"""Cost of bad records that are found by exception, rejected, or decoded by the source."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import pyarrow as pa
from pyspark.sql import (
    DataFrame,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)

import headrace
from bench.figures import AtLeast, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.sides import gated_stream
from bench.stage import Stage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

ROWS: Final = 500
"""Records of a batch."""

BATCHES: Final = 7
"""The first one, which pays for starting workers and in which a form of record is first seen, does
not count."""

SHARES: Final = (0.001, 0.01, 0.03)
WAYS: Final = ("exception", "reject", "decode")

KEEPS_UP: Final = AtLeast(ROWS)
"""Records a second, at an interval of 1 s, with 1 % of them bad."""


@dataclass(slots=True)
class Handler:
    """Takes its records to the driver, as Arrow, and adds up their amounts.

    Attributes:
        way: What becomes of a record without a number as its amount.
        runs: The handler's calls for each batch, those for its parts included.
    """

    way: str
    runs: list[int] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Handle one batch, or a part of one."""
        if batch.parent_keys:
            self.runs[-1] += 1
        else:
            self.runs.append(1)
        if self.way == "decode":
            df.select("value.amount").toArrow()
            return
        if self.way == "reject":
            amount = F.get_json_object(F.col("value").cast("string"), "$.amount").try_cast("int")
            batch.reject(df.where(amount.isNull()), "its amount is no number")
            df = df.where(amount.isNotNull())
        _ = sum(map(_amount, df.select("value").toArrow().column("value")))


def _amount(value: pa.Scalar) -> int:
    return int(json.loads(value.as_py())["amount"])


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Records a second of a stream in batches of 500, for each share of bad ones and each way."""
    for share in SHARES[: scale.pairs]:
        values = _orders(share)
        topic = stage.topics.filled(1, len(values), f"bad-{share:g}", values)
        for way in WAYS:
            handler = Handler(way)
            rates = _rates(stage, topic, handler)
            yield Figure(
                f"{share:.1%} bad of {ROWS} a batch, {way}",
                "records/s",
                Spread.of(rates),
                target=KEEPS_UP if share == 0.01 else None,
                details={"runs": handler.runs, "median runs": median(handler.runs[1:])},
            )


def _orders(share: float) -> list[bytes]:
    """Orders, of which so many have a text for their amount."""
    dice = random.Random(1)
    records = ROWS * BATCHES
    bad = set(dice.sample(range(records), round(share * records)))
    return [
        json.dumps({"id": number, "amount": "n/a" if number in bad else number % 90}).encode()
        for number in range(records)
    ]


def _rates(stage: Stage, topic: str, handler: Handler) -> list[float]:
    """Records a second of each batch but the first."""
    gate = Gate("bad-records", interval="1 second", ledger=stage.fresh_ledger())
    options: dict[str, object] = {"backpressure.pid.minRate": ROWS, "maxOffsetsPerTrigger": ROWS}
    decoded = {"decode": str(headrace.json("id BIGINT, amount INT"))}
    form = decoded if handler.way == "decode" else {}
    df = gated_stream(stage, gate, topic, options | form)
    writer = gate.write(df, handler, on_failure="isolate", backfill="manual")
    writer = writer.option("checkpointLocation", str(stage.fresh_folder("checkpoint")))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took_ms = [
        each.durationMs["triggerExecution"]
        for each in query.recentProgress
        if each.durationMs.get("addBatch", 0) > 0
    ]
    return [ROWS * 1000 / each for each in took_ms[1:]]
