"""Whether what a handler raised says that its sink is away, and nothing about the records.

Objects are asked for their codes and classes, never for their text. An exception in a task comes as
text alone: only classes are read from it, and the text that their packages write before any value.
If Spark has its Java exceptions at hand, these are asked instead.

So no record that stands in a message can make an outage of itself, but for two cases, both of text
with line breaks: over Spark Connect, in a message of Java's; and one that imitates a whole
traceback that ends with a ``SinkAwayError``.
"""

import errno
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError

from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import PySparkException

from headrace.errors import (
    READ,
    HeadraceError,
    JournalError,
    LedgerError,
    SinkAwayError,
)
from headrace.gate.execution import outage_signs as signs
from headrace.gate.execution.outage_signs import Verdict
from headrace.gate.ledger.error_report import sqlstate_of
from headrace.spark_versions import Py4JError, Py4JJavaError, Py4JNetworkError

_MAY_BE_A_SINK: Final = (LedgerError, JournalError)
"""Headrace's own errors that another one may have led to: a handler writes into either."""

_OF_THE_JOB: Final = (
    *("AnalysisException", "ParseException", "IllegalArgumentException", "ArithmeticException"),
    *("ArrayIndexOutOfBoundsException", "DateTimeException", "NumberFormatException"),
    *("SparkRuntimeException", "SparkNoSuchElementException", "SparkUpgradeException"),
    *("UnsupportedOperationException", "TempTableAlreadyExistsException"),
)
"""Names of PySpark's classes for a query that is wrong, or a value that does not suit it."""


def sink_is_away(error: BaseException) -> bool:
    """Whether an exception says that the sink is away: the batch, run again later, may succeed.

    True for a ``SinkAwayError`` among the causes, and for a service that was not reached, was too
    slow, is shutting down, is out of connections or of disk, or takes no writes now. The outermost
    exception that says either is believed: an ``IntegrityError`` that was raised while an
    ``OperationalError`` was handled is no outage. Causes that are hidden by ``from None`` are not
    looked at. In an exception group all have to say it.

    False for answers that refuse what was sent: constraints, deadlocks, statement timeouts, missing
    tables, HTTP 400, 404, 413, 422 and 500. Also for HTTP 401 and 403, though a password that has
    expired is no record's fault: services answer so for single records, too, such as those of one
    tenant. A handler that knows better raises ``SinkAwayError``. A wrong password of a database is
    an ``OperationalError`` without an SQLSTATE, as an unreachable one is, and so it is true.

    False as well for the end of a process of Spark's own, by a record or not, and for what was
    raised while Headrace read its source.

    Args:
        error: what a handler raised. Where it is Spark's, its JVM is asked for the causes.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(sink_is_away(each) for each in error.exceptions)
    causes = list(_causes(error))
    if any(_is_of_the_source(each) for each in causes):
        return False
    if any(isinstance(each, SinkAwayError) for each in causes):
        return True
    return next((said for each in causes if (said := _verdict(each)) is not None), False)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it, outermost first, without those that are hidden."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        yield now
        seen.add(id(now))
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)


def _is_of_the_source(error: BaseException) -> bool:
    if READ in getattr(error, "__notes__", ()):
        return True
    return _is_of_spark(error) and f"\n{READ}" in text_of(error)


def _is_of_spark(error: BaseException) -> bool:
    return isinstance(error, Py4JJavaError | PySparkException)


def text_of(error: BaseException) -> str:
    """Return Spark's message, for which it may ask its JVM; empty if the JVM is gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (whatever a JVM that ends makes of it)
        return ""


def _verdict(error: BaseException) -> Verdict:
    if isinstance(error, HeadraceError):
        return None if isinstance(error, _MAY_BE_A_SINK) else False
    if isinstance(error, BaseExceptionGroup):
        return sink_is_away(error)
    if isinstance(error, Py4JNetworkError | InterruptedError) or not isinstance(error, Exception):
        return False
    if _is_of_spark(error):
        return _spark_verdict(error)
    for judge in (_kafka_verdict, _http_verdict, _database_verdict, _system_verdict):
        if (verdict := judge(error)) is not None:
            return verdict
    return None


def _kafka_verdict(error: BaseException) -> Verdict:
    if isinstance(error, KafkaException):
        code: Any = error.args[0] if error.args else None
        if isinstance(code, KafkaError):
            return signs.kafka_says(code.code()) or bool(code.retriable())
    return None


def _http_verdict(error: BaseException) -> Verdict:
    status, statuses = _http_status(error), signs.HTTP_STATUSES
    if _package(error) in {"botocore", "boto3"}:
        statuses = signs.STORE_STATUSES
        if signs.aws_says(_aws_code(error)):
            return True
    return None if status is None else status in statuses


def _aws_code(error: BaseException) -> str:
    response: Any = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code")) if isinstance(response, dict) else ""


def _http_status(error: BaseException) -> int | None:
    if isinstance(error, HTTPError):
        return error.code
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif response is not None:
        status = getattr(response, "status_code", None)
    else:
        name = {"aiohttp": "status", "google": "code"}.get(_package(error), "status_code")
        status = getattr(error, name, None)
    return int(status) if isinstance(status, int) and status >= 400 else None


def _database_verdict(error: BaseException) -> Verdict:
    """By the SQLSTATE or the number of a database's error, or by its class where it has neither.

    SQLAlchemy's are left to the driver's exception, which is their cause.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    package, first = _package(error), error.args[0] if error.args else None
    state = sqlstate_of(error)
    if package == "pyodbc" and isinstance(first, str) and len(first) == 5:
        state = first
    number = getattr(error, "errno", first)
    verdict: Verdict
    if package == "sqlalchemy":
        # Where the server has said why it ended the connection, the driver's exception has it.
        was_cut = getattr(error, "connection_invalidated", False)
        verdict = True if was_cut and sqlstate_of(getattr(error, "orig", None)) is None else None
    elif (mysql := signs.mysql_says(package, number)) is not None:
        verdict = mysql
    elif isinstance(state, str):
        verdict = signs.sqlstate_says(state)
    elif isinstance(code := getattr(error, "sqlite_errorcode", None), int):
        verdict = signs.sqlite_says(code)
    elif names & signs.REFUSALS:
        verdict = False
    else:
        verdict = True if "OperationalError" in names else None
    return verdict


def _system_verdict(error: BaseException) -> Verdict:
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return _verdict(error.reason)
    if _was_raised_by_pyspark(error.__traceback__):
        return None
    if isinstance(error, OSError) and error.errno in signs.ERRNOS:
        return True
    if isinstance(error, PermissionError):
        return True if error.errno == errno.EACCES and error.filename is not None else None
    kinds = type(error).__mro__
    is_named = any(signs.name_says(kind.__module__, kind.__name__) for kind in kinds)
    return True if is_named else None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _was_raised_by_pyspark(trace: TracebackType | None) -> bool:
    """Whether PySpark or Py4J was talking to the JVM when a socket failed."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in {"pyspark", "py4j"}:
            return True
        trace = trace.tb_next
    return False


# Exceptions of Spark.


class JavaError(NamedTuple):
    """One exception of Java's: its class, those that it is derived from, its message."""

    names: tuple[str, ...]
    message: str
    frames: str
    sqlstate: str | None = None


def _spark_verdict(error: BaseException) -> bool:
    """The verdict of the first of Spark's exceptions, outermost first, that says something.

    It is final: what stands above or below in Python is PySpark's own.
    """
    name = type(error).__name__
    if name in _OF_THE_JOB or (name.startswith("PySpark") and name != "PySparkException"):
        return False
    try:
        links = _java_links(error)
    except Py4JError:  # the JVM is gone by now
        return False
    return next((said for link in links if (said := _link_verdict(link)) is not None), False)


def _java_links(error: BaseException) -> list[JavaError]:
    link: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if not hasattr(link, "getCause"):
        return list(_read_links(text_of(error)))
    links: list[JavaError] = []
    while link is not None and len(links) < _MOST_LINKS:
        names, kind = [], link.getClass()
        while kind is not None:
            names.append(str(kind.getName()))
            kind = kind.getSuperclass()
        links.append(
            JavaError(
                tuple(names),
                str(link.getMessage() or ""),
                "\n".join(str(frame) for frame in link.getStackTrace()),
                link.getSQLState() if "java.sql.SQLException" in names else None,
            )
        )
        link = link.getCause()
    return links


_MOST_LINKS: Final = 20
"""A chain of Java's may lead back into itself."""

_JOB: Final = (
    r"(?:An error occurred while calling \S+\n: )?(?:[\w.$]+: )?"
    r"Job aborted due to stage failure: [^\n]*?\(TID \d+\) \([^()\n]*\): "
)
_LINK: Final = re.compile(
    rf"(?:\A(?:{_JOB}|An error occurred while calling \S+\n: |\()?|^(?:Caused by: |: ))"
    r"((?:\w+\.)+[\w$]+)(?:(?:: |\) )([^\n]*(?:\n(?![ \t]+at |Caused by: |Driver stack)[^\n]*)*))?",
    re.MULTILINE,
)
"""Spark Connect writes the class of what it does not know in parentheses."""


def _read_links(text: str) -> Iterator[JavaError]:
    """Java's exceptions in what it prints of them; a Python worker's, where Spark says only that.

    A message ends where its stack begins.
    """
    if _WORKER.match(text):
        yield JavaError((_PYTHON_EXCEPTION,), text, "")
        return
    links = list(_LINK.finditer(text))
    ends = [link.start() for link in links[1:]] + [len(text)]
    for link, end in zip(links, ends, strict=False):
        yield JavaError((link[1],), (link[2] or "").rstrip(), text[link.end() : end])


def _link_verdict(link: JavaError) -> Verdict:
    if link.names[0] == _PYTHON_EXCEPTION:
        return _task_verdict(link.message)
    if link.sqlstate:
        return signs.sqlstate_says(link.sqlstate)
    verdicts = (signs.java_says(name, link.message) for name in link.names)
    verdict = next((each for each in verdicts if each is not None), None)
    return verdict and not signs.is_sparks_own_link(link.frames)


_PYTHON_EXCEPTION: Final = "org.apache.spark.api.python.PythonException"

_WORKER: Final = re.compile(
    r"\s*(?:\[PYTHON_EXCEPTION\] )?(?:An exception was thrown from the Python worker[^\n]*\s*)?"
    r"(?:\[PYTHON_EXCEPTION\] An exception was thrown from the Python worker: )?"
    r"Traceback \(most recent call last\):\n"
)
_RAISED: Final = re.compile(
    r"^Traceback \(most recent call last\):\n((?:[ \t][^\n]*\n)*)([\w.]+)(?:: (.*))?$",
    re.MULTILINE,
)
_INNERMOST_FRAME: Final = re.compile(r'.*^  File "([^"\n]*)"', re.DOTALL | re.MULTILINE)
_OWN_FRAME: Final = re.compile(r"[/\\](?:pyspark|py4j)[/\\]")
_AWAY: Final = f"{SinkAwayError.__module__}.{SinkAwayError.__name__}"


def _task_verdict(text: str) -> bool:
    """The verdict of a traceback that a Python worker has written.

    The first exception counts, to which all others are due: above it there is nothing but frames,
    while below it everything may be part of its message. A later one can only say that it is no
    outage, unless it is a ``SinkAwayError``.
    """
    start = _WORKER.match(text)
    raised = list(_RAISED.finditer(text[start.end() - len(_HEADER) :])) if start else []
    if not raised:
        return False
    frames, name, message = raised[0].groups()
    later = [each[2].rpartition(".")[2] for each in raised[1:]]
    if any(each[1] and each[2] == _AWAY for each in raised):
        return True
    innermost = _INNERMOST_FRAME.match(frames)
    is_own = innermost is not None and _OWN_FRAME.search(innermost[1]) is not None
    if is_own or not signs.REFUSALS.isdisjoint(later):
        return False
    return signs.python_says(name, message or "") is True


_HEADER: Final = "Traceback (most recent call last):\n"
