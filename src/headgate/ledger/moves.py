"""How a batch's row moves: each statement compares before it sets, or no row matches.

Every value is a bound parameter. ``by`` is who asks for the move: the owner, or who wants to be it.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Text, Update, and_, bindparam, case, func, or_, update

from headgate.ledger.rows import error_values
from headgate.ledger.status import (
    BACKFILL_BEGAN,
    BACKFILL_FAILED,
    BACKFILL_GAVE_UP,
    BACKFILL_SUCCEEDED,
    FAILED,
    FAILED_RUN_AGAIN,
    RUN_AGAIN,
    SUCCEEDED,
    Arrow,
    Status,
)
from headgate.ledger.tables import control

_BATCH = control.c.schedule_id == bindparam("batch")
_OWNED = control.c.owner == bindparam("by")
_OWNED_IF_ASKED = or_(bindparam("by", type_=Text).is_(None), _OWNED)
_LEASE_HAS_RUN_OUT = control.c.lease_until_ms <= bindparam("now_ms")
_NOBODYS = {"owner": None, "lease_until_ms": None}
_LEASED: Final[dict[str, Any]] = {"owner": bindparam("by"), "lease_until_ms": bindparam("until_ms")}
_NO_ERROR = error_values(None)
_AFRESH: Final = {"start_time_ms": None, "end_time_ms": None, "records": None, **_NO_ERROR}
_ERROR: Final[dict[str, Any]] = {name: bindparam(name) for name in _NO_ERROR}
_COUNTED = func.coalesce(bindparam("counted", type_=BigInteger), control.c.records)


def _move(arrow: Arrow, **values: Any) -> Update:
    return (
        update(control)
        .where(_BATCH, control.c.status == arrow.before)
        .values(status=arrow.after, attempts=control.c.attempts + arrow.attempts, **values)
    )


# Arrows B and C in one statement: between two, another process could move the row from one's
# beginning to the other's.
BEGIN_AGAIN: Final = (
    update(control)
    .where(_BATCH)
    .where(or_(*[control.c.status == arrow.before for arrow in (RUN_AGAIN, FAILED_RUN_AGAIN)]))
    .values(
        status=RUN_AGAIN.after,
        attempts=control.c.attempts + RUN_AGAIN.attempts,
        **_AFRESH,
    )
)

ATTACH: Final = (
    update(control)
    .where(_BATCH, control.c.status == Status.IN_PROGRESS)
    .where(or_(control.c.owner.is_(None), _OWNED, _LEASE_HAS_RUN_OUT))
    .values(query_batch_id=bindparam("number"), start_time_ms=bindparam("started_ms"), **_LEASED)
)

RENEW: Final = (
    update(control)
    .where(_BATCH, control.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]), _OWNED)
    .values(lease_until_ms=bindparam("until_ms"))
)

SUCCEED: Final = _move(
    SUCCEEDED, end_time_ms=bindparam("ended_ms"), records=_COUNTED, **_NOBODYS
).where(_OWNED_IF_ASKED)

FAIL: Final = _move(FAILED, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS).where(
    _OWNED_IF_ASKED
)

SETTLE: Final = _move(FAILED, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS).where(
    or_(control.c.owner.is_(None), _LEASE_HAS_RUN_OUT)
)

# Arrow F; or H and then F at once, of a backfill whose lease has run out.
TAKE: Final = (
    update(control)
    .where(_BATCH)
    .where(
        or_(
            control.c.status == BACKFILL_BEGAN.before,
            and_(control.c.status == BACKFILL_FAILED.before, _LEASE_HAS_RUN_OUT),
        )
    )
    .values(
        status=BACKFILL_BEGAN.after,
        attempts=control.c.attempts
        + case((control.c.status == BACKFILL_FAILED.before, BACKFILL_FAILED.attempts), else_=0),
        start_time_ms=bindparam("now_ms"),
        end_time_ms=None,
        records=None,
        **_LEASED,
    )
)

BACKFILLED: Final = _move(
    BACKFILL_SUCCEEDED,
    end_time_ms=bindparam("ended_ms"),
    records=_COUNTED,
    **_NO_ERROR,
    **_NOBODYS,
).where(_OWNED)

GIVE_BACK: Final = _move(
    BACKFILL_FAILED, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS
).where(_OWNED, control.c.attempts < bindparam("most_attempts"))

BURY: Final = _move(
    BACKFILL_GAVE_UP, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS
).where(_OWNED)

# Arrow I; of a live batch E, F and I at once.
BURY_RECORD: Final = (
    update(control)
    .where(_BATCH, control.c.status.in_([FAILED.before, BACKFILL_GAVE_UP.before]))
    .where(_OWNED_IF_ASKED)
    .values(status=BACKFILL_GAVE_UP.after, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS)
)

# Arrows B and C of a part, which its owner runs again.
BEGIN_PART_AGAIN: Final = (
    update(control)
    .where(_BATCH, control.c.parent == bindparam("whole"))
    .where(
        or_(
            control.c.status == FAILED_RUN_AGAIN.before,
            and_(
                control.c.status == RUN_AGAIN.before,
                or_(control.c.owner.is_(None), _OWNED, _LEASE_HAS_RUN_OUT),
            ),
        )
    )
    .values(
        status=RUN_AGAIN.after,
        attempts=control.c.attempts + RUN_AGAIN.attempts,
        **_AFRESH,
        **_LEASED,
    )
)
