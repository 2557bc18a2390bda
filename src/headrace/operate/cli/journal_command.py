"""``headrace journal``: lists, verifies, repairs and prunes a journal."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.core.options import age_ms
from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import Ledger, Processed, Status
from headrace.journal import (
    DEFECTS,
    MAX_OFFSET,
    Journal,
    JournalFinding,
    JournalFindingKind,
    JournalVerification,
    KeptReason,
    LanePruning,
    lane_of,
    lost_records,
    prune as prune_journal,
    repair as repair_journal,
    verify as verify_journal,
)
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.status import words

FINDINGS: Final = 100
"""The view shows at most this many findings, a line each. A last line counts the other findings."""

_STYLES: Final = {
    **dict.fromkeys(DEFECTS, "bold red"),
    JournalFindingKind.LOST: "red",
}
_BECAUSE: Final = {
    KeptReason.YOUNG: "the next segment is too young",
    KeptReason.LAST: "the last block of a lane stays",
    None: "there is no block",
}

journal = typer.Typer(
    help="List, verify, repair or prune a journal.",
    no_args_is_help=True,
    add_completion=False,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="JOURNAL",
        help="The journal: a directory, s3://bucket/prefix or webhdfs://host:port/path.",
    ),
]
Reached = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LANE:OFFSET",
        help="A lane and the offset up to which a gate has read it, as in the error of a query"
        " that refuses the journal.",
    ),
]
GatesLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="URL of the ledger of the gates that read the journal, which has the offsets that"
        " they have read.",
    ),
]


@journal.command("ls")
def list_lanes(
    url: Url,
    lane: Annotated[int | None, typer.Option(metavar="N", help="Show only this lane.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """List a journal's lanes: their offsets, blocks, bytes and ages. The command reads no block."""
    opened = Journal.open(url)
    lanes = opened.lanes()
    if lane is not None and lane not in lanes:
        names = ", ".join(map(str, lanes)) or "none at all"
        raise OptionError(f"The journal {url} has no lane {lane}; the lanes it has: {names}.")
    listings = [_listing(opened, number) for number in lanes if lane in (None, number)]
    if as_json:
        for listing in listings:
            out.print_json(listing)
    elif listings:
        out.show(lanes_table(listings, wall_clock_ms()))
    else:
        typer.echo("The journal has no lane yet; a receiver creates its lane when it starts.")


def _listing(opened: Journal, lane: int) -> dict[str, Any]:
    """Return a lane for JSON, without reading a block.

    The lane's offsets begin at ``start`` and end before ``until``.
    """
    start, until = opened.lane_bounds(lane)
    blocks = opened.blocks(lane)
    return {
        "journal": opened.name,
        "id": opened.id,
        "lane": lane,
        "start": start,
        "until": until,
        "lost": sum(item.until - max(item.first, start) for item in opened.lost(lane)),
        "blocks": len(blocks),
        "stored_bytes": sum(block.stored_bytes for block in blocks),
        "oldest_ms": blocks[0].created_ms if blocks else None,
        "newest_ms": blocks[-1].created_ms if blocks else None,
    }


def lanes_table(lanes: Sequence[dict[str, Any]], now_ms: int) -> Table:
    """Return a table with a line for each lane; a lane is a result of `_listing`."""

    def age(ms: int | None) -> str:
        return words.UNKNOWN if ms is None else words.duration(max(now_ms - ms, 0))

    return out.table(
        lanes,
        (">lane", lambda row: str(row["lane"])),
        (">start", lambda row: str(row["start"])),
        (">until", lambda row: str(row["until"])),
        (">lost", lambda row: Text(words.count(row["lost"]), "bold red" if row["lost"] else "")),
        (">blocks", lambda row: words.count(row["blocks"])),
        (">MiB", lambda row: words.mebibytes(row["stored_bytes"])),
        (">oldest", lambda row: age(row["oldest_ms"])),
        (">newest", lambda row: age(row["newest_ms"])),
        wide=False,
    )


@journal.command("verify")
def verify_blocks(
    url: Url,
    *,
    ledger: GatesLedger = None,
    reached: Reached = None,
    as_json: opt.AsJson = False,
) -> None:
    """Read every block, and prove that no block is missing, damaged or changed.

    A journal does not show that a lane's last blocks are gone. With --ledger or --reached, a lane
    must also reach the offsets that gates have read.

    Exit status 0: the journal is whole, except for records that were declared lost.
    Exit status 4: something is damaged or missing.
    Exit status 1: there was an error, so the answer is not known.
    """
    opened = Journal.open(url)
    proof = verify_journal(opened, _reached(opened, ledger, reached))
    if as_json:
        out.print_json(_values(opened, proof))
    else:
        out.show(journal_view(opened.name, proof))
    raise typer.Exit(ExitStatus.DONE if proof.whole else ExitStatus.BROKEN)


@journal.command("repair")
def repair_blocks(
    url: Url, *, ledger: GatesLedger = None, reached: Reached = None, as_json: opt.AsJson = False
) -> None:
    """Declare damaged and missing blocks lost, so that the journal can be read again.

    If there is a backup, restore the blocks from it first. No lane may be written meanwhile. No
    block is deleted: a damaged block gets another name. With --ledger or --reached, a lane that
    ends before the offset that gates have read continues after this offset, and the offsets between
    are lost.

    Exit status 0: the journal is whole now, except for records that were declared lost.
    Exit status 4: the journal needs manual repair.
    Exit status 1: there was an error, so the answer is not known.
    """
    opened = Journal.open(url)
    offsets = _reached(opened, ledger, reached)
    mended = repair_journal(opened, offsets)
    proof = verify_journal(opened, offsets)
    lost = lost_records(mended)
    if as_json:
        values = {"lost": lost, "mended": [asdict(item) for item in mended]}
        out.print_json({**_values(opened, proof), **values})
    else:
        if mended:
            out.show(_findings(mended))
        sentence = f"{words.plural(lost, 'record')} declared lost"
        after = f"It is {_whole(proof)} now." if proof.whole else "It is not whole yet:"
        typer.echo(f"{words.plural(len(mended), 'finding')} mended: {sentence}. {after}")
        if left := [item for item in proof.findings if item.kind in DEFECTS]:
            out.show(_findings(left))
    raise typer.Exit(ExitStatus.DONE if proof.whole else ExitStatus.BROKEN)


def _values(opened: Journal, found: JournalVerification) -> dict[str, object]:
    return {
        "journal": opened.name,
        "id": opened.id,
        "whole": found.whole,
        "lost": lost_records(found.findings),
        "lanes": [asdict(lane) for lane in found.lanes],
        "findings": [asdict(finding) for finding in found.findings],
    }


def _reached(opened: Journal, ledger: str | None, given: list[str] | None) -> dict[int, int]:
    reached: dict[int, int] = {}
    if ledger is not None:
        with Ledger.open(ledger, create=False) as reader:
            reached = reader.history.reached(opened.id)
    for text in given or ():
        name, _, digits = text.partition(":")
        lane, offset = lane_of(name), int(digits[:20]) if digits.isdecimal() else -1
        if lane is None or not 0 <= offset <= MAX_OFFSET or len(digits) > len(str(MAX_OFFSET)):
            raise OptionError(
                f"--reached is {text!r}; write a lane, a colon and an offset, such as 0:500."
            )
        reached[lane] = max(offset, reached.get(lane, 0))
    return reached


def journal_view(name: str, found: JournalVerification) -> RenderableType:
    """Return a view of a journal's verification: a line with the verdict, then the findings."""
    records = words.plural(sum(lane.records for lane in found.lanes), "record")
    blocks = words.plural(sum(lane.blocks for lane in found.lanes), "block")
    holds = f"{records} in {blocks} of {words.plural(len(found.lanes), 'lane')}"
    if found.whole:
        headline = out.line(f"{name}: {_whole(found)}, {holds}", style="green")
    else:
        lost = words.plural(lost_records(found.findings), "record")
        broken = f"{name}: BROKEN; {holds} can be read, {lost} cannot"
        headline = out.line(broken, style="bold red")
    if not found.findings:
        return headline
    return Group(headline, Text(), _findings(found.findings))


def _whole(found: JournalVerification) -> str:
    kinds = {finding.kind for finding in found.findings}
    return "whole but for what is declared lost" if JournalFindingKind.LOST in kinds else "whole"


def _findings(findings: Sequence[JournalFinding]) -> Table:
    rows = [
        (
            Text(finding.kind, style=_STYLES.get(finding.kind, "dim")),
            Text(words.printable(f"{finding.path}{_offsets(finding)}: {finding.reason}")),
        )
        for finding in findings[:FINDINGS]
    ]
    if len(findings) > FINDINGS:
        more = f"and {len(findings) - FINDINGS:,} more; --json lists all findings."
        rows.append((Text(), Text(more)))
    return out.grid(rows)


def _offsets(finding: JournalFinding) -> str:
    return "" if finding.first is None else f" [{finding.first}, {finding.until})"


OlderThan = Annotated[
    str,
    typer.Option(
        metavar="AGE",
        help="Keep blocks that are younger, even if they are processed: '7 days', '12h'.",
    ),
]
Lanes = Annotated[
    list[int] | None,
    typer.Option(
        metavar="N", help="Prune this lane; can be repeated. Without it, prune all lanes."
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GATE",
        help="A gate that will never read the journal again, so that no block is kept for it.",
    ),
]
Unread = Annotated[
    bool, typer.Option("--unread", help="Prune even if no gate of the ledger has read the journal.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show the blocks that would be removed.")
]


@journal.command("prune")
def prune_blocks(
    url: Url,
    *,
    older_than: OlderThan,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    lane: Lanes = None,
    without: Without = None,
    unread: Unread = False,
    dry_run: DryRun = False,
    as_json: opt.AsJson = False,
) -> None:
    """Remove the blocks that are old enough, are processed, and are not needed by a failed batch.

    Name the ledger of the gates that read the journal, because it has the processed offsets. The
    blocks of each gate's last batch are kept, and the last block of each lane. A gate that has read
    the journal keeps blocks of all lanes, because it may read each lane. If its option `lanes`
    excludes some lanes for ever, prune these lanes separately: --lane 3 --without GATE.

    Exit status 0: all blocks that could be removed are removed, even if there was none.
    Exit status 1: there was an error.
    """
    min_age_ms = age_ms("--older-than", older_than)
    opened = Journal.open(url)
    with Ledger.open(ledger, create=False) as reader:
        for gate in without or ():
            opt.gates_of(reader, gate, ledger)
        lanes = prune_journal(
            opened,
            reader,
            min_age_ms,
            now_ms=wall_clock_ms(),
            only=lane,
            without=without or (),
            unread=unread,
            dry_run=dry_run,
        )
    if as_json:
        for row in lanes:
            of = {"journal": opened.name, "id": opened.id, "dry_run": dry_run}
            out.print_json({**of, **asdict(row)})
    else:
        _show_pruned(lanes, "would be removed" if dry_run else "removed")


def _show_pruned(lanes: Sequence[LanePruning], verb: str) -> None:
    if lanes:
        out.show(pruned_table(lanes))
    blocks = words.plural(sum(lane.blocks for lane in lanes), "block")
    records = words.plural(sum(lane.records for lane in lanes), "record")
    removed = words.mebibytes(sum(lane.stored_bytes for lane in lanes))
    typer.echo(f"{blocks} with {records} {verb}, {removed} MiB.")


def pruned_table(lanes: Sequence[LanePruning]) -> Table:
    """Return a table of lanes: removed blocks, kept blocks, and the reason for keeping blocks."""
    return out.table(
        lanes,
        (">lane", lambda row: str(row.lane)),
        (">start", lambda row: str(row.until)),
        (">removed", lambda row: words.count(row.blocks)),
        (">MiB", lambda row: words.mebibytes(row.stored_bytes)),
        (">kept", lambda row: words.count(row.kept_blocks)),
        (">MiB", lambda row: words.mebibytes(row.kept_bytes)),
        ("because", lambda row: out.line(_because(row))),
        wide=False,
    )


def _because(lane: LanePruning) -> str:
    by: Processed | None = lane.needed_by
    if by is None:
        return _BECAUSE[lane.kept]
    if by.batch_key is None:
        has_read = f"has read up to {by.until}" if by.until else "has read nothing of it yet"
        return f"{by.gate} {has_read}"
    batch = f"{by.gate}: batch {by.batch_key[:8]}"
    return f"{batch} is its last" if by.status is Status.SUCCESS else f"{batch} is {by.status}"
