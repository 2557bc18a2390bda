"""Test doubles of the clock and of a Kafka topic, simulated crashes, and temporary ledgers."""

import functools
import math
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql import Row

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.core.timing import WallClock, wall_clock_ms
from headrace.errors import DataLossError, OptionError
from headrace.gate import Ledger, Topic

STEPS: Final[Mapping[str, str]] = {
    "begin": "The ledger has the batch as in_progress; none of its records was read.",
    "attach": "The batch belongs to the process that runs it.",
    "handle": "Your handler has returned, so the sink has the batch.",
    "commit": "The transaction of batch.transaction() is committed, and the batch is a success.",
    "retry": "The next attempt of the batch is counted.",
    "succeed": "The batch is a success; Spark has not committed it yet.",
    "fail": "The batch has failed.",
    "keep_progress": "The ledger has the progress of the batch's parts, and the part to run next.",
    "report": "The ledger has the rate that was learnt from the batch.",
    "claim": "The failed batch belongs to the backfill that runs it.",
    "backfilled": "A backfill has processed the batch.",
    "put_back": "A backfill has processed some parts of the batch; the other parts wait.",
    "release": "A backfill of the batch has failed.",
    "mark_dead": "The batch is dead, because its records are no longer in the log.",
}
"""Steps of a batch that change durable state, and the state after each step. No batch goes through
all steps."""

_SILENT: Final = frozenset({"report", "resolve_abandoned"})
"""Methods whose step counts as passed even if they return None or another false value."""


class SimulatedCrash(BaseException):
    """Crash of the tested process. After it, no action of the process reaches the ledger."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Item of a `MemoryLog` at which the tested process crashes.

    The crash happens once: when a batch with the record before this item first reaches ``point``.

    Attributes:
        point: ``before`` or ``after``, and one of `STEPS`. Default: ``after handle``, when the
            handler has written the batch and the ledger has not recorded this yet.

    Raises:
        OptionError: There is no such point.
    """

    point: str = "after handle"

    def __post_init__(self) -> None:
        when, _, step = self.point.partition(" ")
        if when not in {"before", "after"} or step not in STEPS:
            raise OptionError(
                f"A crash at {self.point!r} is not possible; write 'before' or 'after' and one of"
                f" {', '.join(STEPS)}."
            )


def watch(owner: object, step: str, passed: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Replace a method so that ``passed`` is called before the method and after its success.

    A method succeeds if it returns a true value; the methods in ``_SILENT`` always succeed.

    Args:
        owner: A store of a ledger, or its class.
        step: The name of the method.
        passed: A function that is called with ``"before <step>"`` or ``"after <step>"``, and the
            method's arguments. If it raises an error, the method raises the same error.
    """
    do: Callable[..., Any] = getattr(owner, step)

    @functools.wraps(do)
    def watched(*arguments: Any, **options: Any) -> Any:
        passed(f"before {step}", arguments)
        result = do(*arguments, **options)
        if result or step in _SILENT:
            passed(f"after {step}", arguments)
        return result

    setattr(owner, step, watched)


_IN_MEMORY: Final = "/dev/shm"  # noqa: S108  (Linux's file system, not a file in it)


@dataclass
class ManualClock:
    """A clock that only a test advances; sleeping advances the clock and returns at once.

    Calling the clock returns the time of day, as ledgers need it. ``monotonic`` and ``sleep`` are
    like the functions of the module ``time``.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.sleep(1.5)
    >>> clock(), clock.monotonic()
    (2500, 1.5)

    Attributes:
        now_ms: The time (ms since the epoch). Default: a moment in 2023.
        on_sleep: A function that is called after each sleep.
    """

    now_ms: int = 1_700_000_000_000
    on_sleep: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self._began_ms = self.now_ms

    def __call__(self) -> int:
        """Return the time (ms since the epoch)."""
        return self.now_ms

    def monotonic(self) -> float:
        """Return the time since the clock was created (s)."""
        return (self.now_ms - self._began_ms) / 1000

    def sleep(self, seconds: float, /) -> None:
        """Advance the clock by ``seconds``, rounded up to whole milliseconds; call ``on_sleep``."""
        self.now_ms += math.ceil(round(seconds * 1000, 6))
        self.on_sleep()


@contextmanager
def temporary_ledger(clock: WallClock = wall_clock_ms) -> Iterator[Ledger]:
    """Yield a new ledger in a temporary SQLite file, which is deleted at the end of the block.

    On Linux, the file is in memory. Other processes can open the ledger by its ``url``.

    Args:
        clock: The clock of all times in the ledger, and of its leases. Default: the machine's
            clock.
    """
    memory = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headrace-", dir=memory) as folder:
        url = f"sqlite:///{folder}/ledger.db"
        with Ledger.open(url, clock=clock, database_clock=clock) as ledger:
            yield ledger


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a `MemoryLog` with a key, headers or a timestamp.

    Attributes:
        value: The value; None for a tombstone.
        key: The key; None for no key.
        headers: The headers, as pairs of a name and a value.
        timestamp_ms: The timestamp (ms since the epoch). Default: the time of the log's clock.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


Item = bytes | str | Record | Crash | None
"""Item of a `MemoryLog`: a record's value (text is encoded as UTF-8, None is a tombstone), a
`Record`, or a `Crash`."""


class MemoryLog:
    """A topic in memory: a source of records with offsets, retention, gaps and crashes.

    >>> log = MemoryLog("a", "b", Crash(), "c")
    >>> log.append("d")
    >>> [row.value for row in log.read([OffsetRange("records", 0, 1, 4)])]
    [b'b', b'c', b'd']

    Args:
        items: The items of partition 0; see `append`.
        partitions: The number of partitions.
        topic: The topic's name.
        clock: The clock of the log and its readers. Default: a new clock.

    Attributes:
        clock: The clock of the log and its readers.
        error: An error that every access to the log raises, such as ``BrokerError("...")``, as if
            the brokers were unreachable; None if the log can be read.
    """

    # A `headrace.gate.source.log.Log`, whose docstrings document the undocumented methods here.
    name = "The log"
    source = "memory"
    servers = "memory"

    def __init__(
        self,
        *items: Item,
        partitions: int = 1,
        topic: str = "records",
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.error: Exception | None = None
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._topic = topic
        self._crashes: list[tuple[OffsetRange, Crash]] = []
        self.recreate()
        self.append(*items)

    def append(self, *items: Item, partition: int = 0) -> None:
        """Append records to a partition. A `Crash` belongs to the record before it.

        Raises:
            OptionError: A crash has no record before it, or a value is neither text nor bytes.
        """
        where = self._partitions[partition]
        for item in items:
            end = self._ends[where]
            if isinstance(item, Crash):
                if end == 0:
                    raise OptionError("A crash has no record before it; append a record first.")
                self._crashes.append((where.range(end - 1, end), item))
                continue
            value = item.encode() if isinstance(item, str) else item
            record = value if isinstance(value, Record) else Record(value)
            if not isinstance(record.value, bytes | None):
                raise OptionError(
                    f"A record's value is {record.value!r}; it must be text, bytes, None, a Record"
                    " or a Crash: write a number as text."
                )
            if record.timestamp_ms is None:
                record = replace(record, timestamp_ms=self.clock())
            self._records[where][end] = record
            self._ends[where] = end + 1

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Delete the records of a partition before an offset, as Kafka's retention does."""
        where = self._partitions[partition]
        self._begins[where] = max(offset, self._begins[where])
        self._ends[where] = max(offset, self._ends[where])

    def compact(self, offset: int, partition: int = 0) -> None:
        """Delete the record at an offset, and leave a gap, as Kafka's compaction does."""
        self._records[self._partitions[partition]].pop(offset, None)

    def recreate(self) -> None:
        """Delete the topic, and create an empty topic of the same name."""
        self._topic_id = uuid.uuid4().hex
        self._records: dict[TopicPartition, dict[int, Record]] = {
            where: {} for where in self._partitions
        }
        self._begins = dict.fromkeys(self._partitions, 0)
        self._ends = dict.fromkeys(self._partitions, 0)

    def crashes(self, point: str, ranges: Iterable[OffsetRange]) -> bool:
        """Return whether the process crashes at a point while it runs a batch of these ranges.

        The result is True only once for each crash.
        """
        wanted = list(ranges)
        for due in self._crashes:
            record, crash = due
            if crash.point == point and any(offsets.contains(record) for offsets in wanted):
                self._crashes.remove(due)
                return True
        return False

    def record(self, where: TopicPartition, offset: int) -> Record | None:
        """Return the record at an offset; None if the offset has no record."""
        return self._records[where].get(offset)

    def read(self, ranges: Iterable[OffsetRange]) -> list[Row]:
        """Return the records in these ranges, with all columns of the sources, including headers.

        Raises:
            DataLossError: Some of the offsets are no longer in the log.
        """
        begins = self.earliest(self._partitions)
        rows = []
        for offsets in ranges:
            where = offsets.topic_partition
            missing, present = offsets.split_at(begins[where])
            if missing.count:
                raise DataLossError(f"{self.name} has lost records that were to be read: {missing}")
            records = ((at, self.record(where, at)) for at in range(present.start, present.until))
            rows += [_row(where, at, record) for at, record in records if record is not None]
        return rows

    def assigned(self, partitions: Iterable[TopicPartition]) -> "MemoryLog":
        """Return a view of this log that has only these partitions; the records are shared."""
        assigned = copy(self)
        assigned._partitions = [where for where in partitions if where in self._partitions]
        return assigned

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        self._reach()
        numbers = tuple(where.partition for where in self._partitions)
        return {self._topic: Topic(self._topic_id, numbers)}

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        return list(self._partitions)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        self._reach()
        return {where: self._begins[where] for where in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        self._reach()
        return {where: self._ends[where] for where in partitions}

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        listed = list(partitions)
        return self.earliest(listed), self.latest(listed)

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self.latest(partitions)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        self._reach()
        offsets: dict[TopicPartition, int | None] = {}
        for where, time_ms in timestamps_ms.items():
            records = sorted(self._records[where].items())
            later = (at for at, record in records if (record.timestamp_ms or 0) >= time_ms)
            offsets[where] = next(later, None)
        return offsets

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        sizes = [
            len(record.value or b"")
            for where, begin in current.items()
            for offset, record in self._records[where].items()
            if begin <= offset < latest[where]
        ]
        return {self._topic: sum(sizes) / len(sizes)} if sizes else {}

    def readable_until(self, latest: Positions) -> Positions:
        return latest

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        return ()

    def processed(self, positions: Positions) -> None:
        pass

    def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self.error is not None:
            raise self.error


def _row(where: TopicPartition, offset: int, record: Record) -> Row:
    return Row(
        key=record.key,
        value=record.value,
        topic=where.topic,
        partition=where.partition,
        offset=offset,
        timestamp=datetime.fromtimestamp((record.timestamp_ms or 0) / 1000),
        timestampType=0,
        headers=[Row(key=name, value=value) for name, value in record.headers] or None,
    )
