"""The failed batches of a gate in memory, retention warnings, and the events of a backfill."""

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
    """The backfill has claimed a batch."""

    level: ClassVar[int] = logging.DEBUG
    batch: BatchRecord

    def __str__(self) -> str:
        return f"{_name(self.batch)} is claimed (attempt {self.batch.attempts + 1})."


@dataclass(frozen=True, slots=True)
class Skipped:
    """A batch is unavailable: another backfill, or the live stream, owns or has finished it.

    Attributes:
        status: Its status; None if the ledger no longer has the batch.
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
    """Parts of a batch were processed. The batch is ``failed``, and the rest is run next."""

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    left: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in part; {_records(self.left)} of it are left."


@dataclass(frozen=True, slots=True)
class Lost:
    """Unprocessed offsets of a batch have left the source, and are lost."""

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
    """A batch has failed again. The batch is ``failed``, and will be run again."""

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
    """A batch was run after its lease had expired: another owner decides the outcome."""

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord

    def __str__(self) -> str:
        return (
            f"{_name(self.batch)} was run, but not as its owner any more, so the outcome is not"
            " counted; whoever has it runs it again."
        )


@dataclass(frozen=True, slots=True)
class NearRetention:
    """Kafka may soon delete unprocessed offsets of a failed batch."""

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
        created_time_ms: The time of its plan.
        backfills: Number of failed backfills.
        ended_ms: The end of its last attempt: its failure, or the expiry of its lease.
        ranges: Its unprocessed ranges.
        retry_ms: The time of an operator's request to run the batch without a wait; None without
            one.
        done_records: Number of processed offsets.
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
        """Whether an operator has requested the batch since its last attempt ended."""
        return self.retry_ms is not None and self.retry_ms >= self.ended_ms


class Monitor:
    """Holds the failed batches of one gate in memory, the earliest created first.

    Memory is bounded by the number of open batches, not by history.

    Args:
        ledger: The gate's ledger.
        gate_name: The gate.
        interval_ms: The time between two reads of the ledger (ms); above 0. Too short: useless load
            on the ledger. Too long: batches are noticed late. Default: 5 000.
        limit: Least number of batches to hold, if available; at most twice as many are held. 1 or
            more. Above the limit, the earliest batches are held, and other batches that do not
            wait, so that a thousand failing batches do not block the rest. Default: 1 000.
        backoff: The waits of a batch after its backfills.
        seconds: Returns a monotonic time (s).
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
        """Return the held batches, the earliest created first."""
        return tuple(self._batches.values())

    def next_ready(self, now_ms: int) -> OpenBatch | None:
        """Return the earliest created batch whose wait after its last attempt is over."""
        return next((batch for batch in self.batches() if self._is_ready(batch, now_ms)), None)

    def next_asked(self) -> OpenBatch | None:
        """Return the earliest created batch that an operator has requested."""
        return next((batch for batch in self.batches() if batch.is_asked), None)

    def keep_up(self) -> None:
        """Read the ledger if the last read is an interval ago.

        Raises:
            LedgerError: The ledger cannot be read; the result of the last read stays.
        """
        if self._read_s is None or (self._seconds() - self._read_s) * 1000 >= self._interval_ms:
            self.refresh()

    def refresh(self) -> None:
        """Read the ledger now.

        Raises:
            LedgerError: The ledger cannot be read; the result of the last read stays.
        """
        if self._is_to_restart():
            self._batches, self._read_s = {}, self._seconds()
            return
        # An interrupted batch belongs to the stream, unless the query's next start skips it.
        held, rows = self._batches, [row for row in self._rows() if not row.interrupted]
        abandoned = any(row.status is Status.BACKFILLING for row in rows)
        now_ms = self._ledger.database_time_ms() if abandoned else 0
        self._batches = {
            row.batch_key: self._open(row, held.get(row.batch_key), now_ms) for row in rows
        }
        self._read_s = self._seconds()

    def _is_to_restart(self) -> bool:
        """Whether the gate's next checkpoint reads the open batches again."""
        actions = self._ledger.operator_limits.for_the_start(self._gate_name)
        return any(action.kind is OperatorActionKind.RESTART for action in actions)

    def _rows(self) -> Sequence[BatchRecord]:
        rows = self._ledger.batches.failed(self._gate_name, self._limit)
        if len(rows) < self._limit:
            return rows
        waits_ms = self._backoff.waits_ms
        ready = self._ledger.batches.failed(self._gate_name, self._limit, waits_ms=waits_ms)
        return sorted({*rows, *ready}, key=lambda row: (row.created_time_ms, row.batch_key))

    def forget(self, batch_key: str) -> None:
        """Drop a batch that must not be claimed again, until the ledger lists it again."""
        self._batches.pop(batch_key, None)

    def _is_ready(self, batch: OpenBatch, now_ms: int) -> bool:
        # An end in the future was written under a wrong clock, so the batch does not wait for it.
        if batch.ended_ms > now_ms + LONGEST_LEASE_MS:
            return True
        return batch.is_asked or batch.ended_ms + self._backoff.wait_ms(batch.backfills) <= now_ms

    def _ranges(self, row: BatchRecord, known: OpenBatch | None) -> tuple[PlannedRange, ...]:
        if known is not None and known.done_records == row.done_records:
            return known.ranges
        return row.open_ranges(self._ledger.batches.ranges(row.batch_key))

    def _open(self, row: BatchRecord, known: OpenBatch | None, now_ms: int) -> OpenBatch:
        # A backfill with an expired lease has failed, though it is not counted yet (H).
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
"""Largest fraction of the distance from the log's beginning to a range at which a warning is due.
"""


def near_retention(
    ranges: Iterable[OffsetRange], first: Earliest, now: Earliest
) -> tuple[OffsetRange, ...]:
    """Return the ranges to which retention has come half way since the first look at their batch.

    At its pace so far, retention reaches them in less time than has passed. The beginning of a log
    is the only evidence: a record's age and the topic's retention time give the earliest deletion,
    but a log also loses whole segments by size, or by deleted records. So there is no warning while
    nothing is deleted, however close a range is to the beginning. The warning comes too late if one
    segment, deleted at once, spans the whole distance.

    ``first`` and ``now`` are the earliest offsets then and now; partitions missing in either are
    ignored.
    """
    return tuple(
        offsets
        for offsets in ranges
        if (tp := offsets.topic_partition) in first
        and tp in now
        and first[tp] < now[tp]
        and offsets.start - now[tp] <= _LEFT * (offsets.start - first[tp])
    )


class RetentionWatch:
    """Stores the earliest offsets for the open batches, and warns of each batch once."""

    def __init__(self) -> None:
        self._first: dict[str, Earliest] = {}
        self._warned: set[str] = set()

    def look(
        self, batches: Sequence[OpenBatch], earliest: Earliest
    ) -> list[tuple[OpenBatch, tuple[OffsetRange, ...]]]:
        """Return the batches to warn of now, with the ranges that retention nears.

        Args:
            batches: All open batches; other batches are forgotten.
            earliest: The earliest available offset of each partition of the batches.
        """
        self._first = {
            batch.batch_key: self._first.get(batch.batch_key) or _own(batch, earliest)
            for batch in batches
        }
        self._warned &= self._first.keys()
        warnings = []
        for batch in batches:
            if batch.batch_key in self._warned:
                continue
            first = self._first[batch.batch_key]
            near = near_retention((planned.offsets for planned in batch.ranges), first, earliest)
            if near:
                self._warned.add(batch.batch_key)
                warnings.append((batch, near))
        return warnings


def _own(batch: OpenBatch, earliest: Earliest) -> Earliest:
    partitions = {planned.offsets.topic_partition for planned in batch.ranges}
    return {tp: earliest[tp] for tp in partitions if tp in earliest}
