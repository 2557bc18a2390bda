"""Time of a scrape of a ledger's metrics, with many gates and with many partitions."""

import time
from collections.abc import Iterator
from typing import Final

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.metrics.scrape import MetricsMemory, exposition

GATES: Final = 1_000
PARTITIONS: Final = 10_000
BATCHES: Final = 5
PROMISED: Final = AtMost(50)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Every gate has had a batch since the scrape before, and lags."""
    for gates, partitions in ((GATES, 1), (1, PARTITIONS)):
        name = f"{gates} gates" if partitions == 1 else f"{partitions} partitions"
        with Ledger.open(stage.fresh_ledger()) as ledger:
            for gate in range(gates):
                ledger.gates.declare(
                    f"gate-{gate}", interval_ms=1_000, source="kafka", estimator="pid"
                )
            memory = MetricsMemory()
            run = 0
            for run in range(BATCHES):
                _one_batch_each(ledger, gates, partitions, run)
            times_ms, text = [], b""
            for again in range(max(scale.repetitions // 20, 3)):
                if again:
                    _one_batch_each(ledger, gates, partitions, run + again)
                began_s = time.perf_counter()
                text = exposition(ledger, memory=memory, per_partition=partitions > 1)
                times_ms.append((time.perf_counter() - began_s) * 1000)
        yield Figure(
            name,
            "ms",
            Spread.of(times_ms[1:]),
            target=PROMISED,
            details={"first_ms": times_ms[0], "bytes": len(text)},
        )


def _one_batch_each(ledger: Ledger, gates: int, partitions: int, run: int) -> None:
    start = 10 * run
    ranges = tuple(
        PlannedRange(OffsetRange("orders", number, start, start + 10), start + 30)
        for number in range(partitions)
    )
    for gate in range(gates):
        batch = PlannedBatch(
            f"gate-{gate}", "run", ranges, "rate", "localhost:9092", lag=30 * partitions
        )
        ledger.batches.succeed(ledger.batches.begin(batch).batch_key)
