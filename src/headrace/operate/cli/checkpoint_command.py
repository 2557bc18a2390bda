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
    """Print a gate's position, or export its query's checkpoint for Spark's own Kafka source."""


@checkpoint.command()
def offsets(
    *,
    gate: opt.TheGate = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Print a gate's position in the ledger as JSON, a value for Spark's option startingOffsets.

    The position is after every batch that the gate has begun, failed batches included.
    headrace failures lists the failed batches.
    """
    with Ledger.open(ledger, create=False) as opened:
        gate = opt.the_gate(opened, gate, ledger, say=True).name
        rows = opened.history.checkpoints(gate)
    read = {TopicPartition(row.topic, p): 0 for row in rows for p in row.untils}
    memory = GateMemory(redact_url(ledger), gate, "", rows)
    positions = continued(StreamOffset(read), memory).positions
    if not positions:
        raise OptionError(
            f"Gate {gate!r} has begun no batch yet, so it has no position; start its query first."
        )
    typer.echo(json.dumps(nested(positions), separators=(",", ":")))


@checkpoint.command()
def export(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of the checkpoint on this machine.")
    ],
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the copy; it must not exist yet.")
    ],
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun",
            help="Let the native source run a planned, uncommitted batch again.",
        ),
    ] = False,
) -> None:
    """Copy a stopped query's checkpoint, so that Spark's own Kafka source continues from the copy.

    The original is never changed.
    The copy's position is after failed batches that wait for a backfill: headrace failures lists
    these batches, and headrace backfill runs them.
    """
    export_checkpoint(Checkpoint.read(path), to, rerun=rerun)
    typer.echo(f"The copy {to} is written; the native source continues from it.")
