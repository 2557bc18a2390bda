"""Policy for offsets that a task can no longer read: stop the query, or record a loss.

The planner records the offsets that are gone when it plans a batch. Only a task sees offsets that
disappear between the plan and the read. So the task itself opens the ledger after a loss, and the
loss is durable before the task ends. Sending the loss to the driver would be unreliable: some sinks
drop accumulators, and some query plans drop a marker in the data.
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
"""Maximum number of partitions that the description of a loss lists."""


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets that will never be read, and the reason.

    In a deleted topic, the range ends at the last end offset that was seen; more may be lost. The
    range is empty if no end was seen, or if the log has lost only records that this query had read.

    Attributes:
        topic_id: Id of the topic, if it was deleted or recreated; None if the topic still exists.
    """

    missing: OffsetRange
    reason: str
    topic_id: str | None = None


def describe_losses(losses: Sequence[MissingOffsets]) -> str:
    """Return one text about all losses. It lists empty ranges with the same reason together.

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
"""Function called with unreadable offsets and the reason, before the read skips the offsets. If the
function raises an exception, the offsets are not skipped."""

_PATIENCE_S: Final = 10.0
"""Maximum time for which a task waits for the ledger (s). Then the task fails, and Spark repeats
it."""


@dataclass(frozen=True, slots=True)
class LossAccount:
    """Account in the ledger to which the tasks of one batch write their losses.

    Attributes:
        ledger: URL of the gate's ledger; never shown, because it may contain a password.
    """

    gate: str
    ledger: str = field(repr=False)
    batch_key: str
    topic_ids: Mapping[str, str]

    def record(self, missing: OffsetRange, why: str) -> None:
        """Record offsets in the ledger as lost by this batch, durably before the call returns.

        Offsets that a repeated task records again count once. DataLossError is raised if this
        machine cannot reach the ledger, or if the ledger does not have this batch.
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
                f"Offsets {missing} are gone ({why}), and the task cannot record this loss of batch"
                f" {self.batch_key} in the ledger of gate {self.gate!r}"
                f" ({str(error).rstrip('.')}); use a ledger that every executor can reach, such as"
                " PostgreSQL, and start the query again."
            ) from None

    def _is_recorded(self, ledger: "Ledger", missing: OffsetRange) -> bool:
        """Return whether the ledger has this loss already, for example from a repeated task.

        This avoids a write, which would wait while a handler holds the only lock of a SQLite
        file.
        """
        return any(
            loss.offsets.contains(missing)
            for loss in ledger.history.losses_of([self.batch_key]).get(self.batch_key, ())
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Policy of a task for offsets that it cannot read.

    Attributes:
        fail: Whether a loss stops the query.
        account: Account of losses in the ledger. None without a gate: losses are then only logged,
            as by the native connector.
    """

    source: str
    fail: bool
    account: LossAccount | None = None

    def refuse(self, missing: Sequence[OffsetRange], why: str) -> None:
        """Raise `DataLossError` for missing offsets, if losses stop the query."""
        if missing and self.fail:
            raise DataLossError(
                f"Offsets {', '.join(map(str, missing))} are gone from {self.source} ({why}); to"
                " continue without them, and only report the loss, set the option failOnDataLoss to"
                " false."
            )

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Log and record a loss before the read skips it, or raise `DataLossError`."""
        self.refuse([missing], why)
        _LOG.warning("Offsets %s are gone from %s (%s) and are skipped.", missing, self.source, why)
        if self.account is not None:
            self.account.record(missing, why)
