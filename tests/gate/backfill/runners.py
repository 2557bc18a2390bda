"""A scheduler over a real ledger, whose handler is a function."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.gate.ledger.samples import a_batch

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.timing import WallClock
from headrace.gate.backfill.monitor import BackfillEvent
from headrace.gate.backfill.schedule import Cost
from headrace.gate.backfill.scheduler import BackfillScheduler, OwnerSettings
from headrace.gate.control.dead import BackfillLimits
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedBatch, PlannedRange, without

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")
LEASE_MS = 30_000
WIDE = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 12))

Offsets = tuple[OffsetRange, ...]
Handler = Callable[[BatchRecord, Offsets], None]


class PriceError(Exception):
    """The exception that the handlers of these tests raise."""


def nothing(batch: BatchRecord, offsets: Offsets) -> None:
    """A handler that goes through."""


def refuse(batch: BatchRecord, offsets: Offsets) -> None:
    """One that does not."""
    raise PriceError("price is -2")


class FakeRunner:
    """Runs a function, on ranges of a log of which everything before its ``begins`` is gone.

    Attributes:
        recreated: topics that were; none of their offsets are the planned ones.
        deleted: topics that were.
        unreachable: what is raised while the brokers are away.
        looked: the earliest offsets that were answered.
    """

    def __init__(self, ledger: Ledger, handler: Handler = nothing) -> None:
        self._ledger = ledger
        self.handler = handler
        self.begins: dict[TopicPartition, int] = {}
        self.recreated: set[str] = set()
        self.deleted: set[str] = set()
        self.runs: list[tuple[str, Offsets]] = []
        self.unreachable: Exception | None = None
        self.looked: list[int] = []

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.runs]

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        if self.unreachable is not None:
            raise self.unreachable
        others = self.recreated | self.deleted
        return [
            replace(r, until=r.until if r.topic in others else min(r.until, begin))
            for r in (planned.offsets for planned in ranges)
            if (begin := self.begins.get(r.topic_partition, 0)) > r.start or r.topic in others
        ]

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        there = [r.topic_partition for r in ranges if r.topic not in self.deleted]
        found = {tp: self.begins.get(tp, 0) for tp in there}
        self.looked.extend(found.values())
        return found

    def run(
        self, batch: BatchRecord, _allowed: int, gone: Sequence[OffsetRange]
    ) -> BaseException | None:
        planned = self._ledger.batches.ranges(batch.batch_key)
        offsets = tuple(each.offsets for each in without(planned, gone))
        self.runs.append((batch.batch_key, offsets))
        try:
            self.handler(batch, offsets)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (what a handler raises)
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


class Backfill(BackfillScheduler):
    """A scheduler, and what it is made of."""

    def __init__(
        self,
        ledger: Ledger,
        clock: WallClock,
        handler: Handler = nothing,
        *,
        most: int = sys.maxsize,
        owner: str = "me",
        budget: FixedBudget | None = None,
        runner: FakeRunner | None = None,
        max_backfills: int = 10,
        stopped: Callable[[], bool] = lambda: False,
        poll_ms: int = 100,
    ) -> None:
        self.ledger = ledger
        self.runner = runner or FakeRunner(ledger, handler)
        self.budget = budget or FixedBudget(most)
        self.events: list[BackfillEvent] = []
        super().__init__(
            ledger,
            self.runner.run,
            self.runner,
            OwnerSettings(owner, LEASE_MS, poll_ms),
            limits=BackfillLimits(max_backfills),
            budget=self.budget,
            on_event=self.events.append,
            clock=clock,
            stopped=stopped,
        )

    def work_on(self, key: str) -> BackfillEvent | None:
        """Run one batch of this key."""
        return self.run_batch(key)

    @property
    def event_names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def one_that_failed(ledger: Ledger, batch: PlannedBatch) -> str:
    """The key of a batch of the live stream that has failed."""
    key = ledger.batches.begin(batch).batch_key
    assert ledger.batches.fail(key, ERROR)
    return key


def processed(runner: FakeRunner) -> list[tuple[int, int]]:
    return sorted(place for _, offsets in runner.runs for place in all_of(offsets))


def all_of(ranges: Iterable[OffsetRange]) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.until)]


def whole(key: str, ledger: Ledger) -> list[tuple[int, int]]:
    return all_of(each.offsets for each in ledger.batches.ranges(key))
