"""Gates that read a journal, whose batches come to every end; and which offsets they still need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, PlannedBatch, PlannedRange
from headrace.gate.ledger.transitions import Status

LANES = 2
ERROR = ErrorReport("ValueError", "no", "")
OWNER = "me"
LEASE_MS = 60_000

Bounds = Callable[[int], tuple[int, int]]
Step = tuple[str, int, int]

_STEPS = (
    "begin",
    "begin_again",
    "begin_anew",
    "succeed",
    "fail",
    "bury_record",
    "take",
    "backfilled",
    "give_back",
    "bury",
    "settle",
    "prune",
)


def steps(*more: str, least: int = 0) -> st.SearchStrategy[list[Step]]:
    """Steps of readers, and those that a test adds; most of them are batches."""
    names = [*_STEPS, *["begin", "succeed"] * 3, *more]
    step = st.tuples(st.sampled_from(names), st.integers(0, 1), st.integers(0, 99))
    return st.lists(step, min_size=least, max_size=40)


@dataclass
class Read:
    """A batch."""

    planned: PlannedBatch
    status: Status = Status.IN_PROGRESS
    settled: bool = False
    """Whether it is dead, and somebody has seen to that."""

    @property
    def key(self) -> str:
        return self.planned.batch_key

    @property
    def is_open(self) -> bool:
        return self.status is not Status.SUCCESS and not self.settled

    def reads(self, lane: int, offset: int) -> bool:
        ranges = (each.offsets for each in self.planned.ranges)
        return any(r.partition == lane and r.start <= offset < r.until for r in ranges)


@dataclass
class Reader:
    """A gate."""

    name: str
    run: int = 0
    at: Mapping[int, int] = field(default_factory=dict)
    """Offsets at which its newest run goes on, in the lanes that it has read."""
    reads: list[Read] = field(default_factory=list)
    last: Read | None = None
    """The batch that began last."""

    def needs(self, lane: int, offset: int) -> bool:
        """Whether it still needs an offset."""
        if offset >= self.at.get(lane, 0):
            return True
        return any(
            read.reads(lane, offset) for read in self.reads if read.is_open or read is self.last
        )


class Readers:
    """Some gates and their ledger, which is to say the same as they know of themselves.

    Args:
        ledger: The ledger in which the gates are declared.
        topic_id: The journal's.
        names: The gates'.
        bounds: Answers where a lane begins and ends.
    """

    def __init__(
        self, ledger: Ledger, topic_id: str, names: Sequence[str], bounds: Bounds | None = None
    ) -> None:
        self.ledger = ledger
        self.readers = [Reader(name) for name in names]
        self._topic_id = topic_id
        self._bounds = bounds or (lambda _lane: (0, 10**9))
        for name in names:
            ledger.gates.declare(name, interval_ms=1, source="journal", estimator="pid")

    def step(self, step: Step) -> None:
        """Let something happen, if it can."""
        name, which, much = step
        getattr(self, f"_{name}")(self.readers[which], much)

    def needs(self, lane: int, offset: int) -> bool:
        """Whether any gate that has begun to read the journal still needs an offset."""
        return any(reader.needs(lane, offset) for reader in self.readers if reader.reads)

    def _begin(self, reader: Reader, much: int) -> None:
        """The next batch, of one lane or of both."""
        self._begin_at(reader, reader.at, much)

    def _begin_anew(self, reader: Reader, much: int) -> None:
        """The first batch of a fresh checkpoint, from anywhere."""
        at = {lane: self._bounds(lane)[0] + much % 7 for lane in range(LANES)}
        if self._ranges(at, much):
            reader.run += 1
            reader.at = {}
            self._begin_at(reader, at, much)

    def _begin_at(self, reader: Reader, at: Mapping[int, int], much: int) -> None:
        if ranges := self._ranges(at, much):
            reader.last = Read(self._planned(reader, ranges))
            reader.reads.append(reader.last)
            reader.at = {**reader.at, **{each.partition: each.until for each in ranges}}
            self.ledger.batches.begin(reader.last.planned)

    def _ranges(self, at: Mapping[int, int], much: int) -> Sequence[OffsetRange]:
        ranges = []
        for lane in range(LANES):
            earliest, latest = self._bounds(lane)
            start = at.get(lane, earliest)
            until = min(start + (much >> lane) % 5, latest)
            if start < until:
                ranges.append(OffsetRange("orders", lane, start, until))
        return ranges

    def _planned(self, reader: Reader, ranges: Sequence[OffsetRange]) -> PlannedBatch:
        planned = tuple(PlannedRange(each, topic_id=self._topic_id) for each in ranges)
        return PlannedBatch(reader.name, f"run {reader.run}", planned, "rate", "")

    def _begin_again(self, reader: Reader, much: int) -> None:
        """After a crash the engine asks for its last batch once more."""
        if (read := reader.last) is not None:
            if read.status is Status.FAILED:
                read.status = Status.IN_PROGRESS
            assert self.ledger.batches.begin(read.planned).status is read.status

    def _succeed(self, reader: Reader, much: int) -> None:
        if read := _one_of(reader, much, Status.IN_PROGRESS):
            assert self.ledger.batches.succeed(read.key)
            read.status = Status.SUCCESS

    def _fail(self, reader: Reader, much: int) -> None:
        if read := _one_of(reader, much, Status.IN_PROGRESS):
            assert self.ledger.batches.fail(read.key, ERROR)
            read.status = Status.FAILED

    def _bury_record(self, reader: Reader, much: int) -> None:
        if (read := _one_of(reader, much, Status.IN_PROGRESS)) and read.planned.records == 1:
            (only,) = read.planned.ranges
            offsets = only.offsets
            letter = DeadLetter(
                "orders", offsets.partition, offsets.start, None, None, None, 0, 0, ERROR
            )
            assert self.ledger.batches.attach(read.key, 1, owner=OWNER, lease_ms=LEASE_MS)
            done = Progress(done=frozenset([""]))
            assert self.ledger.batches.keep_progress(read.key, OWNER, done, letter)
            assert self.ledger.batches.succeed(read.key, owner=OWNER)
            read.status = Status.SUCCESS

    def _take(self, reader: Reader, much: int) -> None:
        if read := _one_of(reader, much, Status.FAILED):
            assert self.ledger.batches.claim(read.key, OWNER, LEASE_MS)
            read.status = Status.BACKFILLING

    def _backfilled(self, reader: Reader, much: int) -> None:
        if read := _one_of(reader, much, Status.BACKFILLING):
            assert self.ledger.batches.backfilled(read.key, OWNER)
            read.status = Status.SUCCESS

    def _give_back(self, reader: Reader, much: int) -> None:
        if read := _one_of(reader, much, Status.BACKFILLING):
            status = self.ledger.batches.release(read.key, OWNER, ERROR, is_dead=much % 4 == 3)
            assert status is not None
            read.status = status

    def _bury(self, reader: Reader, much: int) -> None:
        """Not always after a backfill that somebody else has begun: that comes seldom."""
        if much % 2:
            self._fail(reader, much)
            self._take(reader, much)
        if read := _one_of(reader, much, Status.BACKFILLING):
            assert self.ledger.batches.mark_dead(read.key, OWNER, ERROR)
            read.status = Status.DEAD

    def _settle(self, reader: Reader, much: int) -> None:
        """Somebody sees to what is dead."""
        read = _one_of(reader, much, Status.DEAD)
        if read is None:
            return
        assert self.ledger.repairs.drop_batch(reader.name, read.key, "ada", "as agreed")
        read.settled = True

    def _prune(self, reader: Reader, much: int) -> None:
        """The ledger forgets what it may; the rest is not to notice."""
        self.ledger.history.prune(2**53)


def _one_of(reader: Reader, much: int, status: Status) -> Read | None:
    """One of a gate's batches that stand so and are not settled."""
    found = [read for read in reader.reads if read.status is status and not read.settled]
    return found[much % len(found)] if found else None
