"""The ledger's SQL: what it asks, and how a batch's row moves. Every value is a bound parameter."""

from typing import Any, Final

from sqlalchemy import BigInteger, Update, bindparam, delete, func, or_, select, update

from headgate.ledger.rows import error_values
from headgate.ledger.status import (
    FAILED,
    FAILED_RUN_AGAIN,
    RUN_AGAIN,
    SUCCEEDED,
    Arrow,
    Kind,
    Status,
)
from headgate.ledger.tables import control, failure, gate, lost, rate


def _move(arrow: Arrow, **values: Any) -> Update:
    """Move a batch along an arrow, if it stands where the arrow begins; else no row matches."""
    return (
        update(control)
        .where(control.c.schedule_id == bindparam("batch"), control.c.status == arrow.before)
        .values(status=arrow.after, attempts=control.c.attempts + arrow.attempts, **values)
    )


GATES: Final = select(gate).order_by(gate.c.name)

CURRENT_RATE: Final = select(gate.c.rate_per_s).where(gate.c.name == bindparam("gate"))

SET_RATE: Final = (
    update(gate)
    .where(gate.c.name == bindparam("gate"))
    .values(rate_per_s=bindparam("new_rate"), rate_time_ms=bindparam("new_time_ms"))
)

LAST_RATES: Final = (
    select(*[column for column in rate.c if column is not rate.c.rate_id])
    .where(rate.c.gate == bindparam("gate"))
    .order_by(rate.c.time_ms.desc(), rate.c.rate_id.desc())
    .limit(bindparam("limit"))
)

BATCH: Final = select(control).where(control.c.schedule_id == bindparam("schedule_id"))

RANGES: Final = (
    select(
        failure.c.topic,
        failure.c.partition,
        failure.c.start_offset,
        failure.c.until_offset,
        failure.c.latest_offset,
        failure.c.reason,
        failure.c.topic_id,
    )
    .where(failure.c.schedule_id == bindparam("schedule_id"))
    .order_by(failure.c.topic, failure.c.partition, failure.c.start_offset)
)

LAST_BATCHES: Final = (
    select(control)
    .where(control.c.gate == bindparam("gate"))
    .order_by(control.c.created_time_ms.desc())
    .limit(bindparam("limit"))
)

NEWEST_CREATED_MS: Final = select(func.max(control.c.created_time_ms)).where(
    control.c.gate == bindparam("gate")
)

OPEN_BATCH: Final = (
    select(control)
    .where(control.c.gate == bindparam("gate"), control.c.status == Status.IN_PROGRESS)
    .where(control.c.kind == Kind.LIVE)
    .order_by(control.c.created_time_ms.desc())
    .limit(1)
)

# Arrows B and C in one statement: between two, another process could move the row from one's
# beginning to the other's.
BEGIN_AGAIN: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"))
    .where(or_(*[control.c.status == arrow.before for arrow in (RUN_AGAIN, FAILED_RUN_AGAIN)]))
    .values(
        status=RUN_AGAIN.after,
        attempts=control.c.attempts + RUN_AGAIN.attempts,
        start_time_ms=None,
        end_time_ms=None,
        records=None,
        **error_values(None),
    )
)

SUCCEED: Final = _move(
    SUCCEEDED,
    end_time_ms=bindparam("ended_ms"),
    records=func.coalesce(bindparam("counted", type_=BigInteger), control.c.records),
)

FAIL: Final = _move(
    FAILED,
    end_time_ms=bindparam("ended_ms"),
    **{name: bindparam(name) for name in error_values(None)},
)

SET_RECORDS: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"))
    .values(records=bindparam("counted"))
)

ATTACH: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"), control.c.status == Status.IN_PROGRESS)
    .values(query_batch_id=bindparam("number"), start_time_ms=bindparam("started_ms"))
)

LOSSES: Final = (
    select(lost)
    .where(lost.c.gate == bindparam("gate"))
    .order_by(lost.c.time_ms, lost.c.topic, lost.c.partition, lost.c.from_offset)
)

_newest_batch = (
    select(control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"))
    .order_by(control.c.created_time_ms.desc())
    .limit(1)
    .scalar_subquery()
)

# A batch is created before it ends: the first condition finds it by the index, the second is meant.
# Its ranges go with it, by the foreign key.
DELETE_OLD_BATCHES: Final = delete(control).where(
    control.c.schedule_id.in_(
        select(control.c.schedule_id)
        .where(control.c.gate == bindparam("gate"), control.c.status == Status.SUCCESS)
        .where(control.c.created_time_ms < bindparam("before_ms"))
        .where(control.c.end_time_ms < bindparam("before_ms"))
        .where(control.c.schedule_id != _newest_batch)
        .limit(bindparam("limit"))
    )
)

DELETE_OLD_RATES: Final = delete(rate).where(
    rate.c.rate_id.in_(
        select(rate.c.rate_id)
        .where(rate.c.gate == bindparam("gate"), rate.c.time_ms < bindparam("before_ms"))
        .limit(bindparam("limit"))
    )
)
