"""What the ledger costs a batch: every call that a gated batch makes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headgate.control import EstimatorSettings, OffsetRange
from headgate.ledger import Ledger, PlannedBatch, PlannedRange, RateSample

PARTITIONS: Final = (4, 100)
RECORDS: Final = 1_000
GATE: Final = "bench"
PROMISED: Final = AtMost(5)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """On SQLite and, where there is one, on PostgreSQL."""
    ledgers = {"SQLite": stage.fresh_ledger()}
    if stage.postgresql is not None:
        ledgers["PostgreSQL"] = stage.postgresql
    for database, url in ledgers.items():
        # Two, as in life: the planner's and the driver's.
        with Ledger.open(url) as planner, Ledger.open(url) as driver:
            planner.declare_gate(
                GATE, interval_ms=1000, source="kafka", estimator=EstimatorSettings().to_text()
            )
            for partitions in PARTITIONS:
                yield _measured(database, planner, driver, partitions, scale)


def _measured(
    database: str, planner: Ledger, driver: Ledger, partitions: int, scale: Scale
) -> Figure:
    watch = _StopWatch()
    run = f"{time.time_ns()} with {partitions}"
    for number in range(scale.repetitions):
        _one_batch(watch, planner, driver, _planned(run, number, partitions), number)
    totals_ms = [sum(calls) for calls in zip(*watch.calls_ms.values(), strict=True)]
    return Figure(
        f"{database}, {partitions} partitions",
        "ms",
        Spread.of(totals_ms),
        target=PROMISED,
        details={"calls_ms": {call: median(times) for call, times in watch.calls_ms.items()}},
    )


class _StopWatch:
    """How long each kind of call took, batch by batch."""

    def __init__(self) -> None:
        self.calls_ms: dict[str, list[float]] = {}

    @contextmanager
    def timing(self, call: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.calls_ms.setdefault(call, []).append((time.perf_counter() - began_s) * 1000)


def _planned(run: str, number: int, partitions: int) -> PlannedBatch:
    start = number * RECORDS
    return PlannedBatch(
        gate=GATE,
        run_id=run,
        ranges=tuple(
            PlannedRange(
                OffsetRange("orders", partition, start, start + RECORDS), start + RECORDS, "rate"
            )
            for partition in range(partitions)
        ),
        reason="rate",
        bootstrap_servers="127.0.0.1:9092",
        lag=RECORDS * partitions,
        rate_per_s=1_000.0,
    )


def _one_batch(
    watch: _StopWatch, planner: Ledger, driver: Ledger, batch: PlannedBatch, number: int
) -> None:
    """In their order: the planner's, the handler's, the listener's."""
    key = batch.schedule_id
    with watch.timing("planner: rates"):
        planner.rates(GATE, limit=1)
    with watch.timing("planner: rate"):
        planner.rate(GATE)
    with watch.timing("planner: begin"):
        planner.begin(batch)
    with watch.timing("handler: last_begun"):
        driver.last_begun(GATE)
    with watch.timing("handler: attach"):
        driver.attach(key, number)
    with watch.timing("handler: ranges"):
        driver.ranges(key)
    with watch.timing("handler: succeed"):
        driver.succeed(key)
    with watch.timing("listener: attach"):
        driver.attach(key, number)
    with watch.timing("listener: succeed"):
        driver.succeed(key)
    sample = RateSample(
        gate=GATE,
        time_ms=time.time_ns() // 1_000_000,
        rate_per_s=1_000.0 + number,
        records=batch.records,
        processing_delay_ms=900,
        scheduling_delay_ms=0,
        query_batch_id=number,
        schedule_id=key,
    )
    with watch.timing("listener: publish_rate"):
        driver.publish_rate(sample)
