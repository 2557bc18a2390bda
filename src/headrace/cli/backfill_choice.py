"""Which batches are to be run: those that somebody names, those of a gate or a time, or all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cli.batches import find_batch
from headrace.cli.batches_view import owner_words, short_error
from headrace.cli.lines import printable
from headrace.cli.status import gates_of
from headrace.cli.times import full_time
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, Ledger, Status

RUNNABLE: Final = (Status.FAILED, Status.BACKFILLING)
"""What a batch is at that can be run; if ``backfilling``, its lease has to have run out."""

_EVERY_ONE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line names: keys, or what the batches have in common, or all of them."""

    keys: Sequence[str] = ()
    everything: bool = False
    gate: str | None = None
    status: Status | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """See that there is one way to choose.

        Raises:
            OptionError: There is none, or more than one; or no batch that can be run is at the
                status.
        """
        filters = (self.status, self.since_ms, self.until_ms)
        by_filter = any(each is not None for each in filters)
        by_gate = self.gate is not None and not self.everything
        if [bool(self.keys), by_filter or by_gate, self.everything].count(True) != 1:
            raise OptionError(
                "Name the batches to run in one way: by their KEYs; by --gate, --status, --since"
                " and --until; or with --all, or --gate and --all."
            )
        if self.status is not None and self.status not in RUNNABLE:
            raise OptionError(
                f"--status is '{self.status}', but only batches that are"
                f" {' or '.join(RUNNABLE)} can be run; name one of these."
            )

    def includes(self, batch: BatchRecord) -> bool:
        """Whether a failed batch is meant, where no keys are named."""
        return (
            self.status in {None, batch.status}
            and (self.since_ms is None or batch.created_time_ms >= self.since_ms)
            and (self.until_ms is None or batch.created_time_ms < self.until_ms)
        )


def choose(ledger: Ledger, url: str, choice: Choice) -> list[BatchRecord]:
    """The batches that are meant, earliest created first; all of one gate.

    Args:
        ledger: Where they are.
        url: The ledger's, for errors.
        choice: Which are meant; checked.

    Raises:
        OptionError: A key is unknown, or of a batch that cannot be run; there is no such gate; or
            the batches are of several gates.
        LedgerError: The ledger cannot be read.
    """
    if choice.keys:
        named = [find_batch(ledger, key, url) for key in choice.keys]
        for batch in named:
            _refuse_unless_runnable(ledger, batch)
        found = list({batch.schedule_id: batch for batch in named}.values())
    else:
        gates_of(ledger, choice.gate, url)
        found = [b for b in ledger.failed(choice.gate, _EVERY_ONE) if choice.includes(b)]
    # A part of one of them is run with it.
    keys = {batch.schedule_id for batch in found}
    found = [batch for batch in found if batch.parent not in keys]
    gates = sorted({batch.gate for batch in found})
    if len(gates) > 1:
        raise OptionError(
            f"These batches are of the gates {', '.join(map(repr, gates))}, and a handler is one"
            " gate's; run those of each by themselves, with --gate."
        )
    return sorted(found, key=lambda batch: (batch.created_time_ms, batch.schedule_id))


def _refuse_unless_runnable(ledger: Ledger, batch: BatchRecord) -> None:
    key = batch.schedule_id
    match batch.status:
        case Status.FAILED:
            return
        case Status.BACKFILLING:
            now_ms = ledger.database_time_ms()
            if owner_words(batch, now_ms) != "busy":
                return
            why = (
                "is run by another backfill, which has it at least until"
                f" {full_time(batch.lease_until_ms, now_ms)}; wait for what becomes of it"
            )
        case Status.IN_PROGRESS:
            why = (
                "is in_progress, so the live stream runs it; if that has ended, start its query"
                " again, which runs or fails the batch"
            )
        case Status.SUCCESS if ledger.parts(key):
            why = f"was split; name the parts that failed, which `headrace batches {key}` lists"
        case Status.SUCCESS:
            why = (
                "is success, so it is processed; name one that failed, as `headrace failures` does"
            )
        case Status.DEAD:
            error = "" if batch.error is None else f" ({printable(short_error(batch.error))})"
            why = (
                f"is dead{error}, which is final; a record that is kept as a dead letter can be"
                " sent again with `headrace letters send`, and of a whole batch"
                f" `headrace batches {key}` tells the ranges, to read them with Spark itself"
            )
    raise OptionError(f"Batch {key} of gate {batch.gate!r} {why}.")
