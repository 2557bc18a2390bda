"""The states of a batch, and the arrows along which its row moves.

::

              A                 D
    (planned) ──> in_progress ─────────────────────────> success
                   ↺B  ^  │                                 ^
                       │  │ E                               │
                      C│  v            F                    │ G
                      failed ───────────────> backfilling ──┤
                        ^                       │           │
                        └───────────────────────┘           │ I
                                   H                        v
                                                          dead

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
       or its ranges have left Kafka, or its one record is a dead letter   0
====== =================================================================== =========

Where a backfill's lease has run out, whoever takes the batch next moves it along H and F at once; a
live batch whose one record cannot be processed moves along E, F and I at once.

There is no other arrow. ``success`` and ``dead`` are final: a row never leaves them.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Status(StrEnum):
    """Where a batch stands."""

    IN_PROGRESS = "in_progress"
    SUCCESS = "success"
    FAILED = "failed"
    BACKFILLING = "backfilling"
    DEAD = "dead"


class Kind(StrEnum):
    """What planned a batch: the live stream, or a backfill of one that failed."""

    LIVE = "live"
    BACKFILL = "backfill"


class Arrow(NamedTuple):
    """One allowed move of a row: compare with ``before``, set ``after``, add to the counts."""

    letter: str
    before: Status | None
    after: Status
    attempts: int = 0
    backfills: int = 0


PLANNED: Final = Arrow("A", None, Status.IN_PROGRESS, attempts=1)
RUN_AGAIN: Final = Arrow("B", Status.IN_PROGRESS, Status.IN_PROGRESS, attempts=1)
FAILED_RUN_AGAIN: Final = Arrow("C", Status.FAILED, Status.IN_PROGRESS, attempts=1)
SUCCEEDED: Final = Arrow("D", Status.IN_PROGRESS, Status.SUCCESS)
FAILED: Final = Arrow("E", Status.IN_PROGRESS, Status.FAILED)
BACKFILL_BEGAN: Final = Arrow("F", Status.FAILED, Status.BACKFILLING)
BACKFILL_SUCCEEDED: Final = Arrow("G", Status.BACKFILLING, Status.SUCCESS)
BACKFILL_FAILED: Final = Arrow("H", Status.BACKFILLING, Status.FAILED, attempts=1, backfills=1)
BACKFILL_GAVE_UP: Final = Arrow("I", Status.BACKFILLING, Status.DEAD)

ARROWS: Final = (
    PLANNED,
    RUN_AGAIN,
    FAILED_RUN_AGAIN,
    SUCCEEDED,
    FAILED,
    BACKFILL_BEGAN,
    BACKFILL_SUCCEEDED,
    BACKFILL_FAILED,
    BACKFILL_GAVE_UP,
)
