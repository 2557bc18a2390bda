"""Options that several commands share, and functions that load users' handlers and flows."""

import getpass
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from headrace.core.options import duration_ms
from headrace.errors import HeadraceError, OptionError, SetupError
from headrace.gate import GateRecord, Ledger, normalize_url, redact_url
from headrace.operate.cli.printing import Watch
from headrace.operate.status.words import printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.flow import Flow
    from headrace.gate import Batch, Handler

DEFAULT_LEDGER: Final = "sqlite:///headrace.db"

_MOST_NAMES: Final = 20
"""Largest number of gates that an error names."""

LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="HEADRACE_LEDGER",
        help="The ledger's URL: sqlite:///file.db or postgresql://user@host/database.",
    ),
]


FlowName = Annotated[
    str | None,
    typer.Option(
        "--flow",
        metavar="MODULE:FLOW",
        help="Select all gates of a flow, such as shop.flows:orders, in the ledger that the flow"
        " declares.",
    ),
]


def ledger_of_flow(flow: "Flow", url: str) -> str:
    """Return the URL of the ledger that a flow declares.

    ``url`` is the value of ``--ledger``. Raise OptionError if this value is neither the default nor
    the flow's ledger.
    """
    usual = os.environ.get("HEADRACE_LEDGER") or DEFAULT_LEDGER
    if url != usual and normalize_url(url) != flow.ledger:
        raise OptionError(
            f"The ledger of flow {flow.name!r} is {redact_url(flow.ledger)}, and --ledger is"
            f" {redact_url(url)}; leave --ledger out."
        )
    return flow.ledger


def complete_gates(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of gates that begin with ``incomplete``, for completion in a shell.

    Return no names if the ledger cannot be read.
    """
    url = context.params.get("ledger") or os.environ.get("HEADRACE_LEDGER") or DEFAULT_LEDGER
    try:
        with Ledger.open(url, create=False) as ledger:
            return [gate.name for gate in ledger.gates.all() if gate.name.startswith(incomplete)]
    except HeadraceError:
        return []


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")]
Gate = Annotated[
    str | None,
    typer.Argument(metavar="GATE", help="Show only this gate.", autocompletion=complete_gates),
]
Gates = Annotated[
    list[str] | None,
    typer.Argument(metavar="GATE", help="Show only these gates.", autocompletion=complete_gates),
]
TheGate = Annotated[
    str | None,
    typer.Argument(
        metavar="GATE",
        help="Name of the gate; a ledger's only gate needs no name.",
        autocompletion=complete_gates,
    ),
]
Author = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", help="Name of the operator.", show_default="the name of the user"
    ),
]
Limit = Annotated[
    int, typer.Option(metavar="N", help="Largest number of rows to show.", min=1, max=1_000_000)
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Select only batches and dead letters from this time on: '2024-11-21 14:00', '2h',"
        " '30 minutes ago'.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Select only batches and dead letters from before this time."
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of the stream, such as kafka.security.protocol=SSL; can be repeated.",
    ),
]
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        help="File with options of the stream, such as secrets: one NAME=VALUE on each line, #"
        " for comments.",
    ),
]


def with_parameters(
    command: Callable[..., None],
    shared: Sequence[inspect.Parameter],
    made_of: Callable[[dict[str, Any]], object],
) -> Callable[..., None]:
    """Return a command without its first parameter, and with the ``shared`` parameters at the end.

    ``made_of`` makes the argument for the first parameter from the values of the shared parameters.
    These parameters are at the end so that the first word after ``headrace limit`` is the rate.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**values: Any) -> None:
        first = made_of({parameter.name: values.pop(parameter.name) for parameter in shared})
        command(first, **values)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in [*own, *shared]
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def sharing(kind: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the fields of a dataclass as parameters.

    The command takes an instance of the dataclass ``kind`` as its first argument.
    """
    hints = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)  # type: ignore[arg-type]
    ]
    return lambda command: with_parameters(command, shared, lambda values: kind(**values))


def acting_user(by: str | None) -> str:
    """Return the operator's name: ``by``, or else the user of this process.

    Raise OptionError if the user has no name.
    """
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise OptionError(
            "The user of this process has no name; name the operator with --by."
        ) from error


def gates_of(ledger: Ledger, gate: str | None, url: str) -> list[GateRecord]:
    """Return the gate named ``gate``, or all gates for None.

    Raise OptionError if the ledger does not have the gate.
    """
    gates = ledger.gates.all()
    wanted = [record for record in gates if gate is None or record.name == gate]
    if gate is not None and not wanted:
        raise OptionError(
            f"The ledger {redact_url(url)} has no gate {gate!r}; the gates it has: {listed(gates)}."
        )
    return wanted


def named_gates(ledger: Ledger, names: Iterable[str] | None, url: str) -> list[GateRecord]:
    """Return the gates with the given names, in the order of ``names``, or all gates without names.

    Raise OptionError for an unknown name.
    """
    named = [gates_of(ledger, name, url)[0] for name in dict.fromkeys(names or ())]
    return named or gates_of(ledger, None, url)


def the_gate(ledger: Ledger, gate: str | None, url: str, *, say: bool = False) -> GateRecord:
    """Return the gate named ``gate``, or the only gate for None; with ``say``, print its name.

    Raise OptionError for an unknown gate, or for None if the ledger has no gate or several gates.
    """
    gates = gates_of(ledger, gate, url)
    if len(gates) == 1:
        if gate is None and say:
            typer.echo(f"Gate {gates[0].name}, the only gate of this ledger.", err=True)
        return gates[0]
    if not gates:
        raise OptionError(
            f"The ledger {redact_url(url)} has no gate yet; a gated query declares its gate when"
            " it starts."
        )
    raise OptionError(f"The ledger {redact_url(url)} has several gates; name one: {listed(gates)}.")


def listed(gates: Sequence[GateRecord]) -> str:
    """Return the names of the first 20 gates, and the number of further gates, in words."""
    names = [record.name for record in gates[:_MOST_NAMES]]
    more = f" and {len(gates) - len(names):,} more" if len(gates) > len(names) else ""
    return ", ".join(names) + more or "none at all"


def moment_ms(option: str, text: str, now_ms: int) -> int:
    """Parse an ISO date or time, or a time span before ``now_ms``, into ms since the epoch.

    >>> moment_ms("--since", "2 hours ago", now_ms=7_200_001)
    1
    >>> moment_ms("--since", "2024-11-21T14:00:00Z", now_ms=0)
    1732197600000
    """
    try:
        return max(_parsed_ms(option, text.strip(), now_ms), 0)
    except (ValueError, OverflowError) as error:
        raise OptionError(
            f"{option} is {text!r}; it must be a time such as '2024-11-21 14:00' or "
            "'2024-11-21T13:00:00Z', or how long ago it was, such as '2h' or '30 minutes ago'."
        ) from error


def _parsed_ms(option: str, written: str, now_ms: int) -> int:
    if written.isdecimal():
        raise ValueError("a number without a unit")
    try:
        return round(datetime.fromisoformat(written).timestamp() * 1_000)
    except ValueError:
        return now_ms - duration_ms(option, written.lower().removesuffix("ago"))


def window_ms(since: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Return the times of ``--since`` and ``--until`` (ms since the epoch); None if not given."""
    return (
        None if since is None else moment_ms("--since", since, now_ms),
        None if until is None else moment_ms("--until", until, now_ms),
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """Options of the commands that print a list."""

    since: Since = None
    until: Until = None
    limit: Limit = 20
    watch: Watch = False
    ledger: LedgerUrl = DEFAULT_LEDGER
    as_json: AsJson = False

    def window_ms(self, now_ms: int) -> tuple[int | None, int | None]:
        """Return ``--since`` and ``--until`` as times (ms since the epoch); None if not given."""
        return window_ms(self.since, self.until, now_ms)


def secret_of(file: Path | None, option: str, variable: str) -> str | None:
    """Return the secret in ``file``, or in an environment variable if ``file`` is None.

    Return None if the variable is not set.
    """
    return os.environ.get(variable) if file is None else _text_of(file, option).strip()


def _text_of(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(
            f"{option} is {file}, which cannot be read ({reason}); name another file."
        ) from error


def source_options(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return options of the stream from the command line and from a file.

    An option of the command line replaces the option of the same name in the file. Names are
    case-insensitive, and the last value of a name counts. Errors show no values.
    """
    named = dict[str, tuple[str, str]]()
    for where, text in [*_lines(file), *(("--option", option) for option in given)]:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise OptionError(
                f"{where} is not NAME=VALUE; write an option such as kafka.security.protocol=SSL."
            )
        named[name.strip().lower()] = (name.strip(), value.strip())
    return dict(named.values())


def _lines(file: Path | None) -> Iterator[tuple[str, str]]:
    lines = [] if file is None else _text_of(file, "--options-file").splitlines()
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"Line {number} of {file}", line


def load_handler(handler: str, transform: str | None) -> "Handler":
    """Return a handler that calls the function of ``--handler`` with the result of ``--transform``.

    The handler raises OptionError if the function returns a value: a function that returns a value
    may be the handler of a flow's stage, which needs ``--flow``.
    """
    from headrace.gate import check_handler, refuse_unrun  # noqa: PLC0415  (brings Spark)

    handle = load_function("--handler", handler)
    check_handler(handle)
    derive = None if transform is None else load_function("--transform", transform)

    def handle_derived(df: "DataFrame", batch: "Batch") -> None:
        answer = handle(df if derive is None else derive(df), batch)
        refuse_unrun(answer)
        if answer is not None:
            # A stage's handler returns its output, which only --flow writes to the channel.
            raise OptionError(
                f"--handler is {handler!r}, which returned a value of type"
                f" {type(answer).__name__}; a handler must return None. For the handler of a"
                " flow's stage, give --flow module:flow in place of --handler."
            )

    return handle_derived


def load_function(option: str, name: str) -> Callable[..., Any]:
    """Import and return the function ``name``, which has the form ``module:function``.

    >>> load_function("--handler", "json:dumps")([1])
    '[1]'
    """
    loaded = _load(option, name, "a function", "module:function, such as shop.jobs:handle")
    if not callable(loaded):
        raise OptionError(
            f"{option} is {name!r}, which is of type {type(loaded).__name__} and cannot be called;"
            " name a function."
        )
    function: Callable[..., Any] = loaded
    return function


def load_flow(name: str) -> "Flow":
    """Import, check and return the flow ``name``, which has the form ``module:flow``."""
    from headrace.flow import Flow  # noqa: PLC0415  (handlers do without)

    loaded = _load("The flow", name, "a flow", "module:flow, such as shop.flows:orders")
    if not isinstance(loaded, Flow):
        raise OptionError(
            f"The flow is {name!r}, which is of type {type(loaded).__name__}; name a"
            " headrace.flow.Flow."
        )
    loaded.check()
    return loaded


def _load(option: str, name: str, kind: str, form: str) -> object:
    module_name, colon, path = name.partition(":")
    if not (colon and path and all(part.isidentifier() for part in module_name.split("."))):
        raise OptionError(f"{option} is {name!r}; write {form}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(
            f"{option} is {name!r}, and {module_name} cannot be imported ({type(error).__name__}:"
            f" {printable(str(error))}); make sure that it can be imported from {here}."
        ) from error
    try:
        loaded: object = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise OptionError(
            f"{option} is {name!r}, but {module_name} ({module.__file__}) has no {path!r}; name"
            f" {kind} that the module has."
        ) from error
    return loaded


def start_spark(name: str) -> "SparkSession":
    """Start a Spark session with settings from the environment. Raise SetupError on failure."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from headrace.gate import configure, register  # noqa: PLC0415

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        spark = configure(SparkSession.builder.appName(name)).getOrCreate()
    except PySparkRuntimeError as error:
        raise SetupError(
            f"Spark does not start ({error.getCondition()}); `headrace doctor` shows what is"
            " missing."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
