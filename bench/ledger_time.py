"""Cost of the ledger to a batch, and cost of its queries, with a short and a long history."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from bench.figures import AtMost, Figure
from bench.history import GATES, INTERVAL_MS, TOPIC_ID, fill, planned
from bench.pairs import Spread, in_turn
from bench.postgresql import fresh_schema
from bench.scale import Scale
from bench.stage import Stage
from bench.table import number
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, RateSample

PARTITIONS: Final = (4, 100)
GATE: Final = GATES[0]
OWNER: Final = "bench"
LEASE_MS: Final = 60_000
PROMISED: Final = {"SQLite": AtMost(5), "PostgreSQL": AtMost(10)}

QUESTIONS: Final[dict[str, Callable[[Ledger], object]]] = {
    "failed": lambda ledger: ledger.batches.failed(limit=10),
    "batches": lambda ledger: ledger.batches.newest(limit=10),
    "last_begun": lambda ledger: ledger.gates.last_begun(GATE),
    "open_batch": lambda ledger: ledger.batches.open_batch(GATE),
    "settle": lambda ledger: ledger.batches.resolve_abandoned(GATE, but=None, unowned_before_ms=0),
    "dead_letters": lambda ledger: ledger.dead_letters.oldest(limit=10),
    "processed_until": lambda ledger: ledger.history.processed_until(TOPIC_ID, range(100)),
}


@dataclass(slots=True)
class _Side:
    """A ledger with a history, opened twice, as in life: by the planner and by the driver."""

    batches: int
    """In its history."""
    newest_ms: int
    planner: Ledger
    driver: Ledger
    run: int = 0
    calls_ms: dict[str, list[float]] = field(default_factory=dict)
    """Time that each kind of call took, batch by batch (ms)."""

    def one_batch_ms(self, partitions: int) -> float:
        """Run a batch that follows the one before."""
        self.run += 1
        batch = planned(GATE, f"{partitions} partitions", self.run, partitions)
        calls_ms = _calls_ms(self, batch, self.run)
        for call, took_ms in calls_ms.items():
            self.calls_ms.setdefault(call, []).append(took_ms)
        return sum(calls_ms.values())


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """On SQLite and, where there is one, on PostgreSQL."""
    with ExitStack() as stack:
        yield from _measured("SQLite", [stage.fresh_ledger() for _ in scale.ledger_batches], scale)
        if stage.postgresql is not None:
            urls = [
                stack.enter_context(fresh_schema(stage.postgresql)) for _ in scale.ledger_batches
            ]
            yield from _measured("PostgreSQL", urls, scale)


def _measured(database: str, urls: list[str], scale: Scale) -> Iterator[Figure]:
    with ExitStack() as stack:
        sides = {}
        for url, batches in zip(urls, scale.ledger_batches, strict=True):
            newest_ms = time.time_ns() // 1_000_000
            fill(url, batches, newest_ms)
            planner, driver = (stack.enter_context(Ledger.open(url)) for _ in range(2))
            side = _Side(batches, newest_ms, planner, driver)
            sides[f"{database}, {number(batches)} batches"] = side
        for partitions in PARTITIONS:
            yield from _one_batch(sides, partitions, scale, PROMISED[database])
        for question, ask in QUESTIONS.items():
            yield from _one_question(sides, question, ask, scale)
        yield from _pruned(sides, min(scale.ledger_batches) // 2)
        yield from _covered(sides)


def _one_batch(
    sides: Mapping[str, _Side], partitions: int, scale: Scale, promised: AtMost
) -> Iterator[Figure]:
    for side in sides.values():
        side.calls_ms.clear()
    runs = {name: partial(side.one_batch_ms, partitions) for name, side in sides.items()}
    for name, times_ms in in_turn(runs, scale.repetitions, warm_ups=0).items():
        calls_ms = {call: median(times) for call, times in sides[name].calls_ms.items()}
        yield Figure(
            f"{name}: {partitions} partitions",
            "ms",
            Spread.of(times_ms),
            target=promised,
            details={"calls_ms": calls_ms},
        )


def _one_question(
    sides: Mapping[str, _Side], question: str, ask: Callable[[Ledger], object], scale: Scale
) -> Iterator[Figure]:
    runs = {name: partial(_took_ms, partial(ask, side.driver)) for name, side in sides.items()}
    for name, times_ms in in_turn(runs, scale.repetitions, scale.warm_ups).items():
        yield Figure(f"{name}: {question}", "ms", Spread.of(times_ms))


def _pruned(sides: Mapping[str, _Side], batches: int) -> Iterator[Figure]:
    """As many from each history."""
    for name, side in sides.items():
        oldest_ms = side.newest_ms - side.batches * INTERVAL_MS
        took_ms = _took_ms(partial(side.driver.history.prune, oldest_ms + batches * INTERVAL_MS))
        yield Figure(f"{name}: prune {batches}", "ms", Spread.of([took_ms]))


def _covered(sides: Mapping[str, _Side]) -> Iterator[Figure]:
    """Measure the time for each range, in a read of all ranges."""
    for name, side in sides.items():
        ranges = 0

        def read(ledger: Ledger = side.driver) -> None:
            nonlocal ranges
            ranges = sum(1 for _ in ledger.history.coverage(GATE))

        took_ms = _took_ms(read)
        yield Figure(
            f"{name}: range covered",
            "µs",
            Spread.of([1_000 * took_ms / ranges]),
            details={"ranges": ranges},
        )


def _took_ms(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1_000


def _calls_ms(side: _Side, batch: PlannedBatch, batch_id: int) -> dict[str, float]:
    """Time the calls of a batch in order: the planner's, the handler's, the listener's (ms)."""
    planner, driver, key = side.planner, side.driver, batch.batch_key
    sample = RateSample(
        gate=GATE,
        time_ms=time.time_ns() // 1_000_000,
        rate_per_s=1_000.0 + batch_id,
        records=batch.records,
        processing_delay_ms=900,
        scheduling_delay_ms=0,
        query_batch_id=batch_id,
        batch_key=key,
    )
    calls: dict[str, Callable[[], object]] = {
        "planner: now": lambda: planner.gates.now(GATE),
        "planner: begin": lambda: planner.batches.begin(batch),
        "handler: begun_and_query": lambda: driver.gates.begun_and_query(GATE),
        "handler: attach": lambda: driver.batches.attach(
            key, batch_id, owner=OWNER, lease_ms=LEASE_MS
        ),
        "handler: succeed": lambda: driver.batches.succeed(key, owner=OWNER),
        "listener: report": lambda: driver.rates.report(
            key, batch_id, sample.time_ms - 900, sample
        ),
    }
    return {name: _took_ms(call) for name, call in calls.items()}
