"""Decide whether a failed batch becomes ``dead``, so that no backfill runs it again, and why.

The ledger stores the decision in the transaction that counts the failed backfill.
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
"""Default of `BackfillLimits.max_backfills`. With the waits between them, 100 backfills take about
four days: longer than a sink's outage over a weekend, and shorter than the week for which Kafka
keeps records by default."""

_BLAMELESS: Final = (SourceError, JournalError, MachineryError, SetupError, SinkAwayError)
"""Errors whose cause is not in a batch's records, so that a later backfill may succeed."""


class DeadReason(StrEnum):
    """Reasons why a batch is dead. The table in ``docs/failures.md`` shows the same values."""

    BACKFILLS = "as many of its backfills have failed as the policy allows"
    """`why_dead` returns this reason after the last backfill that `BackfillLimits` allows."""
    GONE = "its source has nothing of it any more, and none of it was processed"
    """`why_dead` returns this reason before a backfill, if the batch's records are gone."""
    UNKNOWN = "the ledger is an older copy that does not know it"
    """Reason for batches that the checkpoint has, but an older copy of the ledger lacks. A planner
    finds all of these batches at once."""
    SUPERSEDED = "a new checkpoint reads all of it again"
    """Reason for the batches whose records a new checkpoint reads again. A planner finds these
    batches when its query starts."""


@dataclass(frozen=True, slots=True)
class BackfillLimits:
    """Limits of a failure policy: a batch that reaches them is dead.

    Attributes:
        max_backfills: A batch is dead after this many failed backfills; 1 or more. Default: 100.
            Too few: an outage makes batches dead that could have been processed.

    Raises:
        OptionError: A limit is out of its range.
    """

    max_backfills: int = MAX_BACKFILLS

    def __post_init__(self) -> None:
        require_number("max_backfills", self.max_backfills, least=1)


class FailedBatch(Protocol):
    """The counts of a batch that a backfill has claimed, as the ledger stores them."""

    @property
    def backfills(self) -> int:
        """Number of failed backfills of the batch, without the present backfill."""

    @property
    def done_records(self) -> int:
        """Number of the batch's records that are processed or stored as dead letters."""


def why_dead(
    batch: FailedBatch,
    limits: BackfillLimits,
    error: object = None,
    *,
    is_gone: bool = False,
) -> DeadReason | None:
    """Return why a batch is dead after a failed backfill; None if another backfill may follow.

    Args:
        batch: The counts of the batch.
        limits: The limits of the gate's failure policy.
        error: The exception of the backfill; None without an exception. An exception whose cause is
            not in the records never makes a batch dead.
        is_gone: Whether the source no longer has any unfinished offset of the batch.
    """
    if is_gone:
        return None if batch.done_records else DeadReason.GONE
    # Subclasses of OptionError do make a batch dead: they report rejections by the handler.
    if isinstance(error, _BLAMELESS) or type(error) is OptionError:
        return None
    is_last = batch.backfills + 1 >= limits.max_backfills
    return DeadReason.BACKFILLS if is_last else None
