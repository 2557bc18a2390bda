"""Between the ledger's values and the rows of its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger.records import (
    MAX_MESSAGE_LENGTH,
    BatchRecord,
    ErrorReport,
    Loss,
    PlannedBatch,
    PlannedRange,
    RateSample,
    storable,
)
from headrace.ledger.status import PLANNED, Kind, Status

Values = dict[str, Any]


def control_row(batch: PlannedBatch, schedule_id: str, created_ms: int, move: str) -> Values:
    """The row of a batch that begins for the first time, by a call of this name."""
    return {
        "schedule_id": schedule_id,
        "gate": batch.gate,
        "run_id": batch.run_id,
        "kind": batch.kind,
        "status": PLANNED.after,
        "attempts": PLANNED.attempts,
        "query_batch_id": None,
        "created_time_ms": created_ms,
        "start_time_ms": None,
        "end_time_ms": None,
        "reason": batch.reason,
        "planned_records": batch.records,
        "lag": batch.lag,
        "rate_per_s": batch.rate_per_s,
        "records": None,
        **error_values(None),
        "owner": None,
        "lease_until_ms": None,
        "last_move": move,
        "parent": None,
    }


def failure_rows(batch: PlannedBatch, schedule_id: str) -> list[Values]:
    """One row for each range of a batch that has offsets."""
    return [
        {
            "schedule_id": schedule_id,
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


def error_values(error: ErrorReport | None) -> Values:
    """The columns of ``control`` that describe why a batch failed; None clears them."""
    return {
        "error_class": error and error.error_class,
        "error_message": error and error.message,
        "error_trace": error and error.trace,
    }


def rate_row(sample: RateSample) -> Values:
    """The row of a rate sample."""
    return asdict(sample)


def loss_row(loss: Loss) -> Values:
    """The row of a loss."""
    offsets = loss.offsets
    return {
        "gate": loss.gate,
        "topic": offsets.topic,
        "topic_id": loss.topic_id or "",
        "partition": offsets.partition,
        "from_offset": offsets.start,
        "until_offset": offsets.until,
        "time_ms": loss.time_ms,
        "schedule_id": loss.schedule_id or "",
        "reason": loss.reason and storable(loss.reason)[:MAX_MESSAGE_LENGTH],
    }


def batch_from(row: Mapping[Any, Any]) -> BatchRecord:
    """The batch that a row of ``control`` describes.

    Raises:
        LedgerError: Its kind or its status is none.
    """
    values = dict(row)
    if (strange := strangeness(values["kind"], values["status"])) is not None:
        raise LedgerError(
            f"Batch {values['schedule_id']} of gate {values['gate']!r} has {strange}, so its row"
            " was changed or damaged; restore the ledger from a copy."
        )
    error = [values.pop(name) for name in error_values(None)]
    del values["last_move"]  # between the ledger's calls only
    values["kind"] = Kind(values["kind"])
    values["status"] = Status(values["status"])
    return BatchRecord(**values, error=None if error[0] is None else ErrorReport(*error))


def strangeness(kind: str, status: str) -> str | None:
    """What is wrong with a batch's kind or its status; None where each is one.

    >>> strangeness("live", "done")
    "the status 'done', which is none of in_progress, success, failed, backfilling, dead"
    """
    for name, value, known in (("kind", kind, Kind), ("status", status, Status)):
        if value not in set(known):
            return f"the {name} {value!r}, which is none of {', '.join(known)}"
    return None


def known_status(status: str) -> Status:
    """What a status counts as: itself, or failed where it is none."""
    return Status(status) if status in set(Status) else Status.FAILED


def range_from(row: Sequence[Any]) -> PlannedRange:
    """The range that a row of ``failure`` describes."""
    topic, partition, start, until, latest, reason, topic_id = row
    return PlannedRange(OffsetRange(topic, partition, start, until), latest, reason, topic_id)


def loss_from(row: Row[Any]) -> Loss:
    """The loss that a row of ``lost`` describes."""
    offsets = OffsetRange(row.topic, row.partition, row.from_offset, row.until_offset)
    return Loss(
        gate=row.gate,
        time_ms=row.time_ms,
        offsets=offsets,
        topic_id=row.topic_id or None,
        schedule_id=row.schedule_id or None,
        reason=row.reason,
        run_id=row.run_id,
        was_split=bool(row.was_split),
    )
