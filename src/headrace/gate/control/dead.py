"""Why a batch is ``dead``: no run of it follows, whatever happens.

The decision is here; a transition of the ledger writes it down in the transaction that counts the
failed backfill.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from headrace.core.options import require_number
from headrace.errors import (
    JournalError,
    MachineryError,
    OptionError,
    SetupError,
    SinkAwayError,
    SourceError,
)

MAX_BACKFILLS: Final = 100
"""Default of `BackfillLimits.max_backfills`. With their waits these are some four days: longer than
a sink is away over a weekend, shorter than the week for which Kafka keeps records by default.
"""

_BLAMELESS: Final = (SourceError, JournalError, MachineryError, SetupError, SinkAwayError)
"""Errors that say nothing of a batch's records, which a later backfill may well process."""


class DeadReason(StrEnum):
    """The reasons. The values are those of the table in ``docs/failures.md``."""

    BACKFILLS = "as many of its backfills have failed as the policy allows"
    """`why_dead` decides it after a backfill."""
    GONE = "its source has nothing of it any more, and none of it was processed"
    """`why_dead` decides it before a backfill."""
    UNKNOWN = "the ledger is an older copy that does not know it"
    """A planner finds out, for all such batches of a checkpoint at once."""
    SUPERSEDED = "a new checkpoint reads all of it again"
    """A planner finds out, when its query starts."""


@dataclass(frozen=True, slots=True)
class BackfillLimits:
    """The part of a failure policy that says when a batch is given up.

    Attributes:
        max_backfills: How many backfills of a batch fail before it is dead: 1 or more. Too few, and
            an outage makes dead what could have been processed.

    Raises:
        OptionError: A limit is out of its range.
    """

    max_backfills: int = MAX_BACKFILLS

    def __post_init__(self) -> None:
        require_number("max_backfills", self.max_backfills, least=1)


class FailedBatch(Protocol):
    """A batch that a backfill has claimed, as the ledger counts it."""

    @property
    def backfills(self) -> int:
        """Number of its backfills that have failed before."""

    @property
    def done_records(self) -> int:
        """Number of its records that are processed or kept as dead letters."""


def why_dead(
    batch: FailedBatch,
    limits: BackfillLimits,
    error: object = None,
    *,
    is_gone: bool = False,
) -> DeadReason | None:
    """Return why a batch is dead once this backfill has failed; None if another one follows.

    Args:
        batch: The batch, as the backfill has claimed it.
        limits: Those of the gate's policy.
        error: Why the backfill failed. An error that is not the handler's makes no batch dead.
        is_gone: Whether everything that is left of the batch has left its source.
    """
    if is_gone:
        return None if batch.done_records else DeadReason.GONE
    # Not its subclasses, which say what a handler has rejected: that counts.
    if isinstance(error, _BLAMELESS) or type(error) is OptionError:
        return None
    is_last = batch.backfills + 1 >= limits.max_backfills
    return DeadReason.BACKFILLS if is_last else None
