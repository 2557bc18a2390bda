"""The commands by name."""

import importlib
from typing import Any, Final

import typer
from typer.core import TyperGroup

from headgate.cli.backfill import backfill
from headgate.cli.batches import batches
from headgate.cli.demo.command import demo
from headgate.cli.doctor import doctor
from headgate.cli.drop import drop
from headgate.cli.failures import failures
from headgate.cli.letters import letters
from headgate.cli.letters_send import send
from headgate.cli.prune import prune
from headgate.cli.simulate import simulate
from headgate.cli.status import status
from headgate.cli.verify import verify

GROUPS: Final = ("receive", "journal", "flow")
"""Commands whose modules are imported only when they are named, or listed: they take half a second,
which the others do without."""


class Commands(TyperGroup):
    """All commands, those of `GROUPS` too.

    What is Any here is of the click that typer brings, which has no public name.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, as the help lists them."""
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, if there is one."""
        if cmd_name not in GROUPS:
            return super().get_command(ctx, cmd_name)
        group = importlib.import_module("headgate.cli.groups").GROUPS[cmd_name]
        command = typer.main.get_command(group)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Commands,
    name="headgate",
    help="Backpressure and zero loss for PySpark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(status)
app.command()(batches)
app.command()(failures)
app.command()(verify)
app.command()(backfill)
app.command()(drop)
app.command()(prune)
letters.command()(send)
app.add_typer(letters, name="letters")
app.command()(simulate)
app.command()(doctor)


@app.callback()
def headgate() -> None:
    """Backpressure and zero loss for PySpark Structured Streaming."""
