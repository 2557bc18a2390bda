"""``headrace drop``: dead batches that nobody needs to look after any more."""

from typing import Annotated

import typer

from headrace.cli.batches import find_batch
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, Ledger, Status


def drop(
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Which; or how the key begins.")],
    reason: Annotated[str, typer.Option(help="Why; kept with the batch.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Say that dead batches are not to be looked after any more, and why; this is final.

    A batch is dead when its attempts are spent, or its records have left Kafka.
    """
    if not reason.strip():
        raise OptionError("--reason is empty; say why the batch need not be processed.")
    # What is to be changed is there already: a ledger that is not is never made here.
    with Ledger.open(ledger, create=False) as reader:
        batches = [find_batch(reader, key, ledger) for key in keys]
    for batch in batches:
        _refuse_unless_dead(batch)
    with Ledger.open(ledger) as opened:
        for batch in batches:
            if not opened.drop(batch.schedule_id, reason.strip()):
                _refuse_unless_dead(find_batch(opened, batch.schedule_id, ledger))
            typer.echo(f"Batch {batch.schedule_id} is dropped.")


def _refuse_unless_dead(batch: BatchRecord) -> None:
    if batch.status is not Status.DEAD:
        raise OptionError(
            f"Batch {batch.schedule_id} is {batch.status}; only one that is dead can be dropped."
        )
    if batch.resolution is not None:
        raise OptionError(
            f"Batch {batch.schedule_id} was dropped already ({batch.resolution}); once is enough."
        )
