"""The commands by name. Each is imported when it is run, or listed: all of them take a second."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import headrace
from headrace.cli.examples import epilog_of

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "demo": "headrace.cli.demo.command",
        "up": "headrace.cli.up",
        "status": "headrace.cli.status",
        "why": "headrace.cli.why",
        "dashboard": "headrace.cli.dashboard_command",
        "pause": "headrace.cli.operator_limits",
        "resume": "headrace.cli.operator_limits",
        "limit": "headrace.cli.operator_limits",
        "drain": "headrace.cli.operator_limits",
        "retry": "headrace.cli.retry",
        "metrics": "headrace.cli.metrics_command",
        "batches": "headrace.cli.batches_command",
        "failures": "headrace.cli.failures",
        "dead-letters": "headrace.cli.dead_letters_command",
        "verify": "headrace.cli.verify",
        "accept": "headrace.cli.accept",
        "backfill": "headrace.cli.backfill",
        "drop": "headrace.cli.failures",
        "prune": "headrace.cli.prune",
        "receive": "headrace.cli.receive",
        "send": "headrace.cli.send",
        "journal": "headrace.cli.journal_command",
        "checkpoint": "headrace.cli.checkpoint_command",
        "flow": "headrace.cli.flows",
        "simulate": "headrace.cli.simulate",
        "doctor": "headrace.cli.doctor",
    }
)
"""The module that has a command, under its name; in the order of the help."""


class Commands(TyperGroup):
    """All commands.

    What is Any here is of the click that typer brings, which has no public name.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Their names are enough to list them, and to suggest one of them.
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """The command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        if isinstance(found, typer.Typer):
            group = found
        else:
            group = typer.Typer(add_completion=False)
            group.command()(found)
        command = typer.main.get_command(group)
        command.name = cmd_name
        _add_examples(cmd_name, command)
        return command


def _add_examples(words: str, command: Any) -> None:
    command.epilog = epilog_of(words)
    for name, each in getattr(command, "commands", {}).items():
        _add_examples(f"{words} {name}", each)


app = typer.Typer(
    cls=Commands,
    name="headrace",
    help="Backpressure and zero loss for PySpark Structured Streaming.",
    epilog=epilog_of(""),
    no_args_is_help=True,
    # The commands have it from this one.
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def commands(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Backpressure and zero loss for PySpark Structured Streaming."""
