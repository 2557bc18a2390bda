"""Whatever happens in between, every record is processed once, or lost, or in a dead batch."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.gate.backfill.runners import (
    LEASE_MS,
    Backfill,
    FakeRunner,
    FixedBudget,
    Offsets,
    PriceError,
    all_of,
    one_that_failed,
)
from tests.gate.ledger.samples import a_batch
from tests.services.examples import examples

from headrace.core.backoff import Backoff
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.gate.backfill.monitor import Monitor
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

PARTITIONS = 3
RECORDS = 10  # of each partition in each batch
OPEN = (Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING)
MOVES = ("claim", "fail", "backfilled", "release", "mark_dead")
Where = tuple[int, int]


class Crash(BaseException):
    """The end of a process, at the point where it is raised."""


class Sink:
    """Keeps what was processed by the batch's key, as an idempotent sink does."""

    def __init__(self) -> None:
        self._rows: dict[str, Offsets] = {}
        self.runs: list[tuple[str, str | None]] = []

    def write(self, batch: BatchRecord, offsets: Offsets) -> None:
        self._rows[batch.batch_key] = offsets

    def records(self) -> Counter[Where]:
        return Counter(place for offsets in self._rows.values() for place in all_of(offsets))


class Changing(FixedBudget):
    """Now more, now less than a batch."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def records(self) -> int:
        return self._chance.choice([0, 3, 12, 100])


def batches_that_failed(ledger: Ledger, count: int) -> set[Where]:
    """Add batches that failed; return the places of the records that they read."""
    for number in range(count):
        start = number * RECORDS
        ranges = [OffsetRange("orders", p, start, start + RECORDS) for p in range(PARTITIONS)]
        one_that_failed(ledger, a_batch(*ranges))
    return {(p, offset) for p in range(PARTITIONS) for offset in range(count * RECORDS)}


def explained(ledger: Ledger) -> dict[Where, Status]:
    """Return each record's status in the ledger; assert that it has each record once."""
    found: list[tuple[Where, Status]] = [
        (place, covered.status)
        for covered in ledger.history.coverage("orders")
        for place in all_of([covered.offsets])
    ]
    assert len(dict(found)) == len(found)
    lost = all_of(loss.offsets for loss in ledger.history.losses("orders"))
    return dict(found) | dict.fromkeys(lost, Status.DEAD)


@contextmanager
def crash(ledger: Ledger, countdown: int, *, after: bool) -> Iterator[None]:
    """End the process before, or right after, its move of that number."""
    left = countdown

    def crashing(move: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Crash
            answer = move(*args, **options)
            if left == 0:
                raise Crash
            return answer

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in MOVES:
            patch.setattr(ledger.batches, name, crashing(getattr(ledger.batches, name)))
        yield


def run_all(ledger: Ledger, runner: FakeRunner, clock: ManualClock, owner: str) -> None:
    """One process, until nothing is left to be claimed, or it crashes."""
    scheduler = Backfill(
        ledger, clock, runner=runner, owner=owner, budget=Changing(owner), max_backfills=1_000
    )
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=1, most_ms=1))
    while True:
        clock.now_ms += 1
        monitor.refresh()
        if not monitor.batches():
            return
        scheduler.run_next(monitor)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledgers")


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    crashes=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=6),
    begin=st.sampled_from([0, 4, 10, 14]),
    seed=st.integers(0, 10**6),
)
def test_after_a_crash_at_any_move_the_next_process_goes_on_where_it_was(
    folder: Path, crashes: list[tuple[int, bool]], begin: int, seed: int
) -> None:
    chance = random.Random(seed)
    clock, sink = ManualClock(), Sink()
    url = f"sqlite:///{folder}/{chance.getrandbits(64)}-{len(list(folder.iterdir()))}.db"

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        if chance.random() < 0.2:
            raise PriceError
        sink.write(batch, offsets)
        end = chance.random()
        if end < 0.1:
            raise PriceError
        if end < 0.2:
            raise Crash

    with Ledger.open(url, clock=clock, database_clock=clock) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        everything = batches_that_failed(ledger, 2)
        runner = FakeRunner(ledger, handler)
        runner.begins[TopicPartition("orders", 0)] = begin
        for number, (countdown, after) in enumerate(crashes):
            with crash(ledger, countdown, after=after), suppress(Crash):
                run_all(ledger, runner, clock, f"process {number}")
            clock.now_ms += LEASE_MS
        while ledger.batches.newest(statuses=OPEN):
            with suppress(Crash):
                run_all(ledger, runner, clock, "another")
            clock.now_ms += LEASE_MS
        gone = {(0, offset) for offset in range(begin)}
        assert explained(ledger) == {
            where: Status.DEAD if where in gone else Status.SUCCESS for where in everything
        }
        assert sink.records() == Counter(everything - gone)


def test_a_handler_that_ends_its_process_leaves_the_batch_to_the_next_one(
    ledger: Ledger, clock: ManualClock
) -> None:
    everything = batches_that_failed(ledger, 1)
    sink = Sink()

    def deadly(batch: BatchRecord, offsets: Offsets) -> None:
        raise Crash

    with pytest.raises(Crash):
        run_all(ledger, FakeRunner(ledger, deadly), clock, "first")
    survivor = FakeRunner(ledger, sink.write)
    run_all(ledger, survivor, clock, "second")
    assert set(sink.records()) < everything  # what the first one had in hand is still its own
    clock.now_ms += LEASE_MS
    run_all(ledger, survivor, clock, "second")
    assert sink.records() == Counter(everything)


def test_two_processes_never_run_the_same_batch_and_with_failures_all_is_processed_once(
    url: str, clock: ManualClock
) -> None:
    at_work: set[str] = set()
    together: list[str] = []
    lock = threading.Lock()
    sink = Sink()
    both = threading.Barrier(2)
    errors: list[BaseException] = []

    def handler_of(owner: str) -> Callable[[BatchRecord, Offsets], None]:
        chance, calls = random.Random(owner), itertools.count()

        def handler(batch: BatchRecord, offsets: Offsets) -> None:
            with lock:
                together.extend(at_work & {batch.batch_key})
                at_work.add(batch.batch_key)
                sink.runs.append((owner, batch.owner))
            try:
                if next(calls) == 0:
                    both.wait(60)  # Else one could be done before the other has come to a batch.
                if chance.random() < 0.2:
                    raise PriceError
                with lock:
                    sink.write(batch, offsets)
            finally:
                with lock:
                    at_work.remove(batch.batch_key)

        return handler

    def process(owner: str) -> None:
        try:
            with Ledger.open(url, clock=clock, database_clock=clock) as own:
                run_all(own, FakeRunner(own, handler_of(owner)), clock, owner)
        except BaseException as error:
            errors.append(error)
            raise

    with Ledger.open(url, clock=clock, database_clock=clock) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        everything = batches_that_failed(ledger, 15)
        threads = [threading.Thread(target=process, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert errors == []
        assert together == []
        assert {owner for owner, _ in sink.runs} == {"one", "two"}
        assert all(ran == owned for ran, owned in sink.runs)
        assert set(explained(ledger).values()) == {Status.SUCCESS}
        assert sink.records() == Counter(everything)
