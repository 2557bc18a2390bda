"""Values of a gate's snapshot: batches, partitions, receivers, query and isolation."""

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
"""If more batches than this were isolated, the gate's snapshot has advice about bad records."""

_REASON_LENGTH: Final = 70
"""A sentence quotes at most this many characters of an exception's message."""


@dataclass(frozen=True, slots=True)
class ReceiverSnapshot:
    """State of a receiver at one moment. A lane has one receiver.

    Attributes:
        journal: The journal's name.
        lane: Number of the journal's lane to which the receiver writes.
        state: State of the receiver: a value of `ReceiverState`.
        limit_per_s: Largest rate that the receiver admits (records/s); None if it has no limit.
        records_per_s: Present rate of records that become durable (records/s).
        records: Number of records that became durable since the receiver's start.
        bytes: Size of the keys, values and headers of these ``records`` (bytes).
        buffered_bytes: Memory of the received records that are not durable yet (bytes).
        waiting_records: Number of buffered records that wait because of the rate limit.
        refusing: Reason why all senders wait, if it is not the rate limit; else None.
        rejected: Number of rejected requests and senders, by kind.
        started_ms: Time of the receiver's start (ms since the epoch).
        seen_ms: Time of the receiver's last heartbeat (ms since the epoch).
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
        """Compute a receiver's snapshot from its record in the ledger."""
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
    """State of a batch at one moment.

    Attributes:
        id: The batch's number in Spark; None before its first run.
        status: Status in the ledger, or ``interrupted`` if the query was stopped during the batch.
        records: Number of the batch's records; until they are counted, the number of its offsets.
        duration_ms: Duration of the batch, or time since its start while it runs. Includes
            planning and commit once Spark has reported the batch.
        planned_ms: Time of the plan (ms since the epoch).
        lost: Number of offsets that were gone from the source when the batch read them.
        key: Batch key, with which `headrace batches` shows the batch in full.
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
        """Whether the batch has not ended."""
        return self.status in (Status.IN_PROGRESS, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition of a gate's last batch.

    ``lag`` is the number of records that waited at the plan, and ``admitted`` the number that the
    batch admitted. ``lag`` and ``reason`` are None for a batch that was planned before a restart.
    """

    topic: str
    partition: int
    lag: int | None
    admitted: int
    reason: str | None

    @property
    def left(self) -> int | None:
        """Number of waiting records that the batch did not admit; None if not known."""
        return None if self.lag is None else max(self.lag - self.admitted, 0)

    @classmethod
    def of(cls, planned: PlannedRange) -> Self:
        """Compute a partition's snapshot from its planned range."""
        offsets = planned.offsets
        lag = None if planned.latest is None else max(planned.latest - offsets.start, 0)
        return cls(offsets.topic, offsets.partition, lag, offsets.count, planned.reason)


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """A gate's running query, or its last query if this query ended without reporting its end."""

    program: str
    """Process and machine of the query."""
    checkpoint: str | None
    """Path of the query's checkpoint; None if the query's program has not reported it."""
    since_ms: int
    """Time at which the query claimed the gate (ms since the epoch)."""
    ended_ms: int | None = None
    """If the query ended without reporting its end, the time of its last sign of life (ms since the
    epoch). None while the query runs."""

    @classmethod
    def of(cls, history: GateHistory) -> Self | None:
        """Return the running query; or the last query, if it did not report its end; or None."""
        query = history.query or history.gone
        if query is None:
            return None
        ended_ms = query.until_ms - GATE_LEASE_MS if history.query is None else None
        return cls(query.described, query.checkpoint, query.since_ms, ended_ms)


@dataclass(frozen=True, slots=True)
class IsolatingSnapshot:
    """Progress of a batch that is isolated: run in parts to find its bad records.

    Attributes:
        batch_key: Key of the batch.
        records: Number of the batch's offsets.
        runs: Number of times that the handler has been called with a part of the batch.
        left: Number of the batch's offsets that are not done.
    """

    batch_key: str
    records: int
    runs: int
    left: int

    @classmethod
    def of(cls, batch: BatchRecord) -> Self:
        """Return the progress of a batch that is isolated."""
        return cls(batch.batch_key, batch.planned_records, batch.parts.runs, batch.records_left)


@dataclass(frozen=True, slots=True)
class IsolatedSnapshot:
    """Summary of the batches that were isolated (run in parts) among a gate's last batches.

    The handler raised either on single records, or on whole batches but not on their parts.
    """

    batches: int
    """Number of isolated batches."""
    of: int
    """Number of the last batches that were examined, isolated or not."""
    error: str
    """The handler's last error: the beginning of its message, and its class."""

    @classmethod
    def among(
        cls, batches: Sequence[BatchRecord], isolated: Mapping[str, ErrorReport]
    ) -> Self | None:
        """Return a summary of the isolated batches among ``batches``; None without any."""
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
        """Whether the isolated batches fail only as a whole, while all of their parts pass."""
        return self.error.startswith(FAILS_AS_A_WHOLE)

    @property
    def advice(self) -> str | None:
        """Advice on finding bad records with fewer runs; None for `MANY` batches or fewer."""
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
    """Return the snapshots of a gate's last batches, newest first."""
    reported = {
        sample.batch_key: sample.processing_delay_ms
        for sample in history.samples
        if sample.batch_key
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
