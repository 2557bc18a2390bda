"""The commands by name. Each is imported when it is run, or listed: all of them take a second."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import headrace
from headrace.errors import OptionError

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "": ("headrace status", "headrace why orders", "headrace failures --since 2h"),
        "demo": ("headrace demo",),
        "up": ("headrace up", "headrace up --topic orders --without postgresql"),
        "status": ("headrace status --watch", "headrace status --gate orders --json"),
        "why": ("headrace why orders", "headrace why orders --batch 1234"),
        "dashboard": ("headrace dashboard --ledger postgresql://headrace@db/headrace",),
        "pause": ('headrace pause orders --why "sink migration"',),
        "resume": ("headrace resume orders", "headrace resume --flow shop.flows:orders"),
        "limit": ("headrace limit 200 orders --for 2h", "headrace limit off orders"),
        "drain": ("headrace drain orders --timeout 5min",),
        "stop": ('headrace stop orders --after-drain --why "a new version"',),
        "retry": ('headrace retry orders --why "the database is back"',),
        "metrics": ("headrace metrics --per-partition", "headrace metrics --rules"),
        "batches": (
            "headrace batches --gate orders --since 2h",
            "headrace batches 1a2b3c4d",
            "headrace batches --status failed --status dead --watch",
        ),
        "failures": ("headrace failures --gate orders --since 2h --error ValueError",),
        "dead-letters": ("headrace dead-letters list --gate orders",),
        "dead-letters list": ("headrace dead-letters list --gate orders --since 2h --json",),
        "dead-letters export": ("headrace dead-letters export --gate orders",),
        "dead-letters drop": ('headrace dead-letters drop 17 --reason "a test order"',),
        "dead-letters send": ("headrace dead-letters send 17", "headrace dead-letters send --all"),
        "verify": ("headrace verify --gate orders --checkpoint ckpt/orders",),
        "accept": ('headrace accept orders --records 150 --why "begun anew on purpose"',),
        "adopt": ('headrace adopt orders 0f3a5b7c9d1e2f40 --why "the ledger is a new one"',),
        "restart": ('headrace restart orders --why "the table is built anew"',),
        "backfill": (
            "headrace backfill --handler shop.orders:write --all --dry-run",
            "headrace backfill 1a2b3c4d --handler shop.orders:write",
        ),
        "drop": ('headrace drop 1a2b3c4d --reason "processed manually"',),
        "prune": ("headrace prune --older-than '30 days'",),
        "receive": ("headrace receive http --journal /data/orders --lane 0 --gate orders",),
        "receive http": (
            "headrace receive http --journal /data/orders --lane 0 --gate orders --port 8080",
        ),
        "receive tcp": ("headrace receive tcp --journal /data/orders --lane 0 --port 5140",),
        "receive mqtt": (
            "headrace receive mqtt --journal /data/orders --url mqtt://broker --topic 'orders/#'",
        ),
        "send": ("headrace send http://127.0.0.1:8080/records --records 100000",),
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


def epilog_of(words: str) -> str | None:
    """Return the text below a command's options, for its words after ``headrace``."""
    examples = EXAMPLES.get(words)
    if examples is None:
        return None
    title = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join([title, *(f"  {each}" for each in examples)])


COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "demo": "headrace.cli.demo",
        "up": "headrace.cli.up",
        "status": "headrace.cli.status",
        "why": "headrace.cli.status",
        "dashboard": "headrace.cli.dashboard_command",
        "pause": "headrace.cli.operator_limits",
        "resume": "headrace.cli.operator_limits",
        "limit": "headrace.cli.operator_limits",
        "drain": "headrace.cli.operator_limits",
        "stop": "headrace.cli.operator_limits",
        "retry": "headrace.cli.operator_limits",
        "metrics": "headrace.cli.status",
        "batches": "headrace.cli.batches_command",
        "failures": "headrace.cli.failures",
        "dead-letters": "headrace.cli.dead_letters_command",
        "verify": "headrace.cli.verify",
        "accept": "headrace.cli.operator_limits",
        "adopt": "headrace.cli.operator_limits",
        "restart": "headrace.cli.operator_limits",
        "backfill": "headrace.cli.backfill",
        "drop": "headrace.cli.failures",
        "prune": "headrace.cli.batches_command",
        "receive": "headrace.cli.receive",
        "send": "headrace.cli.send",
        "journal": "headrace.cli.journal_command",
        "checkpoint": "headrace.cli.checkpoint_command",
        "flow": "headrace.cli.flows",
        "doctor": "headrace.cli.doctor",
    }
)
"""The module that has a command, under its name; in the order of the help."""


DELETED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "checkpoint export --starting-offsets": "`headrace checkpoint offsets GATE` prints them.",
        "flow show --svg": "`headrace flow show` prints a list, and --json has all of it.",
        "simulate": "try a change on a copy of the query, with a checkpoint and a gate of its own.",
    }
)
"""What to do in place of a command or an option that is gone; deleted with 1.0."""


class Commands(TyperGroup):
    """All commands.

    Any stands for the click that typer brings, which has no public name.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Their names are enough to list them, and to suggest one of them.
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """The command of this name, if there is one."""
        if cmd_name in DELETED:
            raise OptionError(f"`headrace {cmd_name}` is gone: {DELETED[cmd_name]}")
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

    def invoke(self, ctx: Any) -> Any:
        """Run a command; for an option that is gone, say what to do instead."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            path = getattr(getattr(error, "ctx", None), "command_path", "")
            words = f"{path.partition(' ')[2]} {getattr(error, 'option_name', '')}"
            if words in DELETED:
                raise OptionError(f"`headrace {words}` is gone: {DELETED[words]}") from error
            raise


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
