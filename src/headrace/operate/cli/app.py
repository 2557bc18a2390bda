"""All commands of ``headrace``, by group and name.

A command's module is imported only when the command runs, because importing all modules takes 1 s.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import headrace
from headrace.operate.cli.help_text import help_text
from headrace.operate.status.gate_actions import COMMANDS as ACTIONS, REPAIR, RUNNING

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "": ("headrace status", "headrace why orders", "headrace failures --since 2h"),
        **{name: (command.example,) for name, command in ACTIONS.items()},
        "demo": ("headrace demo",),
        "up": ("headrace up", "headrace up --topic orders --without postgresql"),
        "status": ("headrace status --watch", "headrace status orders --json"),
        "why": ("headrace why orders", "headrace why orders --batch 1234"),
        "dashboard": ("headrace dashboard --ledger postgresql://headrace@db/headrace",),
        "limit": ("headrace limit 200 orders --for 2h", "headrace limit off orders"),
        "drain": ("headrace drain orders --timeout 5min",),
        "stop": ('headrace stop orders --after-drain --why "a new version"',),
        "retry": ('headrace retry orders --why "the database is back"',),
        "metrics": ("headrace metrics --per-partition", "headrace metrics --rules"),
        "batches": (
            "headrace batches orders --since 2h",
            "headrace batches 1a2b3c4d",
            "headrace batches --status failed --status dead --watch",
        ),
        "failures": ("headrace failures orders --since 2h --error ValueError",),
        "dead-letters": ("headrace dead-letters list orders",),
        "dead-letters list": ("headrace dead-letters list orders --since 2h --json",),
        "dead-letters export": ("headrace dead-letters export orders",),
        "dead-letters drop": ('headrace dead-letters drop 17 --why "a test order"',),
        "dead-letters send": ("headrace dead-letters send 17", "headrace dead-letters send --all"),
        "verify": ("headrace verify orders --checkpoint ckpt/orders",),
        "accept": ('headrace accept orders --records 150 --why "begun anew on purpose"',),
        "adopt": ('headrace adopt orders 0f3a5b7c9d1e2f40 --why "the ledger is a new one"',),
        "backfill": (
            "headrace backfill orders --handler shop.orders:write --dry-run",
            "headrace backfill 1a2b3c4d --handler shop.orders:write",
        ),
        "drop": ('headrace drop 1a2b3c4d --why "processed manually"',),
        "prune": ("headrace prune --older-than '30 days'",),
        "receive": ("headrace receive http --journal /data/orders --lane 0 --gate orders",),
        "receive http": (
            "headrace receive http --journal /data/orders --lane 0 --gate orders --port 8080",
        ),
        "receive tcp": ("headrace receive tcp --journal /data/orders --lane 0 --port 5140",),
        "receive mqtt": (
            "headrace receive mqtt --journal /data/orders --url mqtt://broker --topic 'orders/#'",
        ),
        "journal": ("headrace journal ls /data/orders",),
        "journal ls": ("headrace journal ls /data/orders --lane 0",),
        "journal verify": ("headrace journal verify /data/orders",),
        "journal repair": ("headrace journal repair /data/orders",),
        "journal prune": ("headrace journal prune /data/orders --older-than '7 days' --dry-run",),
        "checkpoint": ("headrace checkpoint offsets orders",),
        "checkpoint offsets": ("headrace checkpoint offsets orders",),
        "checkpoint export": ("headrace checkpoint export ckpt/orders --to ckpt/orders-native",),
        "flow": ("headrace flow show shop.flows:orders",),
        "flow show": ("headrace flow show shop.flows:orders",),
        "flow run": ("headrace flow run shop.flows:orders --stage parse",),
        "doctor": ("headrace doctor --ledger postgresql://headrace@db/headrace",),
    }
)


def _declared(group: str) -> dict[str, tuple[str, str]]:
    """Return the commands that `gate_actions` declares for a group, in the form of `GROUPS`."""
    return {
        name: ("operator_limits", command.summary)
        for name, command in ACTIONS.items()
        if command.group == group
    }


GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = MappingProxyType(
    {
        "See the state of gates": {
            "status": ("status", "Problems that need an operator, and the state of each gate."),
            "why": ("status", "Why a batch has its size."),
            "batches": ("batches_command", "The newest batches, or one batch in full."),
            "failures": ("failures", "Unresolved failures, and lost or skipped records."),
            "dead-letters": ("dead_letters_command", "Records that cannot be processed."),
            "verify": ("verify", "Prove that no offset was left out."),
            "dashboard": (
                "dashboard_command",
                "Gates, failures, flows and receivers as live web pages.",
            ),
            "metrics": ("metrics_command", "Metrics, alert rules and a dashboard for Prometheus."),
        },
        RUNNING: {
            **_declared(RUNNING),
            "limit": ("operator_limits", "Cap the rate."),
            "drain": ("operator_limits", "Finish the admitted batches, and admit no more records."),
            "stop": ("operator_limits", "End the query after its current batch."),
            "retry": (
                "operator_limits",
                "Run batches at once that wait for their sink or a backfill.",
            ),
            "flow": ("flows", "List a flow of queries, or run it."),
        },
        REPAIR: {
            "backfill": ("backfill", "Run failed batches again."),
            "drop": ("failures", "Resolve dead batches without processing them."),
            "accept": ("operator_limits", "Accept records that are lost or skipped."),
            "adopt": (
                "operator_limits",
                "Let a query start with an older checkpoint, or another ledger's.",
            ),
            **_declared(REPAIR),
            "checkpoint": ("checkpoint_command", "A gate's position, and a checkpoint for Spark."),
            "prune": ("batches_command", "Delete batches that ended long ago."),
        },
        "Receive records": {
            "receive": ("receive", "Take records from senders into a journal."),
            "journal": ("journal_command", "List, verify, repair or prune a journal."),
        },
        "Try it": {
            "demo": ("demo", "One stream in two queries: without a gate, and with one."),
            "up": ("up", "A Kafka broker, a PostgreSQL and a journal until Ctrl-C."),
            "doctor": ("doctor", "Check that this machine has what a query needs."),
        },
    }
)
"""Commands by group: for each name, the command's module and its line in ``headrace --help``."""

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"headrace.operate.cli.{module}"
        for group in GROUPS.values()
        for name, (module, _) in group.items()
    }
)


class Commands(TyperGroup):
    """Group of all commands. The group imports a command's module when the command is used.

    Arguments whose class belongs to typer's own copy of click are annotated with Any, because these
    classes have no public name.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # The names are enough for lists and suggestions, without an import.
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Import a command by its name and return it; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        loaded = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        if isinstance(loaded, typer.Typer):
            group = loaded
        else:
            group = typer.Typer(add_completion=False)
            group.command()(loaded)
        command = typer.main.get_command(group)
        command.name = cmd_name
        _give_help(cmd_name, command)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, by group, without importing their modules."""
        groups = {
            title: {name: line for name, (_, line) in group.items()}
            for title, group in GROUPS.items()
        }
        formatter.write(help_text(self, ctx, groups=groups, examples=EXAMPLES[""]))


def _give_help(words: str, command: Any) -> None:
    def write(context: Any, formatter: Any) -> None:
        formatter.write(help_text(command, context, examples=EXAMPLES.get(words, ())))

    command.format_help = write
    for name, subcommand in getattr(command, "commands", {}).items():
        _give_help(f"{words} {name}", subcommand)


app = typer.Typer(
    cls=Commands,
    name="headrace",
    help="Backpressure and zero loss for PySpark Structured Streaming.",
    no_args_is_help=True,
    # Rich takes longer to import than a list of commands to print.
    rich_markup_mode=None,
    # Commands inherit these settings.
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
