"""A runner whose handler is a function, and schedulers that use it."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.ledger.samples import a_batch

from headrace.backfill import BackfillEvent, BackfillScheduler, Cost, Failed
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.ledger import BatchRecord, Clock, ErrorReport, Ledger, PlannedBatch, PlannedRange

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")
LEASE_MS = 30_000
WIDE = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 12))

Offsets = tuple[OffsetRange, ...]
Handler = Callable[[BatchRecord, Offsets], None]


def nothing(batch: BatchRecord, offsets: Offsets) -> None:
    """A handler that goes through."""


class FakeRunner:
    """Runs a function. Of a log, everything before its ``begins`` is gone."""

    bootstrap_servers = "localhost:9092"

    def __init__(self, ledger: Ledger, handler: Handler = nothing) -> None:
        self._ledger = ledger
        self.handler = handler
        self.begins: dict[TopicPartition, int] = {}
        self.runs: list[tuple[str, Offsets]] = []

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        return [
            OffsetRange(r.topic, r.partition, r.start, min(r.until, begin))
            for r in (planned.offsets for planned in ranges)
            if (begin := self.begins.get(r.topic_partition, 0)) > r.start
        ]

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        return {r.topic_partition: self.begins.get(r.topic_partition, 0) for r in ranges}

    def run(self, batch: BatchRecord) -> BaseException | None:
        offsets = tuple(each.offsets for each in self._ledger.ranges(batch.schedule_id))
        self.runs.append((batch.schedule_id, offsets))
        try:
            self.handler(batch, offsets)
        except Exception as error:  # noqa: BLE001  (what any handler raises)
            return error
        return None


@dataclass
class FixedBudget:
    """As many records at once as a test says."""

    most: int = sys.maxsize
    costs: list[Cost] = field(default_factory=list)
    asked: int = 0

    def records(self) -> int:
        self.asked += 1
        return self.most

    def spent(self, cost: Cost) -> None:
        self.costs.append(cost)


@dataclass
class Events:
    """What was reported."""

    seen: list[BackfillEvent] = field(default_factory=list)

    def __call__(self, event: BackfillEvent) -> None:
        self.seen.append(event)

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]

    @property
    def errors(self) -> list[str]:
        return [event.error.message for event in self.seen if isinstance(event, Failed)]


def a_scheduler(
    ledger: Ledger,
    runner: FakeRunner,
    clock: Clock,
    *,
    owner: str = "me",
    budget: FixedBudget | None = None,
    events: Events | None = None,
    max_backfills: int = 10,
    stopped: Callable[[], bool] = lambda: False,
    poll_ms: int = 100,
) -> BackfillScheduler:
    return BackfillScheduler(
        ledger,
        runner,
        owner=owner,
        budget=budget or FixedBudget(),
        on_event=events or Events(),
        clock=clock,
        max_backfills=max_backfills,
        stopped=stopped,
        lease_ms=LEASE_MS,
        poll_ms=poll_ms,
    )


def one_that_failed(ledger: Ledger, batch: PlannedBatch) -> str:
    """The key of a batch of the live stream that has failed."""
    key = ledger.begin(batch).schedule_id
    assert ledger.fail(key, ERROR)
    return key


def stored(ledger: Ledger, key: str) -> BatchRecord:
    row = ledger.batch(key)
    assert row is not None
    return row


def processed(runner: FakeRunner) -> list[tuple[int, int]]:
    return sorted(
        (r.partition, offset)
        for _, offsets in runner.runs
        for r in offsets
        for offset in range(r.start, r.until)
    )


def all_of(ranges: Iterable[OffsetRange]) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.until)]


def whole(key: str, ledger: Ledger) -> list[tuple[int, int]]:
    return all_of(each.offsets for each in ledger.ranges(key))
