"""How a batch's row moves: each statement compares before it sets, or no row matches.

Every value is a bound parameter. ``by`` is who asks for the move: the owner, or who wants to be it.
``move`` names the call that makes it, and stays with the row. Where a call's answer was lost with
the connection, it is made again: it finds its own name where its move has led to, and makes the
same of the row as the first time, so that the answer is the first one's, too. If somebody else has
moved the row on since, no row matches.
"""

import secrets
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Text,
    Update,
    and_,
    bindparam,
    case,
    func,
    or_,
    true,
    update,
)

from headrace.ledger.leases import LEASE_END, has_run_out
from headrace.ledger.rows import error_values
from headrace.ledger.status import (
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
from headrace.ledger.tables import control

_BATCH = control.c.schedule_id == bindparam("batch")
_OWNED = control.c.owner == bindparam("by")
_OWNED_IF_ASKED = or_(bindparam("by", type_=Text).is_(None), _OWNED)
_LEASE_HAS_RUN_OUT: Final = has_run_out()
_NOBODYS = {"owner": None, "lease_until_ms": None}
_LEASED: Final[dict[str, Any]] = {"owner": bindparam("by"), "lease_until_ms": LEASE_END}
_NO_ERROR = error_values(None)
_AFRESH: Final = {"start_time_ms": None, "end_time_ms": None, "records": None, **_NO_ERROR}
_ERROR: Final[dict[str, Any]] = {name: bindparam(name) for name in _NO_ERROR}
# Once it is, it stays.
_CUT_IF_TOLD: Final = or_(control.c.cut_short, bindparam("cut", type_=Boolean))
_COUNTED = func.coalesce(bindparam("counted", type_=BigInteger), control.c.records)


def new_move() -> str:
    """Name one call that moves a batch, and whatever of it is made again."""
    return secrets.token_hex(8)


def _move(arrow: Arrow, *allowed: ColumnElement[bool], **values: Any) -> Update:
    """The move along an arrow, where it is allowed."""
    return _moved(arrow, and_(control.c.status == arrow.before, *allowed), **values)


def _moved(
    arrow: Arrow,
    allowed: ColumnElement[bool],
    *,
    failed: ColumnElement[int] | int | None = None,
    cut_from: Status | None = None,
    **values: Any,
) -> Update:
    """The move to where an arrow leads, from wherever it is allowed.

    Args:
        arrow: Where it leads, and what it counts.
        allowed: Where it is allowed from.
        failed: How many backfills have failed by it, if the arrow does not say.
        cut_from: Where it is moved from when a run before it was cut short.
        values: What else is set.
    """
    made = and_(control.c.status == arrow.after, control.c.last_move == bindparam("move"))
    attempts = arrow.attempts if failed is None else failed
    if failed is None and arrow.backfills:
        failed = arrow.backfills
    if failed is not None:
        values["backfills"] = control.c.backfills + case((made, 0), else_=failed)
    if cut_from is not None:
        cases = [(made, control.c.cut_short), (control.c.status == cut_from, true())]
        values["cut_short"] = case(*cases, else_=control.c.cut_short)
    return (
        update(control)
        .where(_BATCH, or_(made, allowed))
        .values(
            status=arrow.after,
            attempts=control.c.attempts + case((made, 0), else_=attempts),
            last_move=bindparam("move"),
            **values,
        )
    )


# Arrows B and C in one statement: between two, another process could move the row from one's
# beginning to the other's.
BEGIN_AGAIN: Final = _moved(
    RUN_AGAIN,
    control.c.status.in_([RUN_AGAIN.before, FAILED_RUN_AGAIN.before]),
    cut_from=RUN_AGAIN.before,
    **_AFRESH,
)

ATTACHABLE: Final = and_(
    _BATCH,
    control.c.status == Status.IN_PROGRESS,
    or_(
        control.c.owner.is_(None),
        _OWNED,
        _LEASE_HAS_RUN_OUT,
        control.c.owner == bindparam("gone", type_=Text),
    ),
)

ATTACH: Final = (
    update(control)
    .where(ATTACHABLE)
    .values(
        query_batch_id=bindparam("number"),
        start_time_ms=func.coalesce(
            bindparam("started_ms", type_=BigInteger), bindparam("now_ms", type_=BigInteger)
        ),
        **_LEASED,
    )
)

# Arrow B by the owner itself.
RETRY: Final = _move(RUN_AGAIN, _OWNED, start_time_ms=bindparam("now_ms"), **_LEASED)

RENEW: Final = (
    update(control)
    .where(_BATCH, control.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]), _OWNED)
    .values(lease_until_ms=LEASE_END)
)

SUCCEED: Final = _move(
    SUCCEEDED, _OWNED_IF_ASKED, end_time_ms=bindparam("ended_ms"), records=_COUNTED, **_NOBODYS
)

FAIL: Final = _move(
    FAILED,
    _OWNED_IF_ASKED,
    end_time_ms=bindparam("ended_ms"),
    cut_short=_CUT_IF_TOLD,
    **_ERROR,
    **_NOBODYS,
)

SETTLE: Final = _move(
    FAILED,
    or_(control.c.owner.is_(None), _LEASE_HAS_RUN_OUT),
    end_time_ms=bindparam("ended_ms"),
    cut_short=true(),
    **_ERROR,
    **_NOBODYS,
)

# Arrow F; or H and then F at once, of a backfill whose lease has run out.
TAKE: Final = _moved(
    BACKFILL_BEGAN,
    or_(
        control.c.status == BACKFILL_BEGAN.before,
        and_(control.c.status == BACKFILL_FAILED.before, _LEASE_HAS_RUN_OUT),
    ),
    failed=case((control.c.status == BACKFILL_FAILED.before, 1), else_=0),
    cut_from=BACKFILL_FAILED.before,
    start_time_ms=bindparam("now_ms"),
    end_time_ms=None,
    records=None,
    **_LEASED,
)

BACKFILLED: Final = _move(
    BACKFILL_SUCCEEDED,
    _OWNED,
    end_time_ms=bindparam("ended_ms"),
    records=_COUNTED,
    **_NO_ERROR,
    **_NOBODYS,
)

GIVE_BACK: Final = _move(
    BACKFILL_FAILED,
    _OWNED,
    control.c.backfills + 1 < bindparam("most_backfills"),
    end_time_ms=bindparam("ended_ms"),
    cut_short=_CUT_IF_TOLD,
    **_ERROR,
    **_NOBODYS,
)

# Arrow I, of the last backfill that may fail.
GIVE_UP: Final = _move(
    BACKFILL_GAVE_UP,
    _OWNED,
    failed=1,
    end_time_ms=bindparam("ended_ms"),
    cut_short=_CUT_IF_TOLD,
    **_ERROR,
    **_NOBODYS,
)

BURY: Final = _move(
    BACKFILL_GAVE_UP, _OWNED, end_time_ms=bindparam("ended_ms"), **_ERROR, **_NOBODYS
)

# Arrow I; of a live batch E, F and I at once.
BURY_RECORD: Final = _moved(
    BACKFILL_GAVE_UP,
    and_(control.c.status.in_([FAILED.before, BACKFILL_GAVE_UP.before]), _OWNED_IF_ASKED),
    end_time_ms=bindparam("ended_ms"),
    **_ERROR,
    **_NOBODYS,
)

# Arrows B and C of a part, which its owner runs again.
BEGIN_PART_AGAIN: Final = _moved(
    RUN_AGAIN,
    and_(
        control.c.parent == bindparam("whole"),
        or_(
            control.c.status == FAILED_RUN_AGAIN.before,
            and_(
                control.c.status == RUN_AGAIN.before,
                or_(
                    control.c.owner.is_(None),
                    _OWNED,
                    _LEASE_HAS_RUN_OUT,
                    control.c.owner.in_(bindparam("gone", [""], expanding=True)),
                ),
            ),
        ),
    ),
    cut_from=RUN_AGAIN.before,
    **_AFRESH,
    **_LEASED,
)
