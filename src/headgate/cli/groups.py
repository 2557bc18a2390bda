"""The groups of commands whose modules take long to import: see `headgate.cli.app`."""

from typing import Final

import typer

from headgate.cli.flows import flow
from headgate.cli.journal import journal
from headgate.cli.journal_prune import prune
from headgate.cli.receive import receive

journal.command()(prune)

GROUPS: Final[dict[str, typer.Typer]] = {
    "receive": receive,
    "journal": journal,
    "flow": flow,
}
"""By name."""
