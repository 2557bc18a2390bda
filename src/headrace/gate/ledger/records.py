"""Values that the ledger stores and returns. Times are ms since the epoch."""

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
    """Name the batch of a gate that reads these ranges, with 32 hexadecimal digits.

    A pure function, so that everyone who knows a batch's ranges knows its row in the ledger: the
    planner from its plan, the listener from the start and end offsets of a progress event. The
    order of the ranges makes no difference, and empty ranges are as if they were not there.

    Args:
        gate: The gate's name.
        checkpoint_id: The checkpoint's identity. A fresh checkpoint reads the same offsets again on
            purpose, and that is another batch.
        ranges: Ranges of the batch.
        topic_ids: Known ids of topics, by name. A topic that was deleted and recreated has the same
            offsets once more, and those are another batch.
    """
    read = sorted((r.topic, r.partition, r.start, r.until) for r in ranges if r.count)
    ids = sorted((topic, topic_ids[topic]) for topic in {r[0] for r in read} & topic_ids.keys())
    named = [gate, checkpoint_id, read, ids] if ids else [gate, checkpoint_id, read]
    canonical = json.dumps(named, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()[:32]


def part_key(batch: str, path: str) -> str:
    """The key of a part of a batch; the batch's own of the whole.

    >>> part_key("5d41", ""), part_key("5d41", "01")
    ('5d41', '5d41.01')
    """
    return f"{batch}.{path}" if path else batch


def part_of(key: str) -> tuple[str, str]:
    """The batch that a key is of, and the part of it: the opposite of `part_key`."""
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
    """Id that distinguishes the topic from a later one of its name, if the broker reports it."""


def without(
    planned: Sequence[PlannedRange], cover: Iterable[OffsetRange]
) -> tuple[PlannedRange, ...]:
    """Return what of these ranges is not among others."""
    merged = merge(cover)
    return tuple(
        replace(one, offsets=left)
        for one in planned
        for left in one.offsets.subtract(merged.get(one.offsets.topic_partition, ()))
    )


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch as planned, before any of its data is read."""

    gate: str
    checkpoint_id: str
    """The identity that a fresh checkpoint gets: see :func:`headrace.gate.ledger.batch_key`."""
    ranges: tuple[PlannedRange, ...]
    reason: str
    """Limit that determined the size of the batch."""
    bootstrap_servers: str
    """Brokers from which the ranges can be read again."""
    lag: int | None = None
    """Offsets not yet read, over all partitions, before this batch."""
    rate_per_s: float | None = None
    """The rate that was in force."""
    bytes: int | None = None
    """About how many bytes it is; None where the records' sizes were not measured."""

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
        """Offsets in all ranges: an upper bound of the records, for compaction leaves gaps."""
        return sum(planned.offsets.count for planned in self.ranges)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A row of ``batch``: one batch, its plan and its outcome."""

    batch_key: str
    gate: str
    checkpoint_id: str
    status: Status
    attempts: int
    """Number of times it was begun."""
    created_time_ms: int
    """When it was planned; above the created time of the gate's batch before it."""
    reason: str
    planned_records: int
    lag: int | None
    rate_per_s: float | None
    query_batch_id: int | None = None
    """The engine's own number for it, once the engine has run it."""
    start_time_ms: int | None = None
    """When its latest attempt began to be processed."""
    end_time_ms: int | None = None
    """When its latest attempt succeeded or failed."""
    records: int | None = None
    """Records processed, once they have been counted."""
    error: ErrorReport | None = None
    """Why its latest attempt to end failed."""
    owner: str | None = None
    """Owner that runs it: one run of a query, or of a backfill; None while it has none."""
    lease_until_ms: int | None = None
    """End of the owner's lease; after that, anyone may claim it."""
    resolution: str | None = None
    """Reason for which a dead batch needs no attention any more."""
    backfills: int = 0
    """Number of failed backfills of it; each counts as an attempt, too."""
    outcome_unknown: bool = False
    """Whether it may be in its sink though it failed: one of its runs was interrupted, by a crash
    or by a stop. If not, each run that failed has raised by itself."""
    planned_bytes: int | None = None
    """About how many bytes it is, as planned; None where the records' sizes were not measured."""
    retry_ms: int | None = None
    """When an operator asked that its next backfill be not waited for; it was, if that is later
    than its end."""
    progress: str | None = None
    """What was done of its parts (`Progress`), as text; None while it is run as a whole."""
    done_records: int = 0
    """Offsets that are done by its progress."""

    @property
    def parts(self) -> Progress:
        """What was done of its parts.

        Raises:
            LedgerError: The text is none, or of another batch.
        """
        if self.progress is None:
            return Progress()
        return Progress.from_text(self.progress, self.planned_records, self.batch_key)

    @property
    def records_left(self) -> int:
        """Offsets that are not done."""
        return 0 if self.status is Status.SUCCESS else self.planned_records - self.done_records

    def open_ranges(self, planned: Sequence[PlannedRange]) -> tuple[PlannedRange, ...]:
        """Return what of its ranges is not done.

        Raises:
            LedgerError: Its progress is none.
        """
        offsets = [one.offsets for one in planned]
        return without(planned, (r for part in self.parts.done for r in ranges_of(offsets, part)))

    @property
    def interrupted(self) -> bool:
        """Whether its query was stopped on purpose while it ran, and its next start runs it."""
        return was_interrupted(self.status, self.error)


def was_interrupted(status: Status | None, error: ErrorReport | None) -> bool:
    """Whether a batch that stands so failed because its query was stopped while it ran."""
    return status is Status.FAILED and error is not None and error.error_class == QUERY_STOPPED


@dataclass(frozen=True, slots=True)
class Attached:
    """Everything that the owner of a batch needs to run it, from one consistent read.

    Its ranges are by topic, partition and offset. The sequence numbers this run of the gate's
    handler, above every number before.
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
    """The kind of source it admits from, such as ``kafka``."""
    estimator: str
    created_ms: int
    rate_per_s: float | None
    """The rate learnt last; None while there is none."""
    rate_time_ms: int | None
    """When that was learnt."""
    batch_cost: str | None = None
    """Known cost of a batch (`SourceCost`), as text; None while it is unknown."""
    size_ceiling: str | None = None
    """The largest batch that its handler takes (`SizeCeiling`), as text; None while no batch has
    failed for its size."""
    ended_ms: int | None = None
    """When its last query ended and said so; None while one runs, or where none has said so."""
    ended: str | None = None
    """Way that it ended, a `QueryEnd`."""
    ended_error: str | None = None
    """The first line of the error that ended it; of a query that was stopped, by whom and why."""
    sink_outage: str | None = None
    """State of the sink that its batch waits for, as text."""
    gate_id: str = ""
    """Made with the row, so that a checkpoint knows the ledger that it was run with."""

    @property
    def waits(self) -> SinkOutage | None:
        """The outage of its sink; None where that is there, as far as is known."""
        return SinkOutage.from_text(self.sink_outage)


class QueryEnd(StrEnum):
    """Way that a query ended, as its program reported."""

    FINISHED = "finished"
    """By itself, with a trigger that ends once all available records are read, such as
    ``availableNow``."""
    STOPPED = "stopped"
    """Its program has stopped it, or has ended."""
    FAILED = "failed"
    """By an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMoment(GateRecord):
    """A gate at one moment, with what is in force for it then, and its newest batch."""

    lost_offsets: int
    pruned_totals: str | None
    """Counts of its deleted batches, as text: see `headrace.gate.ledger.moments.pruned_counts`."""
    reported: str | None
    """The batch that the rate was learnt from; None before the first report."""
    begins: int
    """How often the engine has asked for a batch; it falls only where an older ledger is back."""
    has_query: bool
    """Whether a query stands behind it."""
    rate_limit: RateLimit | None
    """Rate limit set by a downstream stage; None while it is not throttled."""
    operator: OperatorLimits
    """Operators' settings in force."""
    capacity_per_s: float | None
    """Processing rate of the last reported batch."""
    planned_ms: int | None
    """When the newest batch was planned; it and all that follows is None without one."""
    checkpoint_id: str | None
    position: int | None
    """Number of offsets that its checkpoint has planned so far."""
    lag: int | None
    planned: int | None

    @property
    def ceiling(self) -> SizeCeiling | None:
        """The largest batch that its handler takes; None while no batch has failed for its size."""
        return known_ceiling(self.size_ceiling)


@dataclass(frozen=True, slots=True)
class RateSample:
    """A row of ``rate``: the estimator's input from one batch, and its result."""

    gate: str
    time_ms: int
    rate_per_s: float | None
    """The new rate; None where the law gave none, and the current rate stays in force."""
    records: int
    processing_delay_ms: int
    scheduling_delay_ms: int
    processing_rate_per_s: float | None = None
    proportional: float | None = None
    """The law's terms as they were subtracted from the rate before, in records per second."""
    integral: float | None = None
    derivative: float | None = None
    query_batch_id: int | None = None
    batch_key: str | None = None
    """The batch it was measured on, whose number of records is written with it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of ``lost``: offsets that were gone from the source before they were read."""

    gate: str
    time_ms: int
    offsets: OffsetRange
    """From the position that was lost to the first offset there was to read."""
    topic_id: str | None = None
    """Tells the topic from one recreated under its name; None where the broker gave none."""
    batch_key: str | None = None
    """The batch that could not read them; None where they were gone before one was planned."""
    reason: str | None = None
    """Why they could not be read."""
    checkpoint_id: str | None = None
    """The run of that batch; None where its row was pruned, or there is none."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A range that a gate's batches have read, or are to read."""

    checkpoint_id: str
    batch_key: str | None
    """The batch; None where its row was pruned, and the range was processed."""
    status: Status
    offsets: OffsetRange
    topic_id: str | None = None
    """Tells a topic from one recreated under its name; None where the broker gives none."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Numbers of a gate's unresolved failures.

    Batches that a backfill is to take, or has; batches that are dead as a whole, and were not
    dropped; dead letters that wait.
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
        until: The first offset that it still needs; it has done with those below, or begins behind
            them. 0 where its newest run has read nothing of the partition, whose beginning is then
            where it may begin.
        batch_key: The batch that begins there and may have to be read again. None where
            there is none, and the next batch begins there.
        status: Status of that batch. If ``success``, it is the gate's last one, which the engine
            asks for once more if it crashed before it could note the end.
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
    """A record that cannot be processed, whole, and why."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    """In their order; None where they were not read."""
    timestamp_ms: int
    timestamp_type: int
    """Kafka's: 0 where the producer set the time, 1 where the broker did."""
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
    """Tells the topic from one recreated under its name; None where the broker gave none."""

    def is_followed_by(self, other: "Rejected") -> bool:
        """Whether another range begins where this ends, of the same batch for the same reason."""
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
    """The batch that it is of."""
    gate: str
    letter: DeadLetter
    created_ms: int
    status: DeadLetterStatus
    resolved_ms: int | None
    """When it was sent or dropped."""
    resolution: str | None
    """Target that it was sent to, or the reason it was dropped."""
    sent_value: bytes | None = None
    """Value that was sent instead of the letter's; None if that itself was sent."""


_OF_BATCH: Final = frozenset(field.name for field in fields(BatchRecord))


def batch_from(row: Mapping[Any, Any]) -> BatchRecord:
    """Return the batch of a row of ``batch``; columns beside it are left out."""
    values: dict[str, Any] = {name: value for name, value in row.items() if name in _OF_BATCH}
    error = None
    if row["error_class"] is not None:
        error = ErrorReport(row["error_class"], row["error_message"], row["error_trace"])
    values["status"] = Status(values["status"])
    values["outcome_unknown"] = bool(values["outcome_unknown"])  # SQLite has no such type
    return BatchRecord(**values, error=error)


def range_from(row: Sequence[Any]) -> PlannedRange:
    """Return the range of a row of ``batch_range``."""
    topic, partition, start, until, latest, reason, topic_id = row
    return PlannedRange(OffsetRange(topic, partition, start, until), latest, reason, topic_id)


def range_rows(batch: PlannedBatch) -> list[dict[str, Any]]:
    """Return a row of ``batch_range`` for each range of a batch that has offsets."""
    key = batch.batch_key  # worked out of all ranges
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
