"""The failed batches of a gate, kept in memory, and the events of backfills.

The module also warns before Kafka deletes the records of a failed batch.

An event is an object whose text is the log line. The scheduler passes each event to ``on_event``.
"""

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
    """Event: a backfill has claimed a batch and will run it.

    Attributes:
        batch: The claimed batch.
    """

    level: ClassVar[int] = logging.DEBUG
    batch: BatchRecord

    def __str__(self) -> str:
        return f"{_name(self.batch)} is claimed (attempt {self.batch.attempts + 1})."


@dataclass(frozen=True, slots=True)
class Skipped:
    """Event: a batch was not claimed, because it has another owner or is already resolved.

    Attributes:
        batch_key: The key of the batch.
        status: The present status of the batch; None if the ledger no longer has the batch.
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
                state = "is not run here, because the stream or another backfill has it now"
        return f"Batch {self.batch_key} {state}."


@dataclass(frozen=True, slots=True)
class PartlyDone:
    """Event: parts of a batch were processed. The batch is ``failed``; its other parts run next.

    Attributes:
        batch: The batch as it was claimed.
        left: Number of records that are not processed yet.
    """

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    left: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in part; {_records(self.left)} remain."


@dataclass(frozen=True, slots=True)
class Lost:
    """Event: unprocessed offsets of a batch have left the source, and are lost.

    Attributes:
        batch: The batch as it was claimed.
        ranges: The lost offsets.
        why: The reason of the loss, or a remedy against further losses.
    """

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
    """Event: a backfill has processed a batch, which is now ``success``.

    Attributes:
        batch: The batch as it was claimed.
        elapsed_ms: Duration of the run (ms).
    """

    level: ClassVar[int] = logging.INFO
    batch: BatchRecord
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} was processed in {self.elapsed_ms} ms."


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: a backfill has failed. The batch stays ``failed``, and a later backfill runs it.

    Attributes:
        batch: The batch as it was claimed.
        error: The failure of this backfill.
        elapsed_ms: Duration of the run (ms).
    """

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord
    error: ErrorReport
    elapsed_ms: int

    def __str__(self) -> str:
        return f"{_name(self.batch)} failed again: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class MarkedDead:
    """Event: a batch has become ``dead``, so no backfill runs it again.

    Attributes:
        batch: The batch as it was claimed.
        error: The reason.
    """

    level: ClassVar[int] = logging.ERROR
    batch: BatchRecord
    error: ErrorReport

    def __str__(self) -> str:
        return f"{_name(self.batch)} is dead and will not be processed: {_why(self.error)}"


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Event: the lease of a batch expired during its run, and another owner has the batch now.

    Attributes:
        batch: The batch as it was claimed.
    """

    level: ClassVar[int] = logging.WARNING
    batch: BatchRecord

    def __str__(self) -> str:
        return (
            f"{_name(self.batch)} was run, but its lease expired during the run, so the outcome is"
            " not recorded; the batch's new owner runs it again."
        )


@dataclass(frozen=True, slots=True)
class NearRetention:
    """Event: Kafka may soon delete unprocessed offsets of a failed batch.

    Attributes:
        batch_key: The key of the batch.
        ranges: The offsets that may soon be deleted.
    """

    level: ClassVar[int] = logging.WARNING
    batch_key: str
    ranges: tuple[OffsetRange, ...]

    def __str__(self) -> str:
        return (
            f"Batch {self.batch_key} has failed, and Kafka may soon delete its records: retention"
            f" nears {', '.join(map(str, self.ranges))}; make the topic's retention longer, or"
            " repair the cause of the batch's failure."
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
    """A failed batch that waits for a backfill. Times are ms since the epoch.

    Attributes:
        batch_key: The key of the batch.
        created_time_ms: The time when the batch was planned.
        backfills: Number of failed backfills of the batch.
        ended_ms: The end of the last attempt: the time of its failure, or the expiry of its lease.
        ranges: The batch's unprocessed ranges.
        retry_ms: The time of an operator's request to run the batch at once; None without a
            request.
        done_records: Number of processed offsets of the batch.
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
        """Whether an operator has asked to run the batch since its last attempt ended."""
        return self.retry_ms is not None and self.retry_ms >= self.ended_ms


class Monitor:
    """The failed batches of one gate, read from the ledger and kept in memory.

    The batches are in the order of their creation, the earliest first. Processed batches take no
    memory.

    Args:
        ledger: The gate's ledger.
        gate_name: The gate's name.
        interval_ms: The time between two reads of the ledger (ms); above 0. Default: 5 000. Too
            short: unnecessary load on the ledger. Too long: failed batches are found late.
        limit: Number of batches to keep in memory; 1 or more. Default: 1 000. If there are more
            failed batches, the monitor keeps the earliest ``limit`` batches, and up to ``limit``
            more batches whose wait is over. So batches that always fail cannot block other
            batches, however many they are.
        backoff: The wait of a batch after each failed backfill. Default: `Backoff()`.
        seconds: Function that returns a monotonic time (s).
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
        """Return the batches in memory, the earliest created first."""
        return tuple(self._batches.values())

    def next_ready(self, now_ms: int) -> OpenBatch | None:
        """Return the earliest created batch whose wait is over; None without such a batch."""
        return next((batch for batch in self.batches() if self._is_ready(batch, now_ms)), None)

    def next_asked(self) -> OpenBatch | None:
        """Return the earliest created batch that an operator has asked to run, or None."""
        return next((batch for batch in self.batches() if batch.is_asked), None)

    def keep_up(self) -> None:
        """Read the failed batches if the last read was at least ``interval_ms`` ago.

        Raises:
            LedgerError: The ledger cannot be read. The batches in memory stay.
        """
        if self._read_s is None or (self._seconds() - self._read_s) * 1000 >= self._interval_ms:
            self.refresh()

    def refresh(self) -> None:
        """Read the failed batches from the ledger now.

        If an operator has asked that the gate's next checkpoint reads all records again, no batch
        is kept in memory.

        Raises:
            LedgerError: The ledger cannot be read. The batches in memory stay.
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
        """Whether an operator has asked that the gate's next checkpoint reads all records again."""
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
        """Remove a batch from memory. The batch returns if a later read of the ledger lists it."""
        self._batches.pop(batch_key, None)

    def _is_ready(self, batch: OpenBatch, now_ms: int) -> bool:
        # An end in the future was written while the clock was wrong, so the batch need not wait.
        if batch.ended_ms > now_ms + LONGEST_LEASE_MS:
            return True
        return batch.is_asked or batch.ended_ms + self._backoff.wait_ms(batch.backfills) <= now_ms

    def _ranges(self, row: BatchRecord, known: OpenBatch | None) -> tuple[PlannedRange, ...]:
        if known is not None and known.done_records == row.done_records:
            return known.ranges
        return row.open_ranges(self._ledger.batches.ranges(row.batch_key))

    def _open(self, row: BatchRecord, known: OpenBatch | None, now_ms: int) -> OpenBatch:
        # A backfill with an expired lease has failed, although the ledger does not count it yet
        # (transition H).
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
"""Kafka may soon delete a range if the range's distance from the beginning of the log has shrunk to
this fraction of the distance when the batch was first seen."""


def near_retention(
    ranges: Iterable[OffsetRange], first: Earliest, now: Earliest
) -> tuple[OffsetRange, ...]:
    """Return the ranges that Kafka may soon delete.

    A range is returned if its distance from the beginning of the log has halved since the batch was
    first seen. If Kafka continues at this pace, it deletes the range before the same time has
    passed again. A record's age is not used, because Kafka also deletes records by size and on
    request. While Kafka deletes nothing, no range is returned, even close to the beginning of the
    log. Kafka deletes whole segments: if one segment spans the whole distance, the range is
    deleted before it is returned.

    Args:
        ranges: The unprocessed ranges of a batch.
        first: The earliest offset of each partition when the batch was first seen.
        now: The earliest offset of each partition now. A partition that is missing in ``first`` or
            ``now`` is ignored.
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
    """Finds failed batches whose records Kafka may soon delete, and reports each batch once."""

    def __init__(self) -> None:
        self._first: dict[str, Earliest] = {}
        self._warned: set[str] = set()

    def look(
        self, batches: Sequence[OpenBatch], earliest: Earliest
    ) -> list[tuple[OpenBatch, tuple[OffsetRange, ...]]]:
        """Return the batches that need a warning now, with the ranges that may soon be deleted.

        Args:
            batches: All failed batches of the gate. A batch that is missing here is forgotten.
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
