"""Isolations of a gate's batches: the one that goes on, and how often they were needed lately."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from headrace.ledger import BatchRecord, IsolatedBatches, IsolationProgress
from headrace.status.words import count, plural, short_error

MANY: Final = 10
"""More of a gate's last batches with records that were found bad by exceptions are too many."""

_REASON_LENGTH: Final = 70
"""Characters of an exception's message that a sentence has."""


@dataclass(frozen=True, slots=True)
class IsolationSnapshot:
    """Progress of a batch's isolation."""

    records: int
    """The offsets in the batch."""
    runs: int
    """How often the handler was run on its parts."""
    left: int
    """Offsets that are not done."""

    @classmethod
    def of(cls, progress: IsolationProgress) -> Self:
        """The same, without the batch's key."""
        return cls(progress.records, progress.runs, progress.left)


@dataclass(frozen=True, slots=True)
class IsolatedSnapshot:
    """The last batches in which isolation found bad records, because the handler raised."""

    batches: int
    """Their number."""
    of: int
    """The last batches that were looked at."""
    error: str
    """What the handler raised last: the beginning of its message, and its class."""

    @classmethod
    def among(cls, batches: Sequence[BatchRecord], isolated: IsolatedBatches | None) -> Self | None:
        """Count the isolated ones of a gate's last batches; None if none was isolated."""
        if isolated is None:
            return None
        number = sum(batch.batch_key in isolated.keys for batch in batches)
        error = isolated.error
        reason = error.message.strip().partition("\n")[0]
        if len(reason) > _REASON_LENGTH:
            error = replace(error, message=f"{reason[: _REASON_LENGTH - 1].rstrip()}…")
        return cls(number, len(batches), short_error(error)) if number else None

    @property
    def advice(self) -> str | None:
        """What would find the bad records at less cost; None while few batches were isolated."""
        if self.batches <= MANY:
            return None
        return (
            f"The handler raised on single records in {count(self.batches)} of the last"
            f" {plural(self.of, 'batch')} (last {self.error.rstrip('.')}), and is run many times"
            " to find them: have it batch.reject them, or decode at the source with"
            " gate.read(..., decode=...), as docs/failures.md says."
        )
