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
C      the engine runs a failed batch again after a crash                  + 1
D      the handler or sink finished
E      the handler or sink raised, or the batch's owner has ended
F      a backfill claims the batch
G      the backfill finished
H      the backfill raised, and may be repeated                            + 1
I      the last allowed backfill raised,                                   + 1
       or the batch's ranges have left Kafka                               0
J      the backfill finished a part; the next backfill runs the rest       0
K      another checkpoint reads all unfinished offsets of the batch        0
====== =================================================================== =========

If the lease of a ``backfilling`` batch has expired, the next claim of the batch performs H and F at
once. A batch stores its finished parts in ``progress`` without a change of status; ``success``
deletes the ``progress``.

There is no other transition. ``success`` and ``dead`` are final statuses.

Every value is a bound parameter. ``by`` is the owner, or the process that wants to be the owner.
``call`` is the id of the call, and is stored in the row. If the answer to a call is lost with the
connection, the call is repeated. The repeated call finds its own id in the row and makes the same
change, so it returns the same result as the first call. If another process has changed the row
since, the repeated call changes no row.
"""

import secrets
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from headrace.gate.ledger.statements import Statement


class Status(StrEnum):
    """Status of a batch; `success` and `dead` are final."""

    IN_PROGRESS = "in_progress"
    SUCCESS = "success"
    FAILED = "failed"
    BACKFILLING = "backfilling"
    DEAD = "dead"


class Kind(StrEnum):
    """Kind of a batch's run: in the live stream, or in a backfill after a failure."""

    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True)
class Transition:
    """An allowed change of a batch's status, with its conditions and side effects.

    Attributes:
        letters: Letters of the transition in this module's diagram.
        before: Statuses from which the transition is allowed; empty for a new row.
        after: Status after the transition.
        sets: Additional column assignments, as SQL.
        allowed: Condition on the row in addition to the status, as SQL.
        attempts: Number added to the batch's attempts, as SQL.
        backfills: Number added to the batch's failed backfills, as SQL; None sets that count to 0.
    """

    letters: str
    before: tuple[Status, ...]
    after: Status
    sets: str = ""
    allowed: str = "true"
    attempts: str = "0"
    backfills: str | None = "0"

    @cached_property
    def statement(self) -> Statement:
        """The UPDATE statement of the transition; a second run for the same call has no effect."""
        made = f"(status = '{self.after}' AND last_call = :call)"
        before = ", ".join(f"'{status}'" for status in self.before)

        def added(column: str, number: str) -> str:
            return f"{column} = {column} + CASE WHEN {made} THEN 0 ELSE {number} END"

        changes = [f"status = '{self.after}', last_call = :call"]
        changes += [self.sets] if self.sets else []
        changes += [added("attempts", self.attempts)] if self.attempts != "0" else []
        changes += ["backfills = 0"] if self.backfills is None else []
        changes += [added("backfills", self.backfills)] if self.backfills not in (None, "0") else []
        return Statement(
            f"transition {self.letters}",
            [
                f"UPDATE batch SET {', '.join(changes)}",  # noqa: S608  (of constants)
                f"WHERE batch_key = :batch AND ({made} OR (status IN ({before})",
                f"  AND {self.allowed}))",
            ],
        )


_LEASED: Final = "owner = :by, lease_until_ms = {now} + CAST(:lease_ms AS bigint)"
_OWNED: Final = "owner = :by"
_OWNED_IF_ASKED: Final = "(CAST(:by AS text) IS NULL OR owner = :by)"
_ERROR: Final = (
    "error_class = :error_class, error_message = :error_message, error_trace = :error_trace"
)
_NO_ERROR: Final = "error_class = NULL, error_message = NULL, error_trace = NULL"
_ENDED: Final = "end_time_ms = :ended_ms, owner = NULL, lease_until_ms = NULL"
_DONE: Final = (
    f"{_ENDED}, records = coalesce(CAST(:counted AS bigint), records), progress = NULL,"
    " done_records = 0"
)
_FAILED: Final = f"{_ENDED}, {_ERROR}"
_AFRESH: Final = f"start_time_ms = NULL, end_time_ms = NULL, records = NULL, {_NO_ERROR}"

# ``outcome_unknown`` stays true: no later run reveals whether the sink has the batch's records.
_UNKNOWN_IF_SAID: Final = "outcome_unknown = (outcome_unknown OR :unknown)"


def _unknown_again(status: Status) -> str:
    """Return SQL that sets ``outcome_unknown`` if the row was in ``status`` before the call."""
    made = f"status = '{status}' AND last_call = :call"
    return (
        f"outcome_unknown = (outcome_unknown OR (NOT coalesce({made}, false)"
        f" AND status = '{status}'))"
    )


_LIVE, _OPEN, _TAKEN = Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING

# B and C are one statement: between two statements, another process could change the status from
# ``in_progress`` to ``failed``, and neither would match.
BEGIN_AGAIN: Final = Transition(
    "B, C", (_LIVE, _OPEN), _LIVE, f"{_AFRESH}, {_unknown_again(_LIVE)}", attempts="1"
)
RETRY: Final = Transition(
    "B", (_LIVE,), _LIVE, f"start_time_ms = :now_ms, {_LEASED}", _OWNED, attempts="1"
)
SUCCEED: Final = Transition("D", (_LIVE,), Status.SUCCESS, _DONE, _OWNED_IF_ASKED)
FAIL: Final = Transition("E", (_LIVE,), _OPEN, f"{_FAILED}, {_UNKNOWN_IF_SAID}", _OWNED_IF_ASKED)
RESOLVE_ABANDONED: Final = Transition(
    "E", (_LIVE,), _OPEN, f"{_FAILED}, outcome_unknown = true", "(owner IS NULL OR {expired})"
)
_FAILED_MEANWHILE: Final = "CASE status WHEN 'backfilling' THEN 1 ELSE 0 END"
CLAIM: Final = Transition(
    "F; H, F",
    (_OPEN, _TAKEN),
    _TAKEN,
    f"start_time_ms = :now_ms, end_time_ms = NULL, records = NULL, {_unknown_again(_TAKEN)},"
    f" {_LEASED}",
    "(status = 'failed' OR {expired})",
    attempts=_FAILED_MEANWHILE,
    backfills=_FAILED_MEANWHILE,
)
BACKFILLED: Final = Transition("G", (_TAKEN,), Status.SUCCESS, f"{_NO_ERROR}, {_DONE}", _OWNED)
RELEASE: Final = Transition(
    "H",
    (_TAKEN,),
    _OPEN,
    f"{_FAILED}, {_UNKNOWN_IF_SAID}",
    _OWNED,
    attempts="1",
    backfills="1",
)
RELEASE_AS_DEAD: Final = Transition(
    "I",
    (_TAKEN,),
    Status.DEAD,
    f"{_FAILED}, {_UNKNOWN_IF_SAID}",
    _OWNED,
    attempts="1",
    backfills="1",
)
MARK_DEAD: Final = Transition("I", (_TAKEN,), Status.DEAD, _FAILED, _OWNED)
# Earlier failures do not predict the failure of the other parts, so the count starts again at 0.
PUT_BACK: Final = Transition("J", (_TAKEN,), _OPEN, _ENDED, _OWNED, backfills=None)
SUPERSEDE: Final = Transition("K", (_OPEN,), Status.DEAD, "resolution = :why")

TRANSITIONS: Final = (
    BEGIN_AGAIN,
    RETRY,
    SUCCEED,
    FAIL,
    RESOLVE_ABANDONED,
    CLAIM,
    BACKFILLED,
    RELEASE,
    RELEASE_AS_DEAD,
    MARK_DEAD,
    PUT_BACK,
    SUPERSEDE,
)


def new_call_id() -> str:
    """Return a random id for one call that changes a batch; retries of the call use the same id."""
    return secrets.token_hex(8)
