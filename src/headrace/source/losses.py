"""Offsets that a task cannot read any more: they stop the query, or the ledger has them.

The plan has counted what was gone when it was made. What goes between the plan and the read is
seen by the task alone, so the task itself writes it down, before it ends: Spark may run it twice,
and nothing else that it could say would outlive that.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, LedgerError

if TYPE_CHECKING:
    from headrace.ledger import Ledger

_LOG: Final = logging.getLogger("headrace.source")

OnLoss = Callable[[OffsetRange, str], None]
"""Is called with offsets that cannot be read, and why, before they are passed over; where it
raises, they are not."""

_PATIENCE_S: Final = 10.0
"""How long a task waits for the ledger's database; then Spark runs the task again."""


@dataclass(frozen=True, slots=True)
class LossAccount:
    """Where the losses of one batch are written down.

    Attributes:
        gate: the gate.
        ledger: the URL of its ledger; never shown, for it may hold a password.
        schedule_id: the batch's key.
        topic_ids: the topics' ids when it was planned.
    """

    gate: str
    ledger: str = field(repr=False)
    schedule_id: str
    topic_ids: Mapping[str, str]

    def record(self, missing: OffsetRange, why: str) -> None:
        """Write these offsets down as lost by this batch; durable when this returns.

        Recorded again, by a task that runs again, they are counted once.

        Raises:
            DataLossError: the ledger cannot be reached from here, or it does not have this batch.
        """
        try:
            # Here, for a task that loses nothing needs none of it, and the import takes long.
            from headrace.ledger import Ledger  # noqa: PLC0415

            with Ledger.join(self.ledger, patience_s=_PATIENCE_S) as ledger:
                if not self._is_recorded(ledger, missing):
                    ledger.record_losses(
                        self.gate,
                        [missing],
                        self.topic_ids,
                        schedule_id=self.schedule_id,
                        reasons={missing: why},
                    )
        except (LedgerError, ImportError) as error:
            raise DataLossError(
                f"Offsets {missing} are gone ({why}) and cannot be recorded as lost by batch"
                f" {self.schedule_id} of gate {self.gate!r}, for a task cannot write to the gate's"
                f" ledger ({str(error).rstrip('.')}); use a ledger that every executor can reach,"
                " such as a PostgreSQL database, and start the query again."
            ) from None

    def _is_recorded(self, ledger: "Ledger", missing: OffsetRange) -> bool:
        """Whether there is nothing to write: a handler may hold the only lock of a SQLite file."""
        return any(
            loss.offsets.topic_partition == missing.topic_partition
            and loss.offsets.start <= missing.start
            and missing.until <= loss.offsets.until
            for loss in ledger.losses_of([self.schedule_id]).get(self.schedule_id, ())
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """What a task does with offsets that it cannot read.

    Attributes:
        source: what they are gone from, in messages, such as Kafka.
        fail: whether they stop the query.
        account: where they are written down otherwise; None where there is no gate, and so only a
            log, as with the native connector.
    """

    source: str
    fail: bool
    account: LossAccount | None = None

    def refuse(self, missing: Sequence[OffsetRange], why: str) -> None:
        """Raise for these offsets, where they stop the query.

        Raises:
            DataLossError: they do.
        """
        if missing and self.fail:
            raise DataLossError(
                f"Offsets {', '.join(map(str, missing))} are gone from {self.source} ({why}); to go"
                " on without them set the option failOnDataLoss to false."
            )

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Log that these offsets are passed over, and write it down; or stop the query.

        Raises:
            DataLossError: they stop the query, or cannot be written down.
        """
        self.refuse([missing], why)
        _LOG.warning(
            "Offsets %s are gone from %s (%s) and are passed over.", missing, self.source, why
        )
        if self.account is not None:
            self.account.record(missing, why)
