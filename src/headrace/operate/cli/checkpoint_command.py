"""``headrace checkpoint``: prints a gate's position, and exports a checkpoint for Spark."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.core.ranges import TopicPartition, nested
from headrace.errors import OptionError
from headrace.gate import (
    Checkpoint,
    GateMemory,
    Ledger,
    StreamOffset,
    continued,
    export as export_checkpoint,
    redact_url,
)
from headrace.operate.cli import shared_options as opt

checkpoint = typer.Typer(no_args_is_help=True, add_completion=False)


@checkpoint.callback()
def commands() -> None:
    """Print a gate's position, or take its checkpoint back to Spark's own Kafka source."""


@checkpoint.command()
def offsets(
    *,
    gate: opt.TheGate = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Print where a gate stands, as the ledger knows it: a value for the option startingOffsets.

    A batch that is not done lies behind it already: headrace failures lists those.
    """
    with Ledger.open(ledger, create=False) as opened:
        gate = opt.the_gate(opened, gate, ledger, say=True).name
        rows = opened.history.checkpoints(gate)
    read = {TopicPartition(row.topic, p): 0 for row in rows for p in row.untils}
    memory = GateMemory(redact_url(ledger), gate, "", rows)
    positions = continued(StreamOffset(read), memory).positions
    if not positions:
        raise OptionError(f"Gate {gate!r} has read nothing yet, so it stands nowhere.")
    typer.echo(json.dumps(nested(positions), separators=(",", ":")))


@checkpoint.command()
def export(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The checkpoint, in a folder of this machine.")
    ],
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the copy; it must not be there yet.")
    ],
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun",
            help="Have a batch that is planned and not committed run again by the native source.",
        ),
    ] = False,
) -> None:
    """Write a copy of a stopped query's checkpoint that Spark's own Kafka source goes on from.

    The original is never changed. Batches that failed and wait for a backfill are behind the
    checkpoint already: headrace failures lists them, headrace backfill runs them.
    """
    export_checkpoint(Checkpoint.read(path), to, rerun=rerun)
    typer.echo(f"The copy {to} is written; the native source goes on from it.")
