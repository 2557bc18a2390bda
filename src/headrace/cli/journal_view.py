"""A journal as text for the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.batches_view import new_table
from headrace.cli.lines import line, printable
from headrace.cli.words import UNKNOWN, count, duration, plural
from headrace.journal import DEFECTS, Finding, FindingKind, Verification

FINDINGS: Final = 100
"""Findings with a line of their own; beyond it they are counted."""

_STYLES: Final = {**dict.fromkeys(DEFECTS, "bold red"), FindingKind.LOST: "red"}


@dataclass(frozen=True, slots=True)
class LaneListing:
    """A lane as it is listed: offsets from ``start`` to before ``until``, ``lost`` of them lost."""

    lane: int
    start: int
    until: int
    lost: int
    blocks: int
    stored_bytes: int
    oldest_ms: int | None
    newest_ms: int | None


def lanes_table(lanes: Sequence[LaneListing], now_ms: int) -> Table:
    """A line for each lane."""
    table = new_table()
    table.expand = False
    for name in ("lane", "start", "until", "lost", "blocks", "MiB", "oldest", "newest"):
        table.add_column(name, justify="right", no_wrap=True)
    for lane in lanes:
        ages = [
            UNKNOWN if ms is None else duration(max(now_ms - ms, 0))
            for ms in (lane.oldest_ms, lane.newest_ms)
        ]
        table.add_row(
            str(lane.lane),
            str(lane.start),
            str(lane.until),
            Text(count(lane.lost), style="bold red" if lane.lost else ""),
            count(lane.blocks),
            f"{lane.stored_bytes / 2**20:,.1f}",
            *ages,
        )
    return table


def verification_view(name: str, found: Verification) -> RenderableType:
    """What was found of a journal: a verdict, and what there is to say."""
    records = plural(sum(lane.records for lane in found.lanes), "record")
    blocks = plural(sum(lane.blocks for lane in found.lanes), "block")
    holds = f"{records} in {blocks} of {plural(len(found.lanes), 'lane')}"
    if found.whole:
        headline = line(f"{name}: whole, {holds}", style="green")
    else:
        headline = line(f"{name}: BROKEN; {holds} can be read", style="bold red")
    if not found.findings:
        return headline
    return Group(headline, Text(), findings_view(found.findings))


def findings_view(findings: Sequence[Finding]) -> RenderableType:
    """A sentence for each, beyond ``FINDINGS`` a count."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings[:FINDINGS]:
        table.add_row(
            Text(finding.kind, style=_STYLES.get(finding.kind, "dim")),
            Text(printable(f"{finding.path}{_offsets(finding)}: {finding.reason}")),
        )
    if len(findings) > FINDINGS:
        table.add_row(
            Text(), Text(f"and {len(findings) - FINDINGS:,} more; --json tells them all.")
        )
    return table


def _offsets(finding: Finding) -> str:
    return "" if finding.first is None else f" [{finding.first}, {finding.until})"
