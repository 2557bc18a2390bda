"""What the ledger asks, and what it changes besides a batch's status. Values are bound."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    CompoundSelect,
    Double,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)

from headrace.core.lease import LONGEST_LEASE_MS
from headrace.ledger import moves
from headrace.ledger.leases import has_run_out
from headrace.ledger.letters import LetterStatus
from headrace.ledger.now import NowMs
from headrace.ledger.records import QUERY_STOPPED
from headrace.ledger.rows import error_values
from headrace.ledger.status import Kind, Status
from headrace.ledger.tables import control, dead_letter, failure, gate, lost, rate


def together(queries: Iterable[Select[Any]]) -> CompoundSelect[Any]:
    """What each of these finds, in no order, at one look.

    Each gate and status has an index in an order of its own, and all of them together have not. So
    each is asked for by itself, with the limit of the whole.
    """
    return union_all(*[select(query.subquery()) for query in queries])


def created_within(
    created_ms: Column[int], since_ms: int | None, until_ms: int | None
) -> Iterator[ColumnElement[bool]]:
    """Whether a row is from this time or later, and from before that one; None does not matter."""
    if since_ms is not None:
        yield created_ms >= since_ms
    if until_ms is not None:
        yield created_ms < until_ms


_child = control.alias("child")


def has_parts(schedule_id: Column[str]) -> ColumnElement[bool]:
    """Whether a batch was divided."""
    return exists().where(_child.c.parent == schedule_id)


def is_error(error_class: Column[str], name: str) -> ColumnElement[bool]:
    """Whether an exception is of this class, named with its module or without."""
    return or_(error_class == name, error_class.endswith(f".{name}", autoescape=True))


GATES: Final = select(
    *gate.c[
        "name", "interval_ms", "source", "estimator", "created_ms", "rate_per_s", "rate_time_ms"
    ]
).order_by(gate.c.name)

CURRENT_RATE: Final = select(gate.c.rate_per_s).where(gate.c.name == bindparam("gate"))

_new_rate = bindparam("new_rate", type_=Double)

SET_RATE: Final = (
    update(gate)
    .where(gate.c.name == bindparam("gate"))
    .values(
        rate_per_s=func.coalesce(_new_rate, gate.c.rate_per_s),
        rate_time_ms=case(
            (_new_rate.is_(None), gate.c.rate_time_ms), else_=bindparam("new_time_ms")
        ),
    )
)

_sample = [column for column in rate.c if column is not rate.c.rate_id]
_given = [cast(bindparam(column.name), column.type) for column in _sample]
_kept = exists().where(rate.c.gate == bindparam("gate"), rate.c.time_ms == bindparam("time_ms"))

KEEP_SAMPLE: Final = insert(rate).from_select(
    _sample,
    select(*_given).where(
        ~_kept.where(
            *[column.is_not_distinct_from(to) for column, to in zip(_sample, _given, strict=True)]
        )
    ),
    include_defaults=False,
)

LAST_RATES: Final = (
    select(*_sample)
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

SERVERS: Final = (
    select(failure.c.bootstrap_servers)
    .where(failure.c.schedule_id == bindparam("schedule_id"))
    .limit(1)
)

PARTS: Final = (
    select(control)
    .where(control.c.parent == bindparam("schedule_id"))
    .order_by(control.c.created_time_ms, control.c.schedule_id)
)

NEWEST_CREATED_MS: Final = select(func.max(control.c.created_time_ms)).where(
    control.c.gate == bindparam("gate")
)

_query = bindparam("query", type_=Text)

# Not twice by a call that is made again, and finds the batch that it has begun.
COUNT_BEGIN: Final = (
    update(gate)
    .where(gate.c.name == bindparam("of"))
    .where(or_(_query.is_(None), gate.c.query_owner == _query))
    .where(
        ~exists()
        .where(control.c.schedule_id == bindparam("batch"))
        .where(control.c.last_move == bindparam("move"))
    )
    .values(
        begun=bindparam("batch"),
        begins=gate.c.begins + 1,
        query_run_id=case((_query.is_(None), gate.c.query_run_id), else_=bindparam("run")),
    )
)

_counted = update(gate).values(sequence=gate.c.sequence + 1).returning(gate.c.sequence)

NEXT_SEQUENCE: Final = _counted.where(gate.c.name == bindparam("of"))

# Of a batch that can be attached. Before that is done, as whatever changes a gate's row and a
# batch's changes the gate's first: of two transactions one waits then, and never both.
NEXT_SEQUENCE_OF: Final = _counted.where(
    gate.c.name == select(control.c.gate).where(moves.ATTACHABLE).scalar_subquery()
)

ATTACH: Final = moves.ATTACH.returning(*control.c)

OPEN_BATCH: Final = (
    select(control)
    .where(control.c.gate == bindparam("gate"), control.c.status == Status.IN_PROGRESS)
    .where(control.c.kind == Kind.LIVE, control.c.parent.is_(None))
    .order_by(control.c.created_time_ms.desc())
    .limit(1)
)

SET_RECORDS: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"))
    .values(records=bindparam("counted"))
)

KEEP_ERROR: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"), control.c.status == Status.SUCCESS)
    .values({name: bindparam(name) for name in error_values(None)})
)

_named_or_all_gates = select(gate.c.name).where(
    or_(bindparam("gate", type_=Text).is_(None), gate.c.name == bindparam("gate"))
)

FAILED_BATCHES: Final = (
    select(control)
    .where(control.c.gate.in_(_named_or_all_gates))
    .where(control.c.status.in_([Status.FAILED, Status.BACKFILLING]))
    .where(or_(control.c.status == Status.FAILED, has_run_out()))
    .order_by(control.c.created_time_ms, control.c.schedule_id)
    .limit(bindparam("limit"))
)

# A backfill whose lease has run out has failed, though nobody has counted it yet.
_given_up = control.c.status == Status.BACKFILLING
_ended_ms = case(
    (and_(_given_up, control.c.lease_until_ms <= NowMs()), control.c.lease_until_ms),
    else_=func.coalesce(control.c.end_time_ms, control.c.start_time_ms, control.c.created_time_ms),
)
_backfills = control.c.backfills + case((_given_up, 1), else_=0)


def has_waited(waits_ms: Sequence[int], now_ms: int) -> ColumnElement[bool]:
    """Whether a batch that failed has waited since; an end that lies ahead is not believed.

    Args:
        waits_ms: After 0, 1, 2 ... backfills that failed, and the last one after more; not empty.
        now_ms: The time.
    """
    *some, longest_ms = (literal(each, BigInteger) for each in waits_ms)
    cases = [(_backfills == number, wait_ms) for number, wait_ms in enumerate(some)]
    wait_ms = case(*cases, else_=longest_ms) if cases else longest_ms
    now = literal(now_ms, BigInteger)
    return or_(_ended_ms + wait_ms <= now, _ended_ms > now + LONGEST_LEASE_MS)


BY_PREFIX: Final = (
    select(control)
    .where(control.c.schedule_id >= bindparam("prefix"))
    .where(control.c.schedule_id < bindparam("above"))
    .order_by(control.c.schedule_id)
    .limit(bindparam("limit"))
)

_letters = exists().where(dead_letter.c.schedule_id == control.c.schedule_id)

interrupted: Final = and_(
    control.c.status == Status.FAILED,
    func.coalesce(control.c.error_class, "") == QUERY_STOPPED,
)

# The next start of the query did not run them.
LEAVE_INTERRUPTED: Final = (
    update(control)
    .where(control.c.gate == bindparam("of"), interrupted)
    .where(control.c.schedule_id != bindparam("but"))
    .where(func.coalesce(control.c.parent, "") != bindparam("but"))
    .values({name: bindparam(name) for name in error_values(None) if name != "error_trace"})
)

FAILURES: Final = (
    select(control)
    .where(control.c.gate.in_(_named_or_all_gates))
    .where(control.c.status.in_([Status.FAILED, Status.BACKFILLING, Status.DEAD]))
    .where(~and_(control.c.status == Status.DEAD, _letters))
    .where(control.c.resolution.is_(None), ~interrupted)
    .order_by(control.c.created_time_ms, control.c.schedule_id)
)

_nobody_runs_it = or_(
    has_run_out(),
    and_(control.c.owner.is_(None), control.c.created_time_ms < bindparam("before_ms")),
)
_settled = and_(control.c.status == Status.FAILED, control.c.last_move == bindparam("move"))

# With those that the same call has settled already, if it is made again. In no order: SQLite would
# go through all batches in that order instead of those of these states.
LEFT_BEHIND: Final = (
    select(control.c.created_time_ms, control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"))
    .where(or_(control.c.kind == Kind.LIVE, control.c.parent.is_not(None)))
    .where(control.c.schedule_id != bindparam("but"))
    .where(control.c.status.in_([Status.IN_PROGRESS, Status.FAILED]))
    .where(or_(_settled, and_(control.c.status == Status.IN_PROGRESS, _nobody_runs_it)))
)


def _losses(which: ColumnElement[bool]) -> Select[Any]:
    """Losses with the checkpoint of their batch, if they have one, and whether it was split."""
    return (
        select(lost, control.c.run_id, has_parts(lost.c.schedule_id).label("was_split"))
        .outerjoin_from(lost, control, control.c.schedule_id == lost.c.schedule_id)
        .where(which)
        .order_by(
            lost.c.time_ms,
            lost.c.topic,
            lost.c.topic_id,
            lost.c.partition,
            lost.c.from_offset,
            lost.c.schedule_id,
        )
    )


LOSSES: Final = _losses(lost.c.gate == bindparam("gate"))
LOSSES_OF_BATCHES: Final = _losses(
    lost.c.schedule_id.in_(bindparam("batches", [""], expanding=True))
)

GATE_OF: Final = select(control.c.gate).where(control.c.schedule_id == bindparam("batch"))

DEAD_LETTER: Final = select(dead_letter).where(dead_letter.c.dead_letter_id == bindparam("letter"))

# Like a move of a batch: a call that is made again finds its own name.
RESOLVE: Final = (
    update(dead_letter)
    .where(dead_letter.c.dead_letter_id == bindparam("letter"))
    .where(
        or_(
            dead_letter.c.status == LetterStatus.WAITING,
            dead_letter.c.last_move == bindparam("move"),
        )
    )
    .values(
        status=bindparam("outcome"),
        resolved_ms=bindparam("now_ms"),
        resolution=bindparam("why"),
        last_move=bindparam("move"),
    )
)

OPEN_COUNTS: Final = (
    select(control.c.status, func.count().label("number"))
    .where(control.c.gate == bindparam("gate"))
    .where(control.c.status.in_([Status.FAILED, Status.BACKFILLING, Status.DEAD]))
    .where(~and_(control.c.status == Status.DEAD, _letters), control.c.resolution.is_(None))
    .where(~interrupted)
    .group_by(control.c.status)
)

WAITING_LETTERS: Final = (
    select(func.count())
    .select_from(dead_letter)
    .where(dead_letter.c.gate == bindparam("gate"))
    .where(dead_letter.c.status == LetterStatus.WAITING)
)

# The same reason once more is the answer that was lost with a connection.
DROP: Final = (
    update(control)
    .where(control.c.schedule_id == bindparam("batch"), control.c.status == Status.DEAD)
    .where(or_(control.c.resolution.is_(None), control.c.resolution == bindparam("why")))
    .values(resolution=bindparam("why"))
)
