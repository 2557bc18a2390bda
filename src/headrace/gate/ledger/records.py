"""Values that the ledger stores and returns. Times are ms since the epoch.

A batch's key is a hash of its gate, its checkpoint id and its ranges. Every run of the same ranges
has the same key, and no other batch has this key. So a sink that writes under the key writes once.
The key includes the topic's id: the same offsets of a recreated topic are another batch.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from headrace.core.ranges import OffsetRange, merge
from headrace.gate.control.hold import SinkOutage
from headrace.gate.control.limits import OperatorLimits
from headrace.gate.control.parts import Progress, ranges_of
from headrace.gate.control.pressure import RateLimit
from headrace.gate.control.size_ceiling import SizeCeiling, known_ceiling
from headrace.gate.ledger.error_report import QUERY_STOPPED, ErrorReport
from headrace.gate.ledger.transitions import Status


def batch_key(
    gate: str,
    checkpoint_id: str,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the key of the batch of a gate that reads these ranges: 32 hexadecimal digits.

    The function is pure, so every process that knows a batch's ranges finds its row in the ledger.
    The planner knows the ranges from its plan, the listener from the offsets of a progress event.
    The order of the ranges makes no difference, and empty ranges are ignored.

    A fresh ``checkpoint_id`` reads the same offsets again on purpose, as another batch.
    ``topic_ids`` has the known ids of topics, by name: a recreated topic has the same offsets
    again, in other batches.
    """
    read = sorted((r.topic, r.partition, r.start, r.until) for r in ranges if r.count)
    ids = sorted((topic, topic_ids[topic]) for topic in {r[0] for r in read} & topic_ids.keys())
    named = [gate, checkpoint_id, read, ids] if ids else [gate, checkpoint_id, read]
    canonical = json.dumps(named, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()[:32]


def part_key(batch: str, path: str) -> str:
    """Return the key of a part of a batch; the batch's own key for the whole.

    The separator is a point, because sinks also name folders after keys.

    >>> part_key("5d41", ""), part_key("5d41", "01")
    ('5d41', '5d41.01')
    """
    return f"{batch}.{path}" if path else batch


def part_of(key: str) -> tuple[str, str]:
    """Return the batch and the part of a key: the inverse of `part_key`."""
    batch, _, path = key.partition(".")
    return batch, path


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range of a batch, and its partition's data in the plan."""

    offsets: OffsetRange
    latest: int | None = None
    """The partition's latest offset when the batch was planned."""
    reason: str | None = None
    """Limit that determined the partition's range."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if unknown."""


def without(
    planned: Sequence[PlannedRange], cover: Iterable[OffsetRange]
) -> tuple[PlannedRange, ...]:
    """Return the offsets of planned ranges that are outside of a cover."""
    merged = merge(cover)
    return tuple(
        replace(planned_range, offsets=left)
        for planned_range in planned
        for left in planned_range.offsets.subtract(
            merged.get(planned_range.offsets.topic_partition, ())
        )
    )


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch as planned, before any of its data is read."""

    gate: str
    checkpoint_id: str
    """Identity of the checkpoint: see :func:`headrace.gate.ledger.batch_key`."""
    ranges: tuple[PlannedRange, ...]
    reason: str
    """Limit that determined the size of the batch."""
    bootstrap_servers: str
    """Brokers from which the ranges can be read again."""
    lag: int | None = None
    """Unread offsets of all partitions before this batch."""
    rate_per_s: float | None = None
    """Rate that was in force."""
    bytes: int | None = None
    """Approximate size of the batch; None if the records' sizes were not measured."""

    @property
    def batch_key(self) -> str:
        """The key of the batch's row."""
        topic_ids = {
            planned.offsets.topic: planned.topic_id
            for planned in self.ranges
            if planned.topic_id is not None
        }
        ranges = (planned.offsets for planned in self.ranges)
        return batch_key(self.gate, self.checkpoint_id, ranges, topic_ids)

    @property
    def records(self) -> int:
        """Offsets in all ranges: an upper bound of the records, because compaction leaves gaps."""
        return sum(planned.offsets.count for planned in self.ranges)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A row of ``batch``: one batch, its plan and its outcome."""

    batch_key: str
    gate: str
    checkpoint_id: str
    status: Status
    attempts: int
    """Number of attempts begun."""
    created_time_ms: int
    """Time of the plan; above the created time of the gate's previous batch."""
    reason: str
    planned_records: int
    lag: int | None
    rate_per_s: float | None
    query_batch_id: int | None = None
    """The engine's own number for the batch, once the engine has run the batch."""
    start_time_ms: int | None = None
    """Start of the newest attempt."""
    end_time_ms: int | None = None
    """End of the newest attempt that succeeded or failed."""
    records: int | None = None
    """Records processed, once they have been counted."""
    error: ErrorReport | None = None
    """Error of the newest attempt that failed."""
    owner: str | None = None
    """Owner that runs the batch: one run of a query, or of a backfill; None if there is no
    owner."""
    lease_until_ms: int | None = None
    """End of the owner's lease; afterwards any process may claim the batch."""
    resolution: str | None = None
    """Reason why a dead batch no longer needs attention."""
    backfills: int = 0
    """Number of failed backfills of the batch; each also counts as an attempt."""
    outcome_unknown: bool = False
    """Whether a failed batch may be in its sink, because a crash or a stop interrupted one of
    its runs. If False, every failed run has raised by itself."""
    planned_bytes: int | None = None
    """Approximate planned size; None if the records' sizes were not measured."""
    retry_ms: int | None = None
    """Time at which an operator asked for the next backfill at once. A time after the batch's
    end is in force."""
    progress: str | None = None
    """Finished and open parts (`Progress`), as text; None while the batch is run as a whole."""
    done_records: int = 0
    """Number of offsets finished according to ``progress``."""

    @property
    def parts(self) -> Progress:
        """Progress of the batch's parts.

        Raises:
            LedgerError: The text is not a progress, or belongs to another batch.
        """
        if self.progress is None:
            return Progress()
        return Progress.from_text(self.progress, self.planned_records, self.batch_key)

    @property
    def records_left(self) -> int:
        """Number of unfinished offsets."""
        return 0 if self.status is Status.SUCCESS else self.planned_records - self.done_records

    def open_ranges(self, planned: Sequence[PlannedRange]) -> tuple[PlannedRange, ...]:
        """Return the unfinished offsets of the batch's ranges.

        Raises:
            LedgerError: The text of ``progress`` is not a progress.
        """
        offsets = [planned_range.offsets for planned_range in planned]
        return without(planned, (r for part in self.parts.done for r in ranges_of(offsets, part)))

    @property
    def interrupted(self) -> bool:
        """Whether a stop of the query interrupted the batch; the query's next start runs it."""
        return was_interrupted(self.status, self.error)


def was_interrupted(status: Status | None, error: ErrorReport | None) -> bool:
    """Return whether a batch with this status and error failed because its query was stopped."""
    return status is Status.FAILED and error is not None and error.error_class == QUERY_STOPPED


@dataclass(frozen=True, slots=True)
class Attached:
    """Data that the owner of a batch needs to run it, from one consistent read.

    Ranges are by topic, partition and offset. The sequence numbers this run of the gate's handler;
    the number is above every earlier number.
    """

    batch: BatchRecord
    ranges: tuple[PlannedRange, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class GateRecord:
    """A row of ``gate``: one gate, as declared, and its current rate."""

    name: str
    interval_ms: int
    source: str
    """Kind of source from which the gate admits records, such as ``kafka``."""
    estimator: str
    created_ms: int
    rate_per_s: float | None
    """Newest learnt rate; None before the first."""
    rate_time_ms: int | None
    """Time at which the rate was learnt."""
    batch_cost: str | None = None
    """Known cost of a batch (`SourceCost`), as text; None while it is unknown."""
    size_ceiling: str | None = None
    """Largest batch that the handler takes (`SizeCeiling`), as text; None if no batch has failed
    because of its size."""
    ended_ms: int | None = None
    """End of the gate's last query, as its program reported; None while a query runs, or if no
    query has reported an end."""
    ended: str | None = None
    """How the last query ended: a `QueryEnd`."""
    ended_error: str | None = None
    """First line of the error that ended the query; for a stopped query, who stopped it and why."""
    sink_outage: str | None = None
    """State of the sink for which the gate's batch waits, as text."""
    gate_id: str = ""
    """Random id of the row; a checkpoint stores it, and so knows the ledger of its query."""

    @property
    def waits(self) -> SinkOutage | None:
        """Outage of the gate's sink; None if no outage is known."""
        return SinkOutage.from_text(self.sink_outage)


class QueryEnd(StrEnum):
    """Way in which a query ended, as its program reported."""

    FINISHED = "finished"
    """The query ended by itself: its trigger ends once all available records are read, such as
    ``availableNow``."""
    STOPPED = "stopped"
    """The query's program stopped the query, or ended."""
    FAILED = "failed"
    """The query ended by an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMoment(GateRecord):
    """A gate at one moment, with its settings in force and its newest batch."""

    lost_offsets: int
    pruned_totals: str | None
    """Counts of deleted batches, as text: see `headrace.gate.ledger.moments.pruned_counts`."""
    reported: str | None
    """The batch from which the rate was learnt; None before the first report."""
    begins: int
    """Number of the engine's requests for a batch; a lower number means that an older ledger was
    restored."""
    has_query: bool
    """Whether a query owns the gate."""
    rate_limit: RateLimit | None
    """Rate limit set by a downstream stage; None without a throttle."""
    operator: OperatorLimits
    """Operators' settings in force."""
    capacity_per_s: float | None
    """Processing rate of the last reported batch."""
    planned_ms: int | None
    """Time of the newest batch's plan; this and all later fields are None without a batch."""
    checkpoint_id: str | None
    position: int | None
    """Number of offsets that the batch's checkpoint has planned so far."""
    lag: int | None
    planned: int | None

    @property
    def ceiling(self) -> SizeCeiling | None:
        """Largest batch that the handler takes; None if no batch has failed because of its size."""
        return known_ceiling(self.size_ceiling)


@dataclass(frozen=True, slots=True)
class RateSample:
    """A row of ``rate``: the estimator's input from one batch, and its result."""

    gate: str
    time_ms: int
    rate_per_s: float | None
    """New rate; None if the law returned no rate, and the current rate stays in force."""
    records: int
    processing_delay_ms: int
    scheduling_delay_ms: int
    processing_rate_per_s: float | None = None
    proportional: float | None = None
    """The law's terms that were subtracted from the previous rate, in records per second."""
    integral: float | None = None
    derivative: float | None = None
    query_batch_id: int | None = None
    batch_key: str | None = None
    """The measured batch; its number of records is stored with the sample."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of ``lost``: offsets that were gone from the source before a batch read them."""

    gate: str
    time_ms: int
    offsets: OffsetRange
    """Offsets from the lost position to the first readable offset."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""
    batch_key: str | None = None
    """The batch that could not read the offsets; None if they were gone before a batch was
    planned."""
    reason: str | None = None
    """Reason why the offsets could not be read."""
    checkpoint_id: str | None = None
    """Checkpoint of the batch; None if there is no batch, or its row was pruned."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A range that a gate's batches have read, or are to read."""

    checkpoint_id: str
    batch_key: str | None
    """The batch; None if its row was pruned, and the range was processed."""
    status: Status
    offsets: OffsetRange
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Numbers of a gate's unresolved failures.

    Counted are batches that wait for a backfill or are in one (``failed``), dead batches that were
    not dropped (``dead``), and waiting dead letters (``letters``).
    """

    failed: int = 0
    dead: int = 0
    letters: int = 0


@dataclass(frozen=True, slots=True)
class Processed:
    """Progress of a gate in a partition.

    Attributes:
        gate: The gate.
        partition: The partition, or the lane.
        until: First offset that the gate still needs. Lower offsets are done, or below the gate's
            start. 0 if the gate's newest run has read nothing of the partition, and so may begin at
            its beginning.
        batch_key: The batch that begins at ``until`` and may have to be read again. None if the
            next batch begins there.
        status: Status of that batch. If ``success``, the batch is the gate's last one. After a
            crash before the end was recorded, the engine requests this batch again.
    """

    gate: str
    partition: int
    until: int
    batch_key: str | None = None
    status: Status | None = None


class DeadLetterStatus(StrEnum):
    """Status of a dead letter; ``sent`` and ``dropped`` are final."""

    WAITING = "waiting"
    SENT = "sent"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A whole record that cannot be processed, and the error."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    """Headers in their order; None if they were not read."""
    timestamp_ms: int
    timestamp_type: int
    """Kafka's timestamp type: 0 if the producer set the time, 1 if the broker did."""
    error: ErrorReport


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records of a batch that are dead letters: its handler rejected them, or raised on each."""

    checkpoint_id: str
    batch_key: str
    offsets: OffsetRange
    error: ErrorReport
    """The reason, without a trace."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""

    def is_followed_by(self, other: "Rejected") -> bool:
        """Return whether another range continues this one, for the same batch and reason."""
        mine, following = self.offsets, other.offsets
        return (
            (mine.topic_partition, mine.until) == (following.topic_partition, following.start)
            and self.batch_key == other.batch_key
            and self.error == other.error
        )


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A row of ``dead_letter``."""

    dead_letter_id: int
    batch_key: str
    """The batch of the record."""
    gate: str
    letter: DeadLetter
    created_ms: int
    status: DeadLetterStatus
    resolved_ms: int | None
    """Time at which the letter was sent or dropped."""
    resolution: str | None
    """Target of a sent letter, or the reason for a drop."""
    sent_value: bytes | None = None
    """Value that was sent instead of the letter's value; None if the letter's value was sent."""


_OF_BATCH: Final = frozenset(field.name for field in fields(BatchRecord))


def batch_from(row: Mapping[Any, Any]) -> BatchRecord:
    """Return the batch of a row of ``batch``; additional columns are ignored."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name in _OF_BATCH}
    error = None
    if row["error_class"] is not None:
        error = ErrorReport(row["error_class"], row["error_message"], row["error_trace"])
    values["status"] = Status(values["status"])
    values["outcome_unknown"] = bool(values["outcome_unknown"])  # SQLite returns a number
    return BatchRecord(**values, error=error)


def range_from(row: Sequence[Any]) -> PlannedRange:
    """Return the range of a row of ``batch_range``."""
    topic, partition, start, until, latest, reason, topic_id = row
    return PlannedRange(OffsetRange(topic, partition, start, until), latest, reason, topic_id)


def range_rows(batch: PlannedBatch) -> list[dict[str, Any]]:
    """Return a row of ``batch_range`` for each range of a batch that has offsets."""
    key = batch.batch_key  # computed once, from all ranges
    return [
        {
            "batch_key": key,
            "topic": planned.offsets.topic,
            "partition": planned.offsets.partition,
            "start_offset": planned.offsets.start,
            "until_offset": planned.offsets.until,
            "bootstrap_servers": batch.bootstrap_servers,
            "latest_offset": planned.latest,
            "reason": planned.reason,
            "topic_id": planned.topic_id,
        }
        for planned in batch.ranges
        if planned.offsets.count
    ]
