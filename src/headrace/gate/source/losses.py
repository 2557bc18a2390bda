"""Offsets that a task cannot read any more: they stop the query, or the ledger records them.

The plan counts the offsets that are gone at that time. Only the task sees offsets that disappear
between the plan and the read. An accumulator does not survive every sink, and a marker in the data
does not survive every plan. So the task itself opens the ledger, only after a loss, and the loss is
durable before the task ends.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, LedgerError

if TYPE_CHECKING:
    from headrace.gate.ledger.ledger import Ledger

_LOG: Final = logging.getLogger("headrace.source")

_NAMED: Final = 10
"""Maximum number of partitions named in a sentence."""


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets that will never be read, and the reason.

    The range of a deleted topic ends at its last seen offset: at least this range is lost. The
    range is empty if no end was seen, or if the log lost an end that this query had read.

    Attributes:
        topic_id: Id of the lost topic, if the topic of this name now has another id, or none.
    """

    missing: OffsetRange
    reason: str
    topic_id: str | None = None


def describe_losses(losses: Sequence[MissingOffsets]) -> str:
    """Describe losses in one text, with partitions grouped by their text.

    ::

        >>> gone = [MissingOffsets(OffsetRange("t", n, 7, 7), "t was deleted") for n in (0, 1)]
        >>> pruned = MissingOffsets(OffsetRange("t", 2, 7, 9), "the log begins at 9")
        >>> describe_losses([*gone, pruned])
        't was deleted (partitions 0, 1); t-2 [7, 9) is gone (the log begins at 9)'
    """
    partitions: dict[str, list[int]] = {}
    for loss in losses:
        # A reason that names its partition, or a range, stands alone; other reasons are grouped.
        missing = loss.missing
        if not missing.count and str(missing.topic_partition) not in loss.reason:
            partitions.setdefault(loss.reason, []).append(missing.partition)
        elif missing.count:
            partitions[f"{missing} is gone ({loss.reason})"] = []
        else:
            partitions[loss.reason] = []
    return "; ".join(why + _numbered(numbers) for why, numbers in partitions.items())


def _numbered(partitions: Sequence[int]) -> str:
    if not partitions:
        return ""
    named, more = sorted(partitions)[:_NAMED], len(partitions) - _NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f" (partition{'s' * (len(partitions) > 1)} {', '.join(map(str, named))}{rest})"


OnLoss = Callable[[OffsetRange, str], None]
"""Function called with unreadable offsets and the reason before they are skipped; it raises to
prevent the skip."""

_PATIENCE_S: Final = 10.0
"""Time for which a task waits for the ledger's database (s); then Spark runs the task again."""


@dataclass(frozen=True, slots=True)
class LossAccount:
    """Destination of the losses of one batch.

    Attributes:
        ledger: URL of the gate's ledger; never shown, because it may contain a password.
    """

    gate: str
    ledger: str = field(repr=False)
    batch_key: str
    topic_ids: Mapping[str, str]

    def record(self, missing: OffsetRange, why: str) -> None:
        """Record these offsets as lost by this batch; durable when this returns.

        Offsets that a repeated task records again count once. DataLossError is raised if the ledger
        cannot be reached from here, or does not have this batch.
        """
        try:
            # Import here: a task without a loss needs no ledger, and the import is slow.
            from headrace.gate.ledger.connection import Timeouts  # noqa: PLC0415
            from headrace.gate.ledger.ledger import Ledger  # noqa: PLC0415

            with Ledger.join(self.ledger, timeouts=Timeouts(retry_s=_PATIENCE_S)) as ledger:
                if not self._is_recorded(ledger, missing):
                    ledger.history.record_losses(
                        self.gate,
                        [missing],
                        self.topic_ids,
                        batch_key=self.batch_key,
                        reasons={missing: why},
                    )
        except (LedgerError, ImportError) as error:
            raise DataLossError(
                f"Offsets {missing} are gone ({why}) and cannot be recorded as lost by batch"
                f" {self.batch_key} of gate {self.gate!r}, for a task cannot write to the gate's"
                f" ledger ({str(error).rstrip('.')}); use a ledger that every executor can reach,"
                " such as a PostgreSQL database, and start the query again."
            ) from None

    def _is_recorded(self, ledger: "Ledger", missing: OffsetRange) -> bool:
        """Return whether the loss is recorded: a handler may hold a SQLite file's only lock."""
        return any(
            loss.offsets.contains(missing)
            for loss in ledger.history.losses_of([self.batch_key]).get(self.batch_key, ())
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Policy of a task for offsets that it cannot read.

    Attributes:
        account: The ledger's account of losses. None without a gate: then losses are only logged,
            as by the native connector.
    """

    source: str
    fail: bool
    account: LossAccount | None = None

    def refuse(self, missing: Sequence[OffsetRange], why: str) -> None:
        """Raise `DataLossError` for these offsets if losses stop the query."""
        if missing and self.fail:
            raise DataLossError(
                f"Offsets {', '.join(map(str, missing))} are gone from {self.source} ({why}); to go"
                " on without them set the option failOnDataLoss to false."
            )

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Log and record that these offsets are skipped, or stop the query."""
        self.refuse([missing], why)
        _LOG.warning(
            "Offsets %s are gone from %s (%s) and are passed over.", missing, self.source, why
        )
        if self.account is not None:
            self.account.record(missing, why)
