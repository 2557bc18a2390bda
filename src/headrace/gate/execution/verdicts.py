"""What a handler's exception means for its batch: the only place that looks into one.

`failure_of` asks in this order: is the query being stopped; are parts of the batch in the sink; is
the source or the program at fault; is the sink away, or what is read; did something fail that says
nothing of the records; was a process lost, or without memory. What is left may be the records'
fault.

Objects are asked for their codes and classes, never for their text. An exception in a task comes as
text alone: only classes are read from it, and the text that their packages write before any value.
If Spark has its Java exceptions at hand, these are asked instead. What the codes, classes and texts
of each driver mean stands in `headrace.gate.execution.drivers`.

So no record that stands in a message can make an outage of itself, but for two cases, both of text
with line breaks: over Spark Connect, in a message of Java's; and one that imitates a whole
traceback that ends with a ``SinkAwayError``.
"""

import errno
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, cast
from urllib.error import HTTPError, URLError

import pyspark
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import PySparkException
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from headrace import errors
from headrace.errors import (
    READ,
    BatchSplitError,
    CorruptionError,
    DataLossError,
    HandlerExitError,
    HeadraceError,
    JournalError,
    LedgerError,
    MachineryError,
    NotProcessedError,
    OptionError,
    RejectionError,
    SetupError,
    SinkAwayError,
    SourceError,
)
from headrace.gate.control.life import Failure, Verdict
from headrace.gate.execution import drivers
from headrace.gate.ledger.error_report import (
    ErrorReport,
    query_stopped,
    sqlstate_of,
    was_open_too_long,
)
from headrace.spark_versions import Py4JError, Py4JJavaError, Py4JNetworkError


def failure_of(
    error: Exception,
    *,
    is_stopped: bool = False,
    has_asked: bool = False,
    passes_over_losses: bool = False,
) -> Failure:
    """Return what an exception of a call means for its batch.

    Args:
        error: What was raised. Where it is Spark's, its JVM is asked for the causes.
        is_stopped: Whether the query is being stopped; then nothing else is looked at.
        has_asked: Whether the handler has asked its sink what that has of this key.
        passes_over_losses: Whether the source goes on where records are gone.
    """
    if is_stopped:
        return Failure(Verdict.STOPPED, error, query_stopped(error), is_blameless=True)
    if isinstance(error, HandlerExitError):
        return Failure(Verdict.STOPPED, error, ErrorReport.of(error), is_blameless=True)
    if isinstance(error, BatchSplitError):
        return Failure(Verdict.PARTLY_IN, error, error, is_blameless=True)
    if (wrong := ends_query(error)) is not None:
        goes_on = passes_over_losses and isinstance(wrong, DataLossError)
        return Failure(Verdict.WRONG, error, wrong, is_blameless=True, goes_on=goes_on)
    source = unreachable_source(error)
    is_source_away = source is not None and not isinstance(source, RejectionError)
    unread = error if isinstance(error, NotProcessedError) else source or _broken_machinery(error)
    if took_too_much(error):
        verdict = Verdict.TOO_LARGE if unread is None else Verdict.UNREAD
    elif is_source_away or sink_is_away(error):
        verdict = Verdict.AWAY
    else:
        verdict = Verdict.RECORDS if unread is None else Verdict.UNREAD
    return Failure(
        verdict,
        error,
        unread or error,
        is_blameless=unread is not None,
        is_unreached=no_connection(error),
        has_asked=has_asked,
    )


# Exceptions and their causes.


def with_causes(error: BaseException, *, hidden: bool = True) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, outermost first; hidden are ``from None``'s."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        yield now
        seen.add(id(now))
        is_shown = hidden or not now.__suppress_context__
        now = now.__cause__ or (now.__context__ if is_shown else None)


def _is_of_spark(error: BaseException) -> bool:
    return isinstance(error, Py4JJavaError | PySparkException)


def _spark_text(error: BaseException) -> str:
    return text_of(error) if _is_of_spark(error) else ""


def text_of(error: BaseException) -> str:
    """Return Spark's message, for which it may ask its JVM; empty if the JVM is gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (whatever a JVM that ends makes of it)
        return ""


# The source, the program, a machine.

_ENDING: Final = (DataLossError, CorruptionError, OptionError, SetupError)

# Spark has a task's exception as text: the traceback, as the Python worker wrote it.
_IN_A_TASK: Final = re.compile(
    r"^headrace\.errors\.((?:DataLoss|Corruption|Option|Setup)Error): (.+)$", re.MULTILINE
)
_WHILE_READING: Final = re.compile(
    rf"^(?:headrace\.errors\.(\w+): )?(.+)\n{re.escape(READ)}$", re.MULTILINE
)

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FULL_IN_TEXT: Final = re.compile(r"No space left on device|Disk quota exceeded")

_NOT_TRUSTED: Final = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|PKIX path (?:building|validation) failed"
)
"""As Python, libpq and Java say it."""

_TLS_IN_TEXT: Final = re.compile(
    r"^(?:: |Caused by: )?[\w.]*(?:SSL\w*(?:Error|Exception)|OperationalError): (.+)$", re.MULTILINE
)


def _untrusted(error: BaseException) -> SetupError | None:
    for cause in with_causes(error):
        lines = _TLS_IN_TEXT.findall(_spark_text(cause))
        if isinstance(cause, OSError) or type(cause).__name__ == "OperationalError":
            lines = [text_of(cause)]
        for line in lines:
            if _NOT_TRUSTED.search(line):
                return SetupError(
                    "The certificate of a server that the handler writes to is not trusted, which"
                    f" is a setting and says nothing of the records: {line.splitlines()[0]}; have"
                    " the handler trust its authority, or the server renew it, and start the query"
                    " again."
                )
    return None


_LINKAGE: Final = re.compile(
    r"^(?:: |Caused by: )?java\.lang\.((?:NoSuchMethod|NoSuchField|AbstractMethod|NoClassDefFound"
    r"|IncompatibleClassChange)Error): (?!Could not initialize)'?([^\n('\"]+)",
    re.MULTILINE,
)
"""Java links each class once: what one lacks it will lack, whatever the records."""

_OF_DELTA: Final = re.compile(
    r"^\s+at (?:io\.delta|org\.apache\.spark\.sql\.delta)\.", re.MULTILINE
)


def _unsuited_jar(error: BaseException) -> SetupError | None:
    for each in with_causes(error):
        text = _spark_text(each)
        if (found := _LINKAGE.search(text)) is None:
            continue
        fault = f"{found[1]}: {found[2].strip()}"
        if _OF_DELTA.search(text):
            return SetupError(
                f"This Delta Lake is built for another Spark than {pyspark.__version__} ({fault});"
                " the newest, io.delta:delta-spark_4.2_2.13, needs Spark 4.2: pip install"
                " 'pyspark==4.2.*'."
            )
        return SetupError(
            f"A jar in this session is built for another Spark than {pyspark.__version__}, or for"
            f" another version of a library ({fault}); use one that is built for it."
        )
    return None


def ends_query(error: BaseException) -> HeadraceError | None:
    """Return why the query is to stop, whatever its policy; None where it need not.

    Its source has lost records, or the program cannot run as it is: a schema or an option is wrong,
    a machine lacks a package, a jar does not suit this Spark, or a certificate is not trusted. No
    record is at fault, and no sink is away. Only what Spark raises is searched, and what led to it:
    what a handler says by itself may have a record's text in it.
    """
    for each in with_causes(error):
        if type(each) in _ENDING:
            return cast(HeadraceError, each)
        if (found := _IN_A_TASK.search(_spark_text(each))) is not None:
            return cast(HeadraceError, getattr(errors, found[1])(found[2]))
    return _unsuited_jar(error) or _untrusted(error)


def unreachable_source(error: BaseException) -> HeadraceError | None:
    """Why the source could not be read this time, in one sentence, if that is what was raised.

    The brokers or the journal's store are away, or refuse: the same read may succeed later. Only
    what Spark raises is searched, for what a sink raises in a task, or a handler, is of the same
    classes.

    Returns:
        What the task raised, of its class; a ``SourceError`` where that is not Headrace's own; or
        what was raised in this process while what a handler rejected was read, or because it has
        rejected what is not of its batch. None for anything else.
    """
    for each in with_causes(error):
        if isinstance(each, RejectionError):
            return each
        if isinstance(each, HeadraceError) and READ in getattr(each, "__notes__", ()):
            return each
        if (found := _WHILE_READING.search(_spark_text(each))) is not None:
            kind = getattr(errors, found[1] or "", SourceError)
            return cast(HeadraceError, kind(found[2]))
    return None


_UNREACHED: Final = drivers.NETWORK_NAMES | {"InterfaceError", "OperationalError"}
"""Names of exceptions in Python itself, in databases' drivers (PEP 249), and in HTTP's clients."""


def no_connection(error: BaseException) -> bool:
    """Whether what was raised says that something else could not be reached, or was too slow.

    The record is no cause of that, be it the only one that fails: its part of the sink may be down.
    More says so than for `sink_is_away`: also a database's deadlock and its lock timeout.
    """
    return sink_is_away(error) or any(
        kind.__name__ in _UNREACHED for each in with_causes(error) for kind in type(each).__mro__
    )


def machinery_error(what: str, cause: BaseException) -> MachineryError:
    """Return the error that a batch could not be run, in one sentence, with its cause."""
    first_line = text_of(cause).strip().partition("\n")[0]
    error = MachineryError(f"{what}, which says nothing of the records: {first_line or cause!r}")
    error.__cause__ = cause
    return error


def _broken_machinery(error: BaseException) -> MachineryError | None:
    """Return the error that a disk, the ledger or the JVM has failed; None for anything else."""
    for each in with_causes(error):
        is_full = isinstance(each, OSError) and each.errno in _FULL
        spark_says = text_of(each) if isinstance(each, Py4JError | PySparkException) else ""
        if is_full or _FULL_IN_TEXT.search(spark_says):
            return machinery_error("A disk is full", each)
        if isinstance(each, LedgerError) and _is_the_databases(each):
            return machinery_error("The ledger failed while the batch ran", each)
        if isinstance(each, Py4JNetworkError):
            return machinery_error("Spark's JVM does not answer", each)
    return None


def _is_the_databases(error: LedgerError) -> bool:
    """Whether the database failed: neither a handler's misuse of it, nor a row that it refused.

    A handler that computes within its transaction for longer than the server allows misuses it.
    """
    causes = [each for each in with_causes(error) if isinstance(each, SQLAlchemyError)]
    refused = any(isinstance(each, IntegrityError | DataError) for each in causes)
    return bool(causes) and not refused and not was_open_too_long(error)


_TOO_MUCH: Final = re.compile(
    r"ExecutorLostFailure"
    r"|Python worker exited unexpectedly"
    r"|java\.lang\.OutOfMemoryError"
    r"|[Cc]ontainer killed by YARN for exceeding"
    r"|\bOOMKilled\b"
    r"|[Ee]xit (?:code|status):? 137\b"
)
"""As Spark, YARN and Kubernetes say it; 137 is a process that was killed (128 + SIGKILL)."""


def took_too_much(error: BaseException) -> bool:
    """Whether an executor or a Python worker was lost, or has no memory left, while a batch ran.

    Only what Spark raises is searched, for what a handler says by itself may have a record's text
    in it; and Python's own ``MemoryError``.
    """
    for each in with_causes(error):
        if isinstance(each, MemoryError):
            return True
        if isinstance(each, Py4JError | PySparkException) and _TOO_MUCH.search(text_of(each)):
            return True
    return False


# The sink.

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

    If it is Spark's, its JVM is asked for the causes.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(sink_is_away(each) for each in error.exceptions)
    causes = list(with_causes(error, hidden=False))
    if any(_is_of_the_source(each) for each in causes):
        return False
    if any(isinstance(each, SinkAwayError) for each in causes):
        return True
    return next((said for each in causes if (said := _verdict(each)) is not None), False)


def _is_of_the_source(error: BaseException) -> bool:
    return READ in getattr(error, "__notes__", ()) or f"\n{READ}" in _spark_text(error)


def _verdict(error: BaseException) -> bool | None:
    if isinstance(error, HeadraceError):
        return None if isinstance(error, _MAY_BE_A_SINK) else False
    if isinstance(error, BaseExceptionGroup):
        return sink_is_away(error)
    if isinstance(error, Py4JNetworkError | InterruptedError) or not isinstance(error, Exception):
        return False
    if _is_of_spark(error):
        return _spark_verdict(error)
    by_code = _code_says(error)
    return _system_verdict(error) if by_code is None else by_code


def _code_says(error: BaseException) -> bool | None:
    """The verdict of the code that a driver or a client gives its exceptions; None without one.

    SQLAlchemy's are left to the driver's exception, which is their cause.
    """
    package, first = _package(error), error.args[0] if error.args else None
    number, status = getattr(error, "errno", first), _http_status(error)
    state = first if package == "pyodbc" else sqlstate_of(error)
    verdict: bool | None = None
    if isinstance(error, KafkaException) and isinstance(first, KafkaError):
        verdict = first.code() in drivers.KAFKA or bool(first.retriable())
    elif _aws_code(error) in drivers.AWS:
        verdict = True
    elif status is not None:
        is_store = package in {"botocore", "boto3"}
        verdict = status in (drivers.STORE_STATUSES if is_store else drivers.HTTP_STATUSES)
    elif package == "sqlalchemy":
        # Where the server has said why it ended the connection, the driver's exception has it.
        was_cut = getattr(error, "connection_invalidated", False)
        verdict = True if was_cut and sqlstate_of(getattr(error, "orig", None)) is None else None
    elif package in drivers.MYSQL_DRIVERS and isinstance(number, int):
        verdict = number in drivers.MYSQL
    elif isinstance(state, str) and len(state) == 5:
        verdict = drivers.sqlstate_says(state)
    elif isinstance(code := getattr(error, "sqlite_errorcode", None), int):
        verdict = code & 0xFF in drivers.SQLITE  # it may be an extended code
    return verdict


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


def _system_verdict(error: BaseException) -> bool | None:
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return _verdict(error.reason)
    if _was_raised_by_pyspark(error.__traceback__):
        return None
    if isinstance(error, OSError) and error.errno in drivers.ERRNOS:
        return True
    if isinstance(error, PermissionError):
        return True if error.errno == errno.EACCES and error.filename is not None else None
    said = {drivers.name_says(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    return False if False in said else True if True in said else None


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


def _link_verdict(link: JavaError) -> bool | None:
    if link.names[0] == _PYTHON_EXCEPTION:
        return _task_verdict(link.message)
    if link.sqlstate:
        return drivers.sqlstate_says(link.sqlstate)
    verdicts = (drivers.java_says(name, link.message) for name in link.names)
    verdict = next((each for each in verdicts if each is not None), None)
    return verdict and not drivers.is_sparks_own_link(link.frames)


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
_AWAY: Final = "headrace.errors.SinkAwayError"


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
    if is_own or not drivers.REFUSALS.isdisjoint(later):
        return False
    return drivers.python_says(name, message or "")


_HEADER: Final = "Traceback (most recent call last):\n"
