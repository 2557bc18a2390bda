"""Parts of a gate's snapshot: its batches, partitions, receivers, query and isolation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from headrace.core.timing import GATE_LEASE_MS
from headrace.gate import (
    FAILS_AS_A_WHOLE,
    BatchRecord,
    ErrorReport,
    Loss,
    PlannedRange,
    ReceiverRecord,
    Status,
    lost_records,
)
from headrace.operate.status.states import GateHistory, ReceiverState, batch_time_ms
from headrace.operate.status.words import (
    count,
    planned_or_counted,
    plural,
    short_error,
    status_word,
)

MANY: Final = 10
"""More of a gate's last batches with records that were found bad by exceptions are too many."""

_REASON_LENGTH: Final = 70
"""Characters of an exception's message that a sentence has."""


@dataclass(frozen=True, slots=True)
class ReceiverSnapshot:
    """A receiver, one for each lane.

    Attributes:
        journal: The journal's name.
        lane: Its lane of it.
        state: State of the receiver: a value of `ReceiverState`.
        limit_per_s: Largest rate that it admits (records/s); None is no limit.
        records_per_s: Records that it made durable a second lately.
        records: Records that it made durable since it began.
        bytes: Their keys, values and headers.
        buffered_bytes: The memory that records take which are not durable yet.
        waiting_records: Buffered records that wait for the limit.
        refusing: Reason for which senders wait whatever the limit; None if they need not.
        rejected: Number of requests and senders that it rejected, by kind.
        started_ms: Time of its start (ms since the epoch).
        seen_ms: When it said all this.
    """

    journal: str
    lane: int
    state: ReceiverState
    limit_per_s: float | None
    records_per_s: float
    records: int
    bytes: int
    buffered_bytes: int
    waiting_records: int
    refusing: str | None
    rejected: Mapping[str, int]
    started_ms: int
    seen_ms: int

    @classmethod
    def of(cls, record: ReceiverRecord, now_ms: int) -> Self:
        """Work out a snapshot from the ledger's record."""
        if not record.is_present(now_ms):
            state = ReceiverState.SILENT
        elif record.refusing is not None:
            state = ReceiverState.REFUSING
        elif record.waiting_records:
            state = ReceiverState.LIMITED
        else:
            state = ReceiverState.RECEIVING if record.records_per_s else ReceiverState.IDLE
        same = {name: getattr(record, name) for name in cls.__slots__ if name != "state"}
        return cls(state=state, **same)


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """One batch.

    Attributes:
        id: Spark's number of it; None before it has run.
        status: The ledger's word for where it stands, or ``interrupted`` where its query was
            stopped while it ran.
        records: Its records, or the offsets in it while they have not been counted.
        duration_ms: How long it took (planning and commit included, once Spark has reported it), or
            how long it has been running.
        planned_ms: Time of its plan (ms since the epoch).
        lost: Number of its offsets that were gone when it read them.
        key: By which `headrace batches` shows it in full.
    """

    id: int | None
    status: str
    records: int
    duration_ms: int
    planned_ms: int
    lost: int = 0
    key: str = ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status in (Status.IN_PROGRESS, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition of the last batch: its lag when that was planned, and what was admitted of it.

    ``lag`` and ``reason`` are None for a batch that was planned before a restart.
    """

    topic: str
    partition: int
    lag: int | None
    admitted: int
    reason: str | None

    @property
    def left(self) -> int | None:
        """What the batch left of the lag."""
        return None if self.lag is None else max(self.lag - self.admitted, 0)

    @classmethod
    def of(cls, planned: PlannedRange) -> Self:
        """Work it out from the range that was planned."""
        offsets = planned.offsets
        lag = None if planned.latest is None else max(planned.latest - offsets.start, 0)
        return cls(offsets.topic, offsets.partition, lag, offsets.count, planned.reason)


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """The query behind a gate."""

    program: str
    """Its process and host."""
    checkpoint: str | None
    """Path of its checkpoint; None if its program has not said so."""
    since_ms: int
    """When it took the gate (ms since the epoch)."""
    ended_ms: int | None = None
    """Its last sign of life, if it ended without a finish; None while it runs."""

    @classmethod
    def of(cls, history: GateHistory) -> Self | None:
        """Return the query that runs, or ended without a finish; None if there is none."""
        query = history.query or history.gone
        if query is None:
            return None
        ended_ms = query.until_ms - GATE_LEASE_MS if history.query is None else None
        return cls(query.described, query.checkpoint, query.since_ms, ended_ms)


@dataclass(frozen=True, slots=True)
class IsolatingSnapshot:
    """Progress of an isolation.

    Attributes:
        batch_key: The batch.
        records: The offsets in it.
        runs: How often the handler was called with its parts so far.
        left: Offsets of it that are not done.
    """

    batch_key: str
    records: int
    runs: int
    left: int

    @classmethod
    def of(cls, batch: BatchRecord) -> Self:
        """Return the progress of a batch that is run in parts."""
        return cls(batch.batch_key, batch.planned_records, batch.parts.runs, batch.records_left)


@dataclass(frozen=True, slots=True)
class IsolatedSnapshot:
    """The last batches that were run in parts, because the handler raised on single records.

    Or on none alone: they fail as a whole, and all of their parts pass.
    """

    batches: int
    """Their number."""
    of: int
    """The last batches that were looked at."""
    error: str
    """What the handler raised last: the beginning of its message, and its class."""

    @classmethod
    def among(
        cls, batches: Sequence[BatchRecord], isolated: Mapping[str, ErrorReport]
    ) -> Self | None:
        """Count the isolated ones of a gate's last batches; None if none was isolated."""
        number = sum(batch.batch_key in isolated for batch in batches)
        wholes = [
            batch.error for batch in batches if batch.error is not None and batch.error.is_of_whole
        ]
        if len(wholes) > number:
            error, number = wholes[0], len(wholes)
        elif not isolated:
            return None
        else:
            error = next(iter(isolated.values()))
        reason = error.message.strip().partition("\n")[0]
        most = _REASON_LENGTH + (
            len(FAILS_AS_A_WHOLE) if reason.startswith(FAILS_AS_A_WHOLE) else 0
        )
        if len(reason) > most:
            error = replace(error, message=f"{reason[: most - 1].rstrip()}…")
        return cls(number, len(batches), short_error(error)) if number else None

    @property
    def is_of_wholes(self) -> bool:
        """Whether the batches fail as a whole, and all of their parts pass."""
        return self.error.startswith(FAILS_AS_A_WHOLE)

    @property
    def advice(self) -> str | None:
        """What would find the bad records at less cost; None while few batches were isolated."""
        if self.batches <= MANY:
            return None
        if self.is_of_wholes:
            return (
                f"{count(self.batches)} of the last {plural(self.of, 'batch')} were run in parts:"
                f" {self.error.rstrip('.')}; correct what its records do to each other, such as one"
                " key twice."
            )
        return (
            f"The handler raised on single records in {count(self.batches)} of the last"
            f" {plural(self.of, 'batch')} (last {self.error.rstrip('.')}), and is run many times"
            " to find them: have it batch.reject them, or decode at the source with"
            " gate.read(..., decode=...), as docs/failures.md says."
        )


def batches_of(history: GateHistory, now_ms: int) -> tuple[BatchSnapshot, ...]:
    """Return the last batches of a gate, newest first."""
    reported = {
        each.batch_key: each.processing_delay_ms for each in history.samples if each.batch_key
    }
    lost: dict[str | None, list[Loss]] = defaultdict(list)
    for loss in history.losses:
        lost[loss.batch_key].append(loss)
    return tuple(
        BatchSnapshot(
            id=batch.query_batch_id,
            status=status_word(batch),
            records=planned_or_counted(batch),
            duration_ms=batch_time_ms(batch, reported, now_ms),
            planned_ms=batch.created_time_ms,
            lost=lost_records(lost[batch.batch_key]),
            key=batch.batch_key,
        )
        for batch in history.batches
    )
