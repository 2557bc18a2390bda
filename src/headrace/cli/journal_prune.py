"""``headrace journal prune``: removes the blocks that nobody needs any more."""

import json
import time
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.batches_view import new_table
from headrace.cli.journal import Url, journal
from headrace.cli.lines import line
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.cli.times import age_ms
from headrace.cli.words import count, plural
from headrace.journal import Journal, Kept, LanePruning
from headrace.journal import prune as prune_journal
from headrace.ledger import Ledger, Processed, Status

_BECAUSE: Final = {
    Kept.YOUNG: "the next block is too young",
    Kept.LAST: "the last block of a lane stays",
    None: "there is no block",
}


@journal.command()
def prune(
    url: Url,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Keep what is younger, whatever has become of it: '7 days', '12h'."
        ),
    ],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    lane: Annotated[
        list[int] | None, typer.Option(help="A lane to prune; all, if none is named.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="GATE", help="A gate that will never read the journal again."),
    ] = None,
    unread: Annotated[
        bool, typer.Option("--unread", help="Also if no gate of the ledger has read the journal.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be removed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per lane, each on a line of its own.")
    ] = False,
) -> None:
    """Remove the blocks that are processed, that no failed batch needs, and that are old enough.

    The ledger has to be that of the gates that read the journal: it says what is processed. The
    last batch of each gate is kept, and the last block of each lane. A gate that has read the
    journal holds all its lanes, for it may come to each; of one that by its option `lanes` never
    will, prune the other lanes apart: --lane 3 --without GATE.

    Exit status 0: what could be removed is removed, be it nothing.
    Exit status 1: there was an error.
    """
    min_age_ms = age_ms("--older-than", older_than)
    opened = Journal.open(url)
    with Ledger.open(ledger, create=False) as reader:
        for gate in without or ():
            gates_of(reader, gate, ledger)
        lanes = prune_journal(
            opened,
            reader,
            min_age_ms,
            now_ms=time.time_ns() // 1_000_000,
            only=lane,
            without=without or (),
            unread=unread,
            dry_run=dry_run,
        )
    if as_json:
        for each in lanes:
            typer.echo(json.dumps(_values(opened, each, dry_run=dry_run)))
        return
    if lanes:
        Console().print(_table(lanes))
    blocks = plural(sum(lane.blocks for lane in lanes), "block")
    records = plural(sum(lane.records for lane in lanes), "record")
    mib = sum(lane.stored_bytes for lane in lanes) / 2**20
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{blocks} with {records} {verb}, {mib:,.1f} MiB.")


def _values(journal: Journal, lane: LanePruning, *, dry_run: bool) -> dict[str, object]:
    return {"journal": journal.name, "id": journal.id, "dry_run": dry_run, **asdict(lane)}


def _table(lanes: tuple[LanePruning, ...]) -> Table:
    """A line for each lane."""
    table = new_table()
    table.expand = False
    for name in ("lane", "start", "removed", "MiB", "kept", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("because")
    for lane in lanes:
        table.add_row(
            str(lane.lane),
            str(lane.until),
            count(lane.blocks),
            f"{lane.stored_bytes / 2**20:,.1f}",
            count(lane.kept_blocks),
            f"{lane.kept_bytes / 2**20:,.1f}",
            line(_because(lane)),
        )
    return table


def _because(lane: LanePruning) -> str:
    """Why there is not more to remove of a lane."""
    return _needed(lane.needed_by) if lane.needed_by is not None else _BECAUSE[lane.kept]


def _needed(by: Processed) -> str:
    if by.schedule_id is None:
        has_read = f"has read up to {by.until}" if by.until else "has read nothing of it yet"
        return f"{by.gate} {has_read}"
    batch = f"{by.gate}: batch {by.schedule_id[:8]}"
    return f"{batch} is its last" if by.status is Status.SUCCESS else f"{batch} is {by.status}"
