"""The failed batches of a gate in memory, what retention nears, and the events of a backfill."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.core.backoff import Backoff
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.timing import LONGEST_LEASE_MS
from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedRange
from headrace.gate.ledger.transitions import Status


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch is this backfill's now."""

    level: ClassVar[int] = logging.DEBUG
    batch: BatchRecord

    def __str__(self) -> str:
        return f"{_name(self.batch)} is claimed (attempt {self.batch.attempts + 1})."


@dataclass(frozen=True, slots=True)
class Skipped:
    """A batch is not to be had: another backfill, or the live stream, has it or has finished it.

    Attributes:
        status: Its status; None where the ledger has it no more.
    """

    level: ClassVar[int] = logging.DEBUG
    batch_key: str
    status: Status | None

    def __str__(self) -> str:
        match self.status:
            case Status.SUCCESS:
                state = "is done: the stream or another backfill has run it"
            case Status.DEAD | None:
                state = f"is {self.status or 'deleted'}, so it is not run"
            case _:
                state = "is left to the stream or the other backfill that has it now"
        return f"Batch {self.batch_key} {state}."


@dataclass(frozen=True, slots=True)
class PartlyDone:
    """Parts of a batch were processed; it is ``failed``, and the rest is run next."""

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    left: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in part; {_records(self.left)} of it are left."


@dataclass(frozen=True, slots=True)
class Lost:
    """Some of what a batch has still to read has left the source, and is lost."""

    level: ClassVar[int] = logging.ERROR
    batch: BatchRecord
    ranges: tuple[OffsetRange, ...]
    why: str

    def __str__(self) -> str:
        gone = ", ".join(map(str, self.ranges))
        return (
            f"{_name(self.batch)} has lost {gone}, which left Kafka before they were processed;"
            f" {self.why}."
        )


@dataclass(frozen=True, slots=True)
class Done:
    """A batch is ``success``."""

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in {self.elapsed_ms} ms."


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch has failed again, and is ``failed``, to be run once more."""

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord
    error: ErrorReport
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} failed again: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class MarkedDead:
    """A batch is ``dead``: it will not be processed."""

    level: ClassVar[int] = logging.ERROR
    batch: BatchRecord
    error: ErrorReport

    def __str__(self) -> str:
        return f"{_name(self.batch)} is dead and will not be processed: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A batch was run, but its lease had run out meanwhile: its outcome is somebody else's."""

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord

    def __str__(self) -> str:
        return (
            f"{_name(self.batch)} was run, but not as its owner any more, so the outcome is not"
            " counted; whoever has it runs it again."
        )


@dataclass(frozen=True, slots=True)
class NearRetention:
    """Kafka may soon delete what a failed batch has still to read."""

    level: ClassVar[int] = logging.WARNING
    batch_key: str
    ranges: tuple[OffsetRange, ...]

    def __str__(self) -> str:
        return (
            f"Batch {self.batch_key} has failed, and Kafka may soon delete what it reads:"
            f" retention nears {', '.join(map(str, self.ranges))}; make the topic's retention"
            " longer, or see to it that the batch can be processed."
        )


BackfillEvent = (
    Claimed | Skipped | PartlyDone | Lost | Done | Failed | MarkedDead | LeaseLost | NearRetention
)


def _name(batch: BatchRecord) -> str:
    return f"Batch {batch.batch_key} of gate {batch.gate!r} ({_records(batch.records_left)})"


def _records(number: int) -> str:
    return f"{number} record{'' if number == 1 else 's'}"


def _why(error: ErrorReport) -> str:
    first_line = error.message.partition("\n")[0]
    return f"{error.error_class}: {first_line}"


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that waits for a backfill. Times are ms since the epoch.

    Attributes:
        created_time_ms: When it was planned.
        backfills: How many backfills of it have failed.
        ended_ms: When its last attempt ended: by its failure, or because its lease ran out.
        ranges: What it has still to read.
        retry_ms: When an operator asked that it be not waited for; None if nobody has.
        done_records: Offsets of it that are done.
    """

    batch_key: str
    created_time_ms: int
    backfills: int
    ended_ms: int
    ranges: tuple[PlannedRange, ...]
    retry_ms: int | None = None
    done_records: int = 0

    @property
    def is_asked(self) -> bool:
        """Whether an operator has asked for it since its last attempt ended."""
        return self.retry_ms is not None and self.retry_ms >= self.ended_ms


class Monitor:
    """Holds what a backfill could run of one gate, the earliest created first.

    Memory is bounded by the batches that are open, not by history.

    Args:
        ledger: Of the gate.
        gate_name: The gate.
        interval_ms: The time between two readings of the ledger (ms); above 0. Too short, and the
            ledger has work without use; too long, and batches wait that long before they are seen.
            Default: 5 000.
        limit: How many batches are held at least, if there are as many, and twice as many at most;
            1 or more. While more are open the earliest are held, and of the others those that do
            not wait, lest a thousand that fail again and again keep the rest from being run.
            Default: 1 000.
        backoff: How long a batch waits after a backfill.
        seconds: Answers the time since some moment (s).
    """

    def __init__(
        self,
        ledger: Ledger,
        gate_name: str,
        *,
        interval_ms: int = 5_000,
        limit: int = 1_000,
        backoff: Backoff | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._gate_name = gate_name
        self._interval_ms = interval_ms
        self._limit = limit
        self._backoff = Backoff() if backoff is None else backoff
        self._seconds = seconds
        self._batches: dict[str, OpenBatch] = {}
        self._read_s: float | None = None

    def batches(self) -> tuple[OpenBatch, ...]:
        """Held batches, the earliest created first."""
        return tuple(self._batches.values())

    def next_ready(self, now_ms: int) -> OpenBatch | None:
        """The earliest created batch whose wait after its last attempt is over."""
        return next((each for each in self.batches() if self._is_ready(each, now_ms)), None)

    def next_asked(self) -> OpenBatch | None:
        """The earliest created batch that an operator wants to be run now."""
        return next((each for each in self.batches() if each.is_asked), None)

    def keep_up(self) -> None:
        """Read the ledger if the last reading is an interval ago.

        Raises:
            LedgerError: It cannot be read; what was read last stays.
        """
        if self._read_s is None or (self._seconds() - self._read_s) * 1000 >= self._interval_ms:
            self.refresh()

    def refresh(self) -> None:
        """Read the ledger now.

        Raises:
            LedgerError: It cannot be read; what was read last stays.
        """
        if self._is_to_restart():
            self._batches, self._read_s = {}, self._seconds()
            return
        # An interrupted batch is the stream's, until a start of the query has not run it.
        known, rows = self._batches, [row for row in self._rows() if not row.interrupted]
        abandoned = any(row.status is Status.BACKFILLING for row in rows)
        now_ms = self._ledger.database_time_ms() if abandoned else 0
        self._batches = {
            row.batch_key: self._open(row, known.get(row.batch_key), now_ms) for row in rows
        }
        self._read_s = self._seconds()

    def _is_to_restart(self) -> bool:
        """Whether the gate's next checkpoint reads again what is open, and would double it."""
        asked = self._ledger.operator_limits.for_the_start(self._gate_name)
        return any(each.kind is OperatorActionKind.RESTART for each in asked)

    def _rows(self) -> Sequence[BatchRecord]:
        rows = self._ledger.batches.failed(self._gate_name, self._limit)
        if len(rows) < self._limit:
            return rows
        waits_ms = self._backoff.waits_ms
        ready = self._ledger.batches.failed(self._gate_name, self._limit, waits_ms=waits_ms)
        return sorted({*rows, *ready}, key=lambda row: (row.created_time_ms, row.batch_key))

    def forget(self, batch_key: str) -> None:
        """Leave out a batch that is not to be claimed any more, until the ledger lists it again."""
        self._batches.pop(batch_key, None)

    def _is_ready(self, batch: OpenBatch, now_ms: int) -> bool:
        # An end that lies ahead was written under a clock that was wrong, and is not waited for.
        if batch.ended_ms > now_ms + LONGEST_LEASE_MS:
            return True
        return batch.is_asked or batch.ended_ms + self._backoff.wait_ms(batch.backfills) <= now_ms

    def _ranges(self, row: BatchRecord, known: OpenBatch | None) -> tuple[PlannedRange, ...]:
        if known is not None and known.done_records == row.done_records:
            return known.ranges
        return row.open_ranges(self._ledger.batches.ranges(row.batch_key))

    def _open(self, row: BatchRecord, known: OpenBatch | None, now_ms: int) -> OpenBatch:
        # A backfill whose lease has run out has failed, though nobody counted it yet (H).
        abandoned = row.status is Status.BACKFILLING
        ended_ms = row.end_time_ms
        if abandoned:
            until_ms = row.lease_until_ms
            ended_ms = until_ms if until_ms and until_ms <= now_ms else row.start_time_ms
        return OpenBatch(
            batch_key=row.batch_key,
            created_time_ms=row.created_time_ms,
            backfills=row.backfills + abandoned,
            ended_ms=row.created_time_ms if ended_ms is None else ended_ms,
            ranges=self._ranges(row, known),
            done_records=row.done_records,
            retry_ms=row.retry_ms,
        )


Earliest = Mapping[TopicPartition, int]

_LEFT: Final = 0.5
"""Share of the way from the log's beginning to a range that is left when a warning is due."""


def near_retention(
    ranges: Iterable[OffsetRange], first: Earliest, now: Earliest
) -> tuple[OffsetRange, ...]:
    """Return the ranges that retention has come half way to since their batch was first looked at.

    At its pace so far retention reaches them in less time than has passed. The beginning of a log
    tells no more: a record's age and the topic's retention time say when it *may* go, but a log
    also loses whole segments by size, or because somebody deletes records. So there is no warning
    while nothing is deleted, however close a range is to the beginning; and none in time if one
    segment, deleted at a stroke, is longer than the way.

    ``first`` and ``now`` are the earliest offsets then and now; partitions missing in one are left
    out.
    """
    return tuple(
        each
        for each in ranges
        if (tp := each.topic_partition) in first
        and tp in now
        and first[tp] < now[tp]
        and each.start - now[tp] <= _LEFT * (each.start - first[tp])
    )


class RetentionWatch:
    """Remembers, for the batches that are open, where the logs began; warns of each batch once."""

    def __init__(self) -> None:
        self._first: dict[str, Earliest] = {}
        self._warned: set[str] = set()

    def look(
        self, batches: Sequence[OpenBatch], earliest: Earliest
    ) -> list[tuple[OpenBatch, tuple[OffsetRange, ...]]]:
        """The batches to warn of now, with the ranges that retention nears.

        Args:
            batches: All that are open; what is not among them is forgotten.
            earliest: The earliest offset there is of each of their partitions.
        """
        self._first = {
            batch.batch_key: self._first.get(batch.batch_key) or _own(batch, earliest)
            for batch in batches
        }
        self._warned &= self._first.keys()
        found = []
        for batch in batches:
            if batch.batch_key in self._warned:
                continue
            first = self._first[batch.batch_key]
            near = near_retention((each.offsets for each in batch.ranges), first, earliest)
            if near:
                self._warned.add(batch.batch_key)
                found.append((batch, near))
        return found


def _own(batch: OpenBatch, earliest: Earliest) -> Earliest:
    partitions = {each.offsets.topic_partition for each in batch.ranges}
    return {tp: earliest[tp] for tp in partitions if tp in earliest}
