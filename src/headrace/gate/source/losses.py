"""Offsets that a task cannot read any more: they stop the query, or the ledger has them.

The plan has counted the offsets that were gone when it was made. Offsets that go between the plan
and the read are seen by the task alone, so the task itself records them, before it ends: Spark may
run it twice, and nothing else that it could say would outlive that.
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
"""So many partitions are named in a sentence."""


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets that will never be read, and the reason.

    The range of a deleted topic ends at the last offset that was seen of it: at least that much is
    lost. It is empty where nothing of it was seen, and where the end of a log was cut off, of which
    this query had read a part.

    Attributes:
        topic_id: The topic's id, where the topic of that name has another one now, or none.
    """

    missing: OffsetRange
    reason: str
    topic_id: str | None = None


def describe_losses(losses: Sequence[MissingOffsets]) -> str:
    """Describe losses in one text; partitions with the same text are grouped by it.

    ::

        >>> gone = [MissingOffsets(OffsetRange("t", n, 7, 7), "t was deleted") for n in (0, 1)]
        >>> pruned = MissingOffsets(OffsetRange("t", 2, 7, 9), "the log begins at 9")
        >>> describe_losses([*gone, pruned])
        't was deleted (partitions 0, 1); t-2 [7, 9) is gone (the log begins at 9)'
    """
    partitions: dict[str, list[int]] = {}
    for loss in losses:
        # A sentence of one partition, or of offsets, names its subject.
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
"""Is called with offsets that cannot be read, and why, before they are passed over; where it
raises, they are not."""

_PATIENCE_S: Final = 10.0
"""Time for which a task waits for the ledger's database; then Spark runs the task again."""


@dataclass(frozen=True, slots=True)
class LossAccount:
    """Destination of the losses of one batch.

    Attributes:
        ledger: the URL of its ledger; never shown, for it may hold a password.
    """

    gate: str
    ledger: str = field(repr=False)
    batch_key: str
    topic_ids: Mapping[str, str]

    def record(self, missing: OffsetRange, why: str) -> None:
        """Write these offsets down as lost by this batch; durable when this returns.

        Recorded again, by a task that runs again, they are counted once.

        Raises:
            DataLossError: the ledger cannot be reached from here, or it does not have this batch.
        """
        try:
            # Here, for a task that loses nothing needs none of it, and the import takes long.
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
        """Whether there is nothing to write: a handler may hold the only lock of a SQLite file."""
        return any(
            loss.offsets.contains(missing)
            for loss in ledger.history.losses_of([self.batch_key]).get(self.batch_key, ())
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Policy of a task for offsets that it cannot read.

    Attributes:
        account: the ledger's account of losses; None without a gate: then they are only logged, as
            with the native connector.
    """

    source: str
    fail: bool
    account: LossAccount | None = None

    def refuse(self, missing: Sequence[OffsetRange], why: str) -> None:
        """Raise `DataLossError` for these offsets, where they stop the query."""
        if missing and self.fail:
            raise DataLossError(
                f"Offsets {', '.join(map(str, missing))} are gone from {self.source} ({why}); to go"
                " on without them set the option failOnDataLoss to false."
            )

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Log that these offsets are passed over, and write it down; or stop the query."""
        self.refuse([missing], why)
        _LOG.warning(
            "Offsets %s are gone from %s (%s) and are passed over.", missing, self.source, why
        )
        if self.account is not None:
            self.account.record(missing, why)
