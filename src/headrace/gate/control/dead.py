"""The reason why a batch is ``dead``: no further run of the batch follows.

This module decides. A transition of the ledger stores the decision in the transaction that counts
the failed backfill.
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
a weekend's outage of a sink, shorter than the week for which Kafka keeps records by default."""

_BLAMELESS: Final = (SourceError, JournalError, MachineryError, SetupError, SinkAwayError)
"""Errors that are no evidence against a batch's records; a later backfill may process the batch."""


class DeadReason(StrEnum):
    """The reasons for a dead batch. The values are those of the table in ``docs/failures.md``."""

    BACKFILLS = "as many of its backfills have failed as the policy allows"
    """`why_dead` returns this reason after a backfill."""
    GONE = "its source has nothing of it any more, and none of it was processed"
    """`why_dead` returns this reason before a backfill."""
    UNKNOWN = "the ledger is an older copy that does not know it"
    """A planner detects this case, for all such batches of a checkpoint at once."""
    SUPERSEDED = "a new checkpoint reads all of it again"
    """A planner detects this case, when its query starts."""


@dataclass(frozen=True, slots=True)
class BackfillLimits:
    """The limits of a failure policy after which a batch is dead.

    Attributes:
        max_backfills: Number of failed backfills after which a batch is dead: 1 or more. Default:
            100. Too few: an outage makes batches dead that could have been processed.

    Raises:
        OptionError: A limit is out of its range.
    """

    max_backfills: int = MAX_BACKFILLS

    def __post_init__(self) -> None:
        require_number("max_backfills", self.max_backfills, least=1)


class FailedBatch(Protocol):
    """A batch that a backfill has claimed, as counted in the ledger."""

    @property
    def backfills(self) -> int:
        """Number of earlier failed backfills of the batch."""

    @property
    def done_records(self) -> int:
        """Number of its records that are processed or stored as dead letters."""


def why_dead(
    batch: FailedBatch,
    limits: BackfillLimits,
    error: object = None,
    *,
    is_gone: bool = False,
) -> DeadReason | None:
    """Return why a batch is dead after this backfill; None if another backfill follows.

    Args:
        batch: The batch, as claimed by the backfill.
        limits: The limits of the gate's policy.
        error: The failure of the backfill. An error outside the handler makes no batch dead.
        is_gone: Whether all remaining offsets of the batch have left its source.
    """
    if is_gone:
        return None if batch.done_records else DeadReason.GONE
    # Subclasses of OptionError count: they describe a rejection by the handler.
    if isinstance(error, _BLAMELESS) or type(error) is OptionError:
        return None
    is_last = batch.backfills + 1 >= limits.max_backfills
    return DeadReason.BACKFILLS if is_last else None
