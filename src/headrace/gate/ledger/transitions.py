"""The states of a batch, and the transitions between them.

::

              A                 D
    (planned) ──> in_progress ─────────────────────────> success
                   ↺B  ^  │                                 ^
                       │  │ E                               │
                      C│  v            F                    │ G
                      failed ───────────────> backfilling ──┤
                       │ ^                      │           │
                       │ └──────────────────────┘           │ I
                       │          H, J                      v
                       └───────────────────────────────>  dead
                                      K

====== =================================================================== =========
letter when                                                                attempts
====== =================================================================== =========
A      the plan fixed the ranges, and nothing has been read yet            1
B      the engine runs its last planned batch again after a crash          + 1
C      the same, of a batch that had failed                                + 1
D      the handler or sink finished
E      it raised, or its owner is dead
F      a backfill takes the batch
G      the backfill finished
H      the backfill raised; there are attempts left                        + 1
I      the last backfill that there may be raised                          + 1
       or its ranges have left Kafka                                       0
J      the backfill has done a part of it; the rest is the next one's      0
K      another checkpoint reads all of it that is not done                 0
====== =================================================================== =========

If a backfill's lease has run out, the next claim of the batch performs H and F at once. What was
done of a batch's parts (``progress``) changes within a status, and goes with ``success``.

There is no other transition. ``success`` and ``dead`` are final: a row never leaves them.

Every value is a bound parameter. ``by`` is the owner, or the process that wants to be the owner.
``call`` names the call that asks, and stays with the row. A call whose answer was lost with the
connection is repeated: it finds its own name in the row, and changes it in the same way, so that
the answer is the first one's, too. If another process has changed the row since, no row matches.
"""

import secrets
from enum import StrEnum
from typing import Any, Final, NamedTuple

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

from headrace.gate.ledger.tables import LEASE_END, batch_table, has_run_out


class Status(StrEnum):
    """Status of a batch."""

    IN_PROGRESS = "in_progress"
    SUCCESS = "success"
    FAILED = "failed"
    BACKFILLING = "backfilling"
    DEAD = "dead"


class Kind(StrEnum):
    """Who runs a batch: the live stream, or a backfill of one that failed."""

    LIVE = "live"
    BACKFILL = "backfill"


class Transition(NamedTuple):
    """One allowed change of a row: compare with ``before``, set ``after``, add to the counts."""

    letter: str
    before: Status | None
    after: Status
    attempts: int = 0
    backfills: int = 0


PLANNED: Final = Transition("A", None, Status.IN_PROGRESS, attempts=1)
RUN_AGAIN: Final = Transition("B", Status.IN_PROGRESS, Status.IN_PROGRESS, attempts=1)
FAILED_RUN_AGAIN: Final = Transition("C", Status.FAILED, Status.IN_PROGRESS, attempts=1)
SUCCEEDED: Final = Transition("D", Status.IN_PROGRESS, Status.SUCCESS)
FAILED: Final = Transition("E", Status.IN_PROGRESS, Status.FAILED)
BACKFILL_BEGAN: Final = Transition("F", Status.FAILED, Status.BACKFILLING)
BACKFILL_SUCCEEDED: Final = Transition("G", Status.BACKFILLING, Status.SUCCESS)
BACKFILL_FAILED: Final = Transition("H", Status.BACKFILLING, Status.FAILED, attempts=1, backfills=1)
BACKFILL_GAVE_UP: Final = Transition("I", Status.BACKFILLING, Status.DEAD)
PUT_BACK: Final = Transition("J", Status.BACKFILLING, Status.FAILED)
SUPERSEDED: Final = Transition("K", Status.FAILED, Status.DEAD)

TRANSITIONS: Final = (
    PLANNED,
    RUN_AGAIN,
    FAILED_RUN_AGAIN,
    SUCCEEDED,
    FAILED,
    BACKFILL_BEGAN,
    BACKFILL_SUCCEEDED,
    BACKFILL_FAILED,
    BACKFILL_GAVE_UP,
    PUT_BACK,
    SUPERSEDED,
)

_BATCH = batch_table.c.batch_key == bindparam("batch")
_OWNED = batch_table.c.owner == bindparam("by")
_OWNED_IF_ASKED = or_(bindparam("by", type_=Text).is_(None), _OWNED)
_LEASE_HAS_RUN_OUT: Final = has_run_out()
_NOBODYS = {"owner": None, "lease_until_ms": None}
_LEASED: Final[dict[str, Any]] = {"owner": bindparam("by"), "lease_until_ms": LEASE_END}
_NO_ERROR: Final = dict.fromkeys(("error_class", "error_message", "error_trace"))
_AFRESH: Final = {"start_time_ms": None, "end_time_ms": None, "records": None, **_NO_ERROR}
_ERROR: Final[dict[str, Any]] = {name: bindparam(name) for name in _NO_ERROR}

# Once it is, it stays.
_UNKNOWN_IF_SAID: Final = or_(batch_table.c.outcome_unknown, bindparam("unknown", type_=Boolean))
_COUNTED = func.coalesce(bindparam("counted", type_=BigInteger), batch_table.c.records)
_ENDED: Final[dict[str, Any]] = {"end_time_ms": bindparam("ended_ms"), **_NOBODYS}
_DONE: Final = {**_ENDED, "records": _COUNTED, "progress": None, "done_records": 0}
_FAILED: Final = {**_ENDED, **_ERROR}


def new_call_id() -> str:
    """Name one call that changes a batch, and its repetitions."""
    return secrets.token_hex(8)


def _update_by(transition: Transition, *allowed: ColumnElement[bool], **values: Any) -> Update:
    """The update that makes a transition, where it is allowed."""
    return _update_to(
        transition, and_(batch_table.c.status == transition.before, *allowed), **values
    )


def _update_to(
    transition: Transition,
    allowed: ColumnElement[bool],
    *,
    failed: ColumnElement[int] | int | None = None,
    unknown_from: Status | None = None,
    **values: Any,
) -> Update:
    """The update to where a transition leads, from wherever it is allowed.

    ``failed`` is how many backfills have failed by it, if the transition does not say;
    ``unknown_from`` is where it comes from when the outcome of a run before is unknown.
    """
    made = and_(
        batch_table.c.status == transition.after, batch_table.c.last_call == bindparam("call")
    )
    attempts = transition.attempts if failed is None else failed
    if failed is None and transition.backfills:
        failed = transition.backfills
    if failed is not None:
        values["backfills"] = batch_table.c.backfills + case((made, 0), else_=failed)
    if unknown_from is not None:
        cases = [
            (made, batch_table.c.outcome_unknown),
            (batch_table.c.status == unknown_from, true()),
        ]
        values["outcome_unknown"] = case(*cases, else_=batch_table.c.outcome_unknown)
    return (
        update(batch_table)
        .where(_BATCH, or_(made, allowed))
        .values(
            status=transition.after,
            attempts=batch_table.c.attempts + case((made, 0), else_=attempts),
            last_call=bindparam("call"),
            **values,
        )
    )


# Transitions B and C in one statement: between two, another process could change the row from one's
# beginning to the other's.
BEGIN_AGAIN: Final = _update_to(
    RUN_AGAIN,
    batch_table.c.status.in_([RUN_AGAIN.before, FAILED_RUN_AGAIN.before]),
    unknown_from=RUN_AGAIN.before,
    **_AFRESH,
)

ATTACHABLE: Final = and_(
    _BATCH,
    batch_table.c.status == Status.IN_PROGRESS,
    or_(
        batch_table.c.owner.is_(None),
        _OWNED,
        _LEASE_HAS_RUN_OUT,
        batch_table.c.owner == bindparam("gone", type_=Text),
    ),
)

ATTACH: Final = (
    update(batch_table)
    .where(ATTACHABLE)
    .values(
        query_batch_id=bindparam("number"),
        start_time_ms=func.coalesce(
            bindparam("started_ms", type_=BigInteger), bindparam("now_ms", type_=BigInteger)
        ),
        **_LEASED,
    )
)

# Transition B by the owner itself.
RETRY: Final = _update_by(RUN_AGAIN, _OWNED, start_time_ms=bindparam("now_ms"), **_LEASED)

RENEW: Final = (
    update(batch_table)
    .where(_BATCH, batch_table.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]), _OWNED)
    .values(lease_until_ms=LEASE_END)
)

SUCCEED: Final = _update_by(SUCCEEDED, _OWNED_IF_ASKED, **_DONE)

FAIL: Final = _update_by(
    FAILED,
    _OWNED_IF_ASKED,
    outcome_unknown=_UNKNOWN_IF_SAID,
    **_FAILED,
)

RESOLVE_ABANDONED: Final = _update_by(
    FAILED,
    or_(batch_table.c.owner.is_(None), _LEASE_HAS_RUN_OUT),
    outcome_unknown=true(),
    **_FAILED,
)

# Transition F; or H and then F at once, of a backfill whose lease has run out.
CLAIM: Final = _update_to(
    BACKFILL_BEGAN,
    or_(
        batch_table.c.status == BACKFILL_BEGAN.before,
        and_(batch_table.c.status == BACKFILL_FAILED.before, _LEASE_HAS_RUN_OUT),
    ),
    failed=case((batch_table.c.status == BACKFILL_FAILED.before, 1), else_=0),
    unknown_from=BACKFILL_FAILED.before,
    start_time_ms=bindparam("now_ms"),
    end_time_ms=None,
    records=None,
    **_LEASED,
)

BACKFILLED: Final = _update_by(
    BACKFILL_SUCCEEDED,
    _OWNED,
    **_NO_ERROR,
    **_DONE,
)

RELEASE: Final = _update_by(
    BACKFILL_FAILED,
    _OWNED,
    outcome_unknown=_UNKNOWN_IF_SAID,
    **_FAILED,
)

# Transition I, of the last backfill that may fail.
RELEASE_AS_DEAD: Final = _update_by(
    BACKFILL_GAVE_UP,
    _OWNED,
    failed=1,
    outcome_unknown=_UNKNOWN_IF_SAID,
    **_FAILED,
)

MARK_DEAD: Final = _update_by(BACKFILL_GAVE_UP, _OWNED, **_FAILED)

# Its failures before say nothing of what is left.
PUT_BACK_REST: Final = _update_by(PUT_BACK, _OWNED, backfills=0, **_ENDED)

SUPERSEDE: Final = _update_by(SUPERSEDED, resolution=bindparam("why"))

# Within a status: the text is whole each time, so a repeated call changes nothing more.
KEEP_PROGRESS: Final = (
    update(batch_table)
    .where(_BATCH, batch_table.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]), _OWNED)
    .values(progress=bindparam("progress"), done_records=bindparam("done_records"))
)
