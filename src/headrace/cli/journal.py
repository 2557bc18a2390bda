"""``headrace journal``: what a journal holds, whether it is whole, and what makes it so."""

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.exit_status import BROKEN
from headrace.cli.journal_view import LaneListing, findings_view, lanes_table, verification_view
from headrace.cli.words import plural
from headrace.errors import OptionError
from headrace.journal import DEFECTS, Journal, Verification
from headrace.journal import repair as repair_journal
from headrace.journal import verify as verify_journal
from headrace.journal.names import MAX_OFFSET, lane_of
from headrace.ledger import Ledger

journal = typer.Typer(
    help="Look at a journal: what it holds, whether it is whole, how it becomes readable again.",
    no_args_is_help=True,
    add_completion=False,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="JOURNAL", help="Its directory, s3://bucket/prefix or webhdfs://host:port/path."
    ),
]


Reached = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LANE:OFFSET",
        help="A lane and how far it is known to have been read, as a query says that refuses it.",
    ),
]
GatesLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger of the gates that read it, which knows how far they have read.",
    ),
]


@journal.command("ls")
def list_lanes(
    url: Url,
    lane: Annotated[int | None, typer.Option(help="Only this lane.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per lane, each on a line of its own.")
    ] = False,
) -> None:
    """List a journal's lanes: their offsets, blocks, bytes and ages. No block is read."""
    opened = Journal.open(url)
    lanes = opened.lanes()
    if lane is not None and lane not in lanes:
        there = ", ".join(map(str, lanes)) or "none at all"
        raise OptionError(f"The journal {url} has no lane {lane}; the lanes it has: {there}.")
    listings = [_listing(opened, each) for each in lanes if lane in (None, each)]
    if as_json:
        for listing in listings:
            typer.echo(json.dumps({"journal": opened.name, "id": opened.id, **asdict(listing)}))
    elif listings:
        Console().print(lanes_table(listings, time.time_ns() // 1_000_000))
    else:
        typer.echo("The journal has no lane yet; a receiver makes its own when it starts.")


@journal.command()
def verify(
    url: Url,
    *,
    ledger: GatesLedger = None,
    reached: Reached = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with lanes and findings.")
    ] = False,
) -> None:
    """Read every block of a journal and prove that it is what was written, without a gap.

    A lane's mark says how far it has reached, should its last blocks be gone; with --ledger or
    --reached it is held to what was read of it, too.

    Exit status 0: it is whole, but for what was declared lost.
    Exit status 4: something is damaged or missing.
    Exit status 1: there was an error, and nobody knows.
    """
    opened = Journal.open(url)
    found = verify_journal(opened, _reached(opened, ledger, reached))
    if as_json:
        typer.echo(json.dumps(_values(opened, found)))
    else:
        Console().print(verification_view(opened.name, found))
    raise typer.Exit(0 if found.whole else BROKEN)


@journal.command()
def repair(url: Url, *, ledger: GatesLedger = None, reached: Reached = None) -> None:
    """Declare lost what cannot be read, so that the rest can be.

    Nothing is deleted: a damaged block is set aside under another name. No lane may be written
    meanwhile. With --ledger or --reached, a lane that ends before what was read of it goes on
    behind that, and what is between is lost.

    Exit status 0: the journal is whole now, but for what was declared lost.
    Exit status 4: something has to be mended by hand.
    Exit status 1: there was an error, and nobody knows.
    """
    opened = Journal.open(url)
    known = _reached(opened, ledger, reached)
    mended = repair_journal(opened, known)
    if mended:
        Console().print(findings_view(mended))
    found = verify_journal(opened, known)
    after = "It is whole now." if found.whole else "It is not whole yet:"
    typer.echo(f"{plural(len(mended), 'finding')} mended. {after}")
    if left := [each for each in found.findings if each.kind in DEFECTS]:
        Console().print(findings_view(left))
    raise typer.Exit(0 if found.whole else BROKEN)


def _reached(opened: Journal, ledger: str | None, given: list[str] | None) -> dict[int, int]:
    """How far each lane is known to have been read."""
    reached: dict[int, int] = {}
    if ledger is not None:
        with Ledger.open(ledger, create=False) as reader:
            reached = reader.reached(opened.id)
    for each in given or ():
        name, _, digits = each.partition(":")
        lane, offset = lane_of(name), int(digits[:20]) if digits.isdecimal() else -1
        if lane is None or not 0 <= offset <= MAX_OFFSET or len(digits) > len(str(MAX_OFFSET)):
            raise OptionError(
                f"--reached is {each!r}; write a lane, a colon and an offset, such as 0:500."
            )
        reached[lane] = max(offset, reached.get(lane, 0))
    return reached


def _listing(opened: Journal, lane: int) -> LaneListing:
    start, until = opened.lane_bounds(lane)
    blocks = opened.blocks(lane)
    lost = sum(each.until - max(each.first, start) for each in opened.lost(lane))
    return LaneListing(
        lane=lane,
        start=start,
        until=until,
        lost=lost,
        blocks=len(blocks),
        stored_bytes=sum(block.stored_bytes for block in blocks),
        oldest_ms=blocks[0].created_ms if blocks else None,
        newest_ms=blocks[-1].created_ms if blocks else None,
    )


def _values(opened: Journal, found: Verification) -> dict[str, object]:
    return {
        "journal": opened.name,
        "id": opened.id,
        "whole": found.whole,
        "lanes": [asdict(lane) for lane in found.lanes],
        "findings": [asdict(finding) for finding in found.findings],
    }
