"""Cost of one record that cannot be processed: the time that isolating its batch takes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from bench import bad_records
from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.sides import gated_stream, running
from bench.stage import Stage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger

ROWS: Final = 7_131
PARTITIONS: Final = 2
VALUE_BYTES: Final = 200
BAD: Final = (0, 1_234)
"""Partition and offset of the record."""

PROMISED: Final = AtMost(4.0)


@dataclass(slots=True)
class Handler:
    """Takes its records to the driver, as Arrow, and refuses one of them.

    Attributes:
        failed_ms: When it refused it for the first time.
        runs: Number of calls since then.
    """

    failed_ms: float = 0.0
    runs: int = 0

    def __call__(self, df: DataFrame, _batch: Batch) -> None:
        """Handle one batch."""
        self.runs += self.failed_ms > 0
        rows = df.select("partition", "offset", "value").toArrow()
        found = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        if BAD in found:
            self.failed_ms = self.failed_ms or time.time() * 1000
            raise ValueError("the benchmark has this record fail")


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """From the batch's failure to its dead letter; everything else is processed by then."""
    topic = stage.topics.random(PARTITIONS, ROWS, VALUE_BYTES)
    for derived in (False, True):
        runs: list[int] = []
        seconds = [_isolate(stage, topic, runs, derived=derived) for _ in range(scale.pairs)]
        yield Figure(
            f"one bad record of {ROWS}{', of a derived stream' * derived}",
            "s",
            Spread.of(seconds),
            target=None if derived else PROMISED,
            details={"runs": runs},
        )
    yield from bad_records.measure(stage, scale)


def _isolate(stage: Stage, topic: str, runs: list[int], *, derived: bool) -> float:
    """Return the time from the record's first failure to its dead letter (s)."""
    url, handler = stage.fresh_ledger(), Handler()
    gate = Gate("isolation", interval="1 second", ledger=url)
    options = {"backpressure.initialRate": ROWS, "maxOffsetsPerTrigger": ROWS}
    df = gated_stream(stage, gate, topic, options)
    df = df.where("length(value) > 0") if derived else df
    writer = gate.write(df, handler, on_failure="isolate", backfill="manual")
    with Ledger.open(url) as ledger, running(writer, stage.fresh_folder("checkpoint")):
        letter = next(filter(None, iter(partial(_letter_ms, ledger), ...)))
    runs.append(handler.runs)
    return (letter - handler.failed_ms) / 1000


def _letter_ms(ledger: Ledger) -> int | None:
    """When the dead letter was kept."""
    time.sleep(0.1)
    found = ledger.dead_letters.oldest("isolation")
    return found[0].created_ms if found else None
