"""Cost of a backfill to the stream beside it: the stream's batch times, with and without."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from pyspark.sql import DataFrame

from bench.figures import AtMost, Figure
from bench.pairs import in_turn, ratios
from bench.scale import Scale
from bench.sides import discard, gated_stream, running, wait_for_batches
from bench.stage import Stage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

INTERVAL_MS: Final = 1_000
CAPACITY_PER_S: Final = 10_000.0
BATCH_ROWS: Final = 5_000  # half of what the handler can do in an interval
FAILING: Final = range(4, 8)
PARTITIONS: Final = 4
VALUE_BYTES: Final = 200
PROMISED: Final = AtMost(1.1)


@dataclass(slots=True)
class Handler:
    """Takes records / capacity seconds for a batch, whatever the machine: it reads, then waits.

    Attributes:
        failing: The live batches that it fails.
        backfilled: The records of backfills so far, by the number of the live batch before.
    """

    failing: range
    newest: int = 0
    backfilled: dict[int, int] = field(default_factory=dict)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Handle one batch."""
        began_s = time.monotonic()
        records = sum(r.count for r in batch.ranges)
        if batch.id is not None:
            self.newest = batch.id
            if batch.id in self.failing:
                raise ValueError("the benchmark has this batch fail")
        discard(df)
        time.sleep(max(0.0, began_s + records / CAPACITY_PER_S - time.monotonic()))
        if batch.id is None:
            self.backfilled[self.newest] = self.backfilled.get(self.newest, 0) + records


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """The time of live batches while a backfill runs, over that of the same batches without one."""
    rows = BATCH_ROWS * (scale.backfill_batches + 2)
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    beside: list[Handler] = []
    times_ms = in_turn(
        {
            "alone": partial(_batch_ms, stage, scale, topic, range(0), []),
            "beside a backfill": partial(_batch_ms, stage, scale, topic, FAILING, beside),
        },
        scale.pairs,
        warm_ups=min(scale.warm_ups, 1),
    )
    yield Figure(
        "a live batch beside a backfill, over one alone",
        "",
        ratios(times_ms["beside a backfill"], to=times_ms["alone"]),
        target=PROMISED,
        details={
            "times_ms": times_ms,
            "backfilled_records": [sum(each.backfilled.values()) for each in beside],
        },
    )


def _batch_ms(
    stage: Stage, scale: Scale, topic: str, failing: range, handlers: list[Handler]
) -> float:
    """The median time of the batches after those that fail."""
    handler = Handler(failing)
    handlers.append(handler)
    gate = Gate("backfill", interval=f"{INTERVAL_MS} ms", ledger=stage.fresh_ledger())
    options = {
        "maxOffsetsPerTrigger": BATCH_ROWS,
        "backpressure.initialRate": 2 * BATCH_ROWS,
        "backpressure.pid.minRate": BATCH_ROWS,
    }
    writer = gate.write(gated_stream(stage, gate, topic, options), handler, on_failure="defer")
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        progress = wait_for_batches(query, scale.backfill_batches)
    after = [p for p in progress if p.batchId >= FAILING.stop]
    return median(p.durationMs["triggerExecution"] for p in after)
