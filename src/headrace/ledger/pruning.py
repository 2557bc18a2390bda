"""What the ledger asks of its whole history, and how old history goes. Values are bound."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from headrace.ledger.letters import LetterStatus
from headrace.ledger.statements import has_parts
from headrace.ledger.status import Status
from headrace.ledger.tables import control, dead_letter, failure, gate, pruned, rate

_letters = exists().where(dead_letter.c.schedule_id == control.c.schedule_id)
_resolved = and_(
    control.c.status == Status.DEAD,
    _letters,
    ~_letters.where(dead_letter.c.status == LetterStatus.WAITING),
)
_dropped = and_(control.c.status == Status.DEAD, control.c.resolution.is_not(None))
CLOSED: Final = or_(control.c.status == Status.SUCCESS, _resolved, _dropped)
"""Nobody needs what the batch has read any more."""

_topic_id = func.coalesce(failure.c.topic_id, "").label("topic_id")

_own_ranges = (
    select(
        control.c.run_id,
        failure.c.topic,
        _topic_id,
        failure.c.partition,
        failure.c.start_offset,
        failure.c.until_offset,
        control.c.schedule_id,
        control.c.parent,
        has_parts(control.c.schedule_id).label("has_parts"),
        control.c.status,
        control.c.created_time_ms,
    )
    .join(failure, failure.c.schedule_id == control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"))
)

_pruned_ranges = select(
    pruned.c.run_id,
    pruned.c.topic,
    pruned.c.topic_id,
    pruned.c.partition,
    pruned.c.start_offset,
    pruned.c.until_offset,
    cast(null(), Text),
    cast(null(), Text),
    false(),
    literal(Status.SUCCESS.value, Text),
    cast(null(), BigInteger),
).where(pruned.c.gate == bindparam("gate"))

COVERAGE: Final = union_all(_own_ranges, _pruned_ranges).order_by(
    "run_id", "topic", "topic_id", "partition", "start_offset"
)

NAMED_RANGES: Final = (
    select(
        *control.c["schedule_id", "run_id", "kind", "status", "planned_records"],
        failure.c.topic,
        failure.c.topic_id,
        failure.c.partition,
        failure.c.start_offset,
        failure.c.until_offset,
    )
    .outerjoin(failure, failure.c.schedule_id == control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"))
    .order_by(control.c.schedule_id)
)

LOCK_GATE: Final = (
    select(gate.c.name).where(gate.c.name == bindparam("gate")).with_for_update(key_share=True)
)

_newest_batch = (
    select(control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"), control.c.parent.is_(None))
    .order_by(control.c.created_time_ms.desc())
    .limit(1)
    .scalar_subquery()
)

# What is to be deleted as far as it is for the batch itself to say, from one time on. A batch is
# created before it ends: the first time finds it by the index, the second is meant.
OLD_BATCHES: Final = (
    select(control.c.schedule_id, control.c.created_time_ms)
    .where(control.c.gate == bindparam("gate"), control.c.parent.is_(None))
    .where(CLOSED)
    .where(control.c.created_time_ms > bindparam("after_ms"))
    .where(control.c.created_time_ms < bindparam("before_ms"))
    .where(control.c.end_time_ms < bindparam("before_ms"))
    .where(control.c.schedule_id != _newest_batch)
    .order_by(control.c.created_time_ms)
    .limit(bindparam("limit"))
)

_keys: Final[BindParameter[Any]] = bindparam("keys", [""], expanding=True)

PARTS_OF: Final = select(control.c.schedule_id, control.c.parent, CLOSED.label("is_closed")).where(
    control.c.parent.in_(_keys)
)

OLD_RANGES: Final = (
    select(
        control.c.schedule_id,
        control.c.run_id,
        failure.c.topic,
        _topic_id,
        failure.c.partition,
        failure.c.start_offset,
        failure.c.until_offset,
    )
    .join(failure, failure.c.schedule_id == control.c.schedule_id)
    .where(control.c.schedule_id.in_(_keys))
)

PRUNED_RANGES: Final = select(
    pruned.c.run_id,
    pruned.c.topic,
    pruned.c.topic_id,
    pruned.c.partition,
    pruned.c.start_offset,
    pruned.c.until_offset,
).where(pruned.c.gate == bindparam("gate"))

FORGET_PRUNED_RANGES: Final = delete(pruned).where(pruned.c.gate == bindparam("gate"))

# Their ranges and dead letters go with them, by the foreign keys.
DELETE_BATCHES: Final = delete(control).where(control.c.schedule_id.in_(_keys))

DELETE_OLD_RATES: Final = delete(rate).where(
    rate.c.rate_id.in_(
        select(rate.c.rate_id)
        .where(rate.c.gate == bindparam("gate"), rate.c.time_ms < bindparam("before_ms"))
        .limit(bindparam("limit"))
    )
)
