"""Values that the ledger stores and returns. All times are ms since the epoch.

The key of a batch is a hash of its gate, its checkpoint id and its ranges. Every run of the same
ranges has the same key, and no other batch has this key. So a sink that stores records under the
key stores them once. The hash includes topic ids, so the same offsets of a recreated topic have
another key.
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

    The function is pure, so every process that knows a batch's ranges can compute the key. The
    planner takes the ranges from its plan, and the listener from the offsets of a progress event.
    The order of the ranges makes no difference, and empty ranges are ignored.

    A query with a new checkpoint has another ``checkpoint_id``, so the same offsets get another
    key. ``topic_ids`` has the known topic ids by name. A recreated topic has another id, so its
    offsets get other keys too.
    """
    read = sorted((r.topic, r.partition, r.start, r.until) for r in ranges if r.count)
    ids = sorted((topic, topic_ids[topic]) for topic in {r[0] for r in read} & topic_ids.keys())
    named = [gate, checkpoint_id, read, ids] if ids else [gate, checkpoint_id, read]
    canonical = json.dumps(named, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()[:32]


def part_key(batch: str, path: str) -> str:
    """Return the key of a part of a batch; for an empty path, the key of the batch.

    The separator is a point because sinks use keys as folder names.

    >>> part_key("5d41", ""), part_key("5d41", "01")
    ('5d41', '5d41.01')
    """
    return f"{batch}.{path}" if path else batch


def part_of(key: str) -> tuple[str, str]:
    """Split a key into the batch's key and the part's path: the inverse of `part_key`."""
    batch, _, path = key.partition(".")
    return batch, path


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range of a planned batch, and facts about its partition at the time of the plan."""

    offsets: OffsetRange
    latest: int | None = None
    """Latest offset of the partition when the batch was planned."""
    reason: str | None = None
    """Limit that determined the number of offsets in the range."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if unknown."""


def without(
    planned: Sequence[PlannedRange], cover: Iterable[OffsetRange]
) -> tuple[PlannedRange, ...]:
    """Subtract the ranges of ``cover`` from planned ranges; return the remaining ranges."""
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
    """Plan of a batch, made before any of the batch's data is read."""

    gate: str
    checkpoint_id: str
    """Id of the query's checkpoint, which is part of the batch key: see
    :func:`headrace.gate.ledger.batch_key`."""
    ranges: tuple[PlannedRange, ...]
    reason: str
    """Limit that determined the number of offsets in the batch."""
    bootstrap_servers: str
    """Kafka brokers from which a backfill can read the ranges again."""
    lag: int | None = None
    """Number of unread offsets in all partitions when the batch was planned."""
    rate_per_s: float | None = None
    """Rate in force when the batch was planned (records/s); None before a rate was learnt."""
    bytes: int | None = None
    """Approximate size of the batch (bytes); None if record sizes were not measured."""

    @property
    def batch_key(self) -> str:
        """The key of the batch: see `batch_key`."""
        topic_ids = {
            planned.offsets.topic: planned.topic_id
            for planned in self.ranges
            if planned.topic_id is not None
        }
        ranges = (planned.offsets for planned in self.ranges)
        return batch_key(self.gate, self.checkpoint_id, ranges, topic_ids)

    @property
    def records(self) -> int:
        """Number of offsets in all ranges.

        Compacted topics have fewer records than offsets, so this is an upper bound of the records.
        """
        return sum(planned.offsets.count for planned in self.ranges)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A row of ``batch``: one batch, its plan and its outcome."""

    batch_key: str
    gate: str
    checkpoint_id: str
    status: Status
    attempts: int
    """Number of attempts to process the batch, including a running attempt."""
    created_time_ms: int
    """Time at which the batch was planned. It is later than the time of the gate's previous
    batch."""
    reason: str
    planned_records: int
    lag: int | None
    rate_per_s: float | None
    query_batch_id: int | None = None
    """Spark's number of the batch; None until Spark has run the batch."""
    start_time_ms: int | None = None
    """Start time of the newest attempt."""
    end_time_ms: int | None = None
    """End time of the newest attempt that succeeded or failed."""
    records: int | None = None
    """Number of processed records; None until they are counted."""
    error: ErrorReport | None = None
    """Error of the newest failed attempt."""
    owner: str | None = None
    """Id of the run of a query or a backfill that processes the batch; None if the batch has no
    owner."""
    lease_until_ms: int | None = None
    """End of the owner's lease; afterwards any process may claim the batch."""
    resolution: str | None = None
    """Reason why a dead batch needs no more attention; None if the batch is not dead, or needs
    attention."""
    backfills: int = 0
    """Number of failed backfills of the batch; each backfill also counts as an attempt."""
    outcome_unknown: bool = False
    """Whether a crash or a stop has interrupted an attempt of a failed batch, so that the batch's
    records may be in the sink. If False, the handler raised an exception in every failed
    attempt."""
    planned_bytes: int | None = None
    """Approximate size of the planned batch (bytes); None if record sizes were not measured."""
    retry_ms: int | None = None
    """Time at which an operator asked for an immediate backfill. The request is in force if this
    time is later than the end of the newest attempt."""
    progress: str | None = None
    """Text of the batch's `Progress`: its finished and open parts. None while the batch runs as a
    whole."""
    done_records: int = 0
    """Number of offsets in the finished parts of ``progress``."""

    @property
    def parts(self) -> Progress:
        """The finished and open parts of the batch, parsed from ``progress``.

        Raises:
            LedgerError: The text in ``progress`` is malformed, or belongs to another batch.
        """
        if self.progress is None:
            return Progress()
        return Progress.from_text(self.progress, self.planned_records, self.batch_key)

    @property
    def records_left(self) -> int:
        """Number of offsets that are not processed yet; 0 for a successful batch."""
        return 0 if self.status is Status.SUCCESS else self.planned_records - self.done_records

    def open_ranges(self, planned: Sequence[PlannedRange]) -> tuple[PlannedRange, ...]:
        """Subtract the finished parts from the planned ranges; return the remaining ranges.

        Raises:
            LedgerError: The text in ``progress`` is malformed, or belongs to another batch.
        """
        offsets = [planned_range.offsets for planned_range in planned]
        return without(planned, (r for part in self.parts.done for r in ranges_of(offsets, part)))

    @property
    def interrupted(self) -> bool:
        """Whether the batch failed because its query was stopped; the next start runs it again."""
        return was_interrupted(self.status, self.error)


def was_interrupted(status: Status | None, error: ErrorReport | None) -> bool:
    """Return whether a batch with this status and error failed because its query was stopped."""
    return status is Status.FAILED and error is not None and error.error_class == QUERY_STOPPED


@dataclass(frozen=True, slots=True)
class Attached:
    """A batch that an owner is about to run, with its ranges, from one consistent read.

    Ranges are ordered by topic, partition and offset. ``sequence`` is the number of this run of the
    gate's handler, and is above the number of every earlier run.
    """

    batch: BatchRecord
    ranges: tuple[PlannedRange, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class GateRecord:
    """A row of ``gate``: the declaration of a gate, its current rate and its last query."""

    name: str
    interval_ms: int
    source: str
    """Kind of source from which the gate admits records, such as ``kafka``."""
    estimator: str
    created_ms: int
    rate_per_s: float | None
    """Newest learnt rate (records/s); None before a rate is learnt."""
    rate_time_ms: int | None
    """Time at which the newest rate was learnt."""
    batch_cost: str | None = None
    """Text of the `SourceCost` of a batch; None while the cost is unknown."""
    size_ceiling: str | None = None
    """Text of the `SizeCeiling`, the largest batch that the handler can process; None if no batch
    has failed because of its size."""
    ended_ms: int | None = None
    """Time at which the gate's last query ended, as the query's program reported; None while a
    query runs, or if no end was reported."""
    ended: str | None = None
    """`QueryEnd` of the gate's last query, as text."""
    ended_error: str | None = None
    """For a failed query, the first line of its error; for a stopped query, the person who stopped
    it and the reason."""
    sink_outage: str | None = None
    """Text of the `SinkOutage` during which the gate holds a batch; None without an outage."""
    gate_id: str = ""
    """Random id of the row. Each checkpoint of the gate stores the id, so that a query detects a
    checkpoint that was written with another ledger."""

    @property
    def waits(self) -> SinkOutage | None:
        """The sink outage during which the gate holds a batch; None if no outage is known."""
        return SinkOutage.from_text(self.sink_outage)


class QueryEnd(StrEnum):
    """Kind of a query's end, as the query's program reported it."""

    FINISHED = "finished"
    """The query processed all available records and ended, as with the trigger ``availableNow``."""
    STOPPED = "stopped"
    """The query's program stopped the query, or the program itself ended."""
    FAILED = "failed"
    """An exception ended the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMoment(GateRecord):
    """A gate's row at one moment, with its limits, its query and its newest batch."""

    lost_offsets: int
    pruned_totals: str | None
    """Text with the totals of the gate's deleted batches;
    `headrace.gate.ledger.moments.pruned_counts` parses it."""
    reported: str | None
    """Key of the batch from which the rate was learnt; None before the first report."""
    begins: int
    """Number of times that Spark has requested a batch. If the number has decreased, an older copy
    of the ledger was restored."""
    has_query: bool
    """Whether a query owns the gate under a lease in force."""
    rate_limit: RateLimit | None
    """Rate limit that a downstream stage has set; None if no stage throttles the gate."""
    operator: OperatorLimits
    """Pause, limit, drain and stop that operators have set."""
    capacity_per_s: float | None
    """Processing rate of the last reported batch (records/s)."""
    planned_ms: int | None
    """Time at which the newest batch was planned. This field and all later fields are None if the
    gate has no batch."""
    checkpoint_id: str | None
    position: int | None
    """Number of offsets that the newest batch's checkpoint has planned so far."""
    lag: int | None
    planned: int | None

    @property
    def ceiling(self) -> SizeCeiling | None:
        """The largest batch that the handler can process; None if no batch was too large so far."""
        return known_ceiling(self.size_ceiling)


@dataclass(frozen=True, slots=True)
class RateSample:
    """A row of ``rate``: measurements of one batch, and the rate that the law learnt from them."""

    gate: str
    time_ms: int
    rate_per_s: float | None
    """New rate (records/s); None if the law returned no rate, and the previous rate stays in
    force."""
    records: int
    processing_delay_ms: int
    scheduling_delay_ms: int
    processing_rate_per_s: float | None = None
    proportional: float | None = None
    """Contribution of the proportional PID term to the new rate (records/s). ``integral`` and
    ``derivative`` are contributions too."""
    integral: float | None = None
    derivative: float | None = None
    query_batch_id: int | None = None
    batch_key: str | None = None
    """Key of the measured batch."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of ``lost``: offsets that were gone from the source before a batch read them."""

    gate: str
    time_ms: int
    offsets: OffsetRange
    """Lost offsets: from the position of the gate to the first readable offset."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""
    batch_key: str | None = None
    """Key of the batch that could not read the offsets; None if they were gone before a batch was
    planned."""
    reason: str | None = None
    """Reason why the offsets could not be read."""
    checkpoint_id: str | None = None
    """Id of the checkpoint of the batch in ``batch_key``; None without such a batch, or if the
    batch's row was pruned."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A range of a gate's batch, processed or not."""

    checkpoint_id: str
    batch_key: str | None
    """Key of the batch; None if the range was processed and the batch's row was pruned."""
    status: Status
    offsets: OffsetRange
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Numbers of a gate's failures that still need attention.

    ``failed`` counts batches that wait for a backfill or run in a backfill. ``dead`` counts dead
    batches that were not dropped. ``letters`` counts waiting dead letters.
    """

    failed: int = 0
    dead: int = 0
    letters: int = 0


@dataclass(frozen=True, slots=True)
class Processed:
    """The first offset of a partition that a gate still needs.

    Attributes:
        gate: Name of the gate.
        partition: Number of the partition, or of the journal's lane.
        until: First offset that the gate still needs. Lower offsets are processed, or lie before
            the gate's start. 0 if the gate's newest checkpoint has read nothing of the partition,
            and may start at its beginning.
        batch_key: Key of the existing batch that begins at ``until`` and may have to be read again.
            None if the next new batch will begin at ``until``.
        status: Status of the batch in ``batch_key``. A ``success`` is the gate's last batch: after
            a crash, Spark may request that batch again.
    """

    gate: str
    partition: int
    until: int
    batch_key: str | None = None
    status: Status | None = None


class DeadLetterStatus(StrEnum):
    """Status of a dead letter: ``waiting``, or one of the final ``sent`` and ``dropped``."""

    WAITING = "waiting"
    SENT = "sent"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A complete record that cannot be processed, with its error."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    """Kafka headers in their order; None if the query did not read headers."""
    timestamp_ms: int
    timestamp_type: int
    """Kafka's timestamp type: 0 if the producer set the time, 1 if the broker set the time."""
    error: ErrorReport


@dataclass(frozen=True, slots=True)
class Rejected:
    """Consecutive records of a batch that became dead letters with the same error."""

    checkpoint_id: str
    batch_key: str
    offsets: OffsetRange
    error: ErrorReport
    """Error of all records in the range, without a trace."""
    topic_id: str | None = None
    """Id that distinguishes the topic from a recreated topic of the same name; None if the
    broker reports no id."""

    def is_followed_by(self, other: "Rejected") -> bool:
        """Return whether ``other`` begins where this range ends, with the same batch and error."""
        mine, following = self.offsets, other.offsets
        return (
            (mine.topic_partition, mine.until) == (following.topic_partition, following.start)
            and self.batch_key == other.batch_key
            and self.error == other.error
        )


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A row of ``dead_letter``: a dead letter, its batch and its resolution."""

    dead_letter_id: int
    batch_key: str
    """Key of the batch that contained the record."""
    gate: str
    letter: DeadLetter
    created_ms: int
    status: DeadLetterStatus
    resolved_ms: int | None
    """Time at which the letter was sent or dropped; None for a waiting letter."""
    resolution: str | None
    """For a sent letter, the target; for a dropped letter, the reason. None for a waiting
    letter."""
    sent_value: bytes | None = None
    """Value that was sent in place of the letter's own value; None if the own value was sent."""


_OF_BATCH: Final = frozenset(field.name for field in fields(BatchRecord))


def batch_from(row: Mapping[Any, Any]) -> BatchRecord:
    """Convert a row of ``batch`` to a `BatchRecord`; additional columns are ignored."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name in _OF_BATCH}
    error = None
    if row["error_class"] is not None:
        error = ErrorReport(row["error_class"], row["error_message"], row["error_trace"])
    values["status"] = Status(values["status"])
    values["outcome_unknown"] = bool(values["outcome_unknown"])  # SQLite returns a number
    return BatchRecord(**values, error=error)


def range_from(row: Sequence[Any]) -> PlannedRange:
    """Convert a row of ``batch_range`` to a `PlannedRange`."""
    topic, partition, start, until, latest, reason, topic_id = row
    return PlannedRange(OffsetRange(topic, partition, start, until), latest, reason, topic_id)


def range_rows(batch: PlannedBatch) -> list[dict[str, Any]]:
    """Convert the non-empty ranges of a batch to rows of ``batch_range``."""
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
