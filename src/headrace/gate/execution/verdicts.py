"""Classification of a handler's exceptions: what an exception means for its batch.

No other module inspects exceptions. `failure_of` checks in this order: the query is being stopped;
the sink has parts of the batch; the source or the program is at fault; a process was lost, or ran
out of memory; the sink or the source is unreachable; the failure has another cause than the
records. All remaining exceptions may be caused by the records. If the source cannot be read, the
batch is held, and no record is convicted.

Exceptions of this process are inspected by code and class, never by text. An exception of a task
arrives only as text. From the text, this module reads the classes, and the words that a package
writes before the first value. If Spark also has the Java exceptions, the module inspects these
instead. `headrace.gate.execution.drivers` has the meanings of each driver's codes, classes and
texts.

So a record that is quoted in a message cannot look like an outage, with two exceptions: a record
with line breaks that a Java exception quotes over Spark Connect, and a record that imitates a whole
traceback with a ``SinkAwayError`` at its end.
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
    """Return the `Failure` that describes what a handler call's exception means for the batch.

    Args:
        error: The exception. For an exception of Spark, the causes are read from the JVM.
        is_stopped: Whether the query is being stopped. Nothing else is checked then.
        has_asked: Whether the handler has asked its sink for the batch's key, as `Batch.once` does.
        passes_over_losses: Whether the stream skips lost offsets (``failOnDataLoss=false``).
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
    """Yield an exception and its causes, outermost first.

    With ``hidden``, include the causes that a ``raise ... from None`` has hidden.
    """
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
    """Return the message of an exception of Spark; empty if its JVM has ended."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an ending JVM raises many classes)
        return ""


# The source, the program, a machine.

_ENDING: Final = (DataLossError, CorruptionError, OptionError, SetupError)

# Spark has a task's exception as text: the traceback of the Python worker, whose last line has the
# type and the sentence.
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
"""Messages with which Python, libpq and Java report an untrusted certificate."""

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
"""Linkage errors of Java, which repeat for every record because a class is linked only once."""

_OF_DELTA: Final = re.compile(
    r"^\s+at (?:io\.delta|org\.apache\.spark\.sql\.delta)\.", re.MULTILINE
)


def _unsuited_jar(error: BaseException) -> SetupError | None:
    for cause in with_causes(error):
        text = _spark_text(cause)
        if (match := _LINKAGE.search(text)) is None:
            continue
        fault = f"{match[1]}: {match[2].strip()}"
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
    """Return the error that ends the query under every policy; None if there is none.

    Such an error means that the source has lost records, or that the program cannot run: a wrong
    schema or option, a missing package, a jar for another Spark, or an untrusted certificate. Only
    Spark's exceptions and their causes are searched, because the text of a handler's own exception
    may contain a record.
    """
    for cause in with_causes(error):
        if type(cause) in _ENDING:
            return cast(HeadraceError, cause)
        if (match := _IN_A_TASK.search(_spark_text(cause))) is not None:
            return cast(HeadraceError, getattr(errors, match[1])(match[2]))
    return _unsuited_jar(error) or _untrusted(error)


def unreachable_source(error: BaseException) -> HeadraceError | None:
    """Return the error of a failed read of the source; None if the exception has another cause.

    The brokers or the journal's storage are unreachable or refuse the read, so a later read may
    succeed. Only Spark's exceptions are searched, because a handler, or a sink in a task, may raise
    the same classes.

    Returns:
        The `RejectionError` of a failed rejection. The error of the read if this process could not
        read rejected records. Otherwise the error of the task that could not read, as a
        `SourceError` if its class is not one of Headrace's.
    """
    for cause in with_causes(error):
        if isinstance(cause, RejectionError):
            return cause
        if isinstance(cause, HeadraceError) and READ in getattr(cause, "__notes__", ()):
            return cause
        if (match := _WHILE_READING.search(_spark_text(cause))) is not None:
            kind = getattr(errors, match[1] or "", SourceError)
            return cast(HeadraceError, kind(match[2]))
    return None


_UNREACHED: Final = drivers.NETWORK_NAMES | {"InterfaceError", "OperationalError"}
"""Names of exceptions by which Python, database drivers (PEP 249) and HTTP clients report an
unreachable system."""


def no_connection(error: BaseException) -> bool:
    """Return whether an exception reports that another system was unreachable or too slow.

    If so, no record is the cause, even if only one record fails: its region of the sink may be down
    while the other regions work. In contrast to `sink_is_away`, a database's deadlock and lock
    timeout count too.
    """
    return sink_is_away(error) or any(
        kind.__name__ in _UNREACHED for cause in with_causes(error) for kind in type(cause).__mro__
    )


def machinery_error(what: str, cause: BaseException) -> MachineryError:
    """Return a `MachineryError` of one sentence, with its cause, for a batch that could not be run.

    The error is for failures outside of the handler while a batch is run again, such as a query
    that Spark does not start. Only exceptions of the handler itself count against records.
    """
    first_line = text_of(cause).strip().partition("\n")[0]
    error = MachineryError(f"{what}, which says nothing of the records: {first_line or cause!r}")
    error.__cause__ = cause
    return error


def _broken_machinery(error: BaseException) -> MachineryError | None:
    """Return the error if a disk, the ledger or the JVM has failed; None for any other error."""
    for cause in with_causes(error):
        is_full = isinstance(cause, OSError) and cause.errno in _FULL
        spark_says = text_of(cause) if isinstance(cause, Py4JError | PySparkException) else ""
        if is_full or _FULL_IN_TEXT.search(spark_says):
            return machinery_error("A disk is full", cause)
        if isinstance(cause, LedgerError) and _is_the_databases(cause):
            return machinery_error("The ledger failed while the batch ran", cause)
        if isinstance(cause, Py4JNetworkError):
            return machinery_error("Spark's JVM does not answer", cause)
    return None


def _is_the_databases(error: LedgerError) -> bool:
    """Return whether the database itself failed; False for a handler's wrong use or refused data.

    A handler uses the database wrongly if it keeps a transaction open for longer than the server
    allows.
    """
    causes = [cause for cause in with_causes(error) if isinstance(cause, SQLAlchemyError)]
    refused = any(isinstance(cause, IntegrityError | DataError) for cause in causes)
    return bool(causes) and not refused and not was_open_too_long(error)


_TOO_MUCH: Final = re.compile(
    r"ExecutorLostFailure"
    r"|Python worker exited unexpectedly"
    r"|java\.lang\.OutOfMemoryError"
    r"|[Cc]ontainer killed by YARN for exceeding"
    r"|\bOOMKilled\b"
    r"|[Ee]xit (?:code|status):? 137\b"
)
"""Messages of Spark, YARN and Kubernetes about a lost process; exit code 137 means SIGKILL."""


def took_too_much(error: BaseException) -> bool:
    """Return whether a process was lost or ran out of memory: executor, worker or driver.

    Only Spark's exceptions and Python's ``MemoryError`` are searched, because the text of a
    handler's own exception may contain a record.
    """
    for cause in with_causes(error):
        if isinstance(cause, MemoryError):
            return True
        if isinstance(cause, Py4JError | PySparkException) and _TOO_MUCH.search(text_of(cause)):
            return True
    return False


# The sink.

_MAY_BE_A_SINK: Final = (LedgerError, JournalError)
"""Headrace's own errors whose cause may be a sink: a handler may write into a ledger or a journal.
"""

_OF_THE_JOB: Final = (
    *("AnalysisException", "ParseException", "IllegalArgumentException", "ArithmeticException"),
    *("ArrayIndexOutOfBoundsException", "DateTimeException", "NumberFormatException"),
    *("SparkRuntimeException", "SparkNoSuchElementException", "SparkUpgradeException"),
    *("UnsupportedOperationException", "TempTableAlreadyExistsException"),
)
"""Names of PySpark's exceptions for a wrong query, or for a value that the query cannot process."""


def sink_is_away(error: BaseException) -> bool:
    """Return whether an exception reports that the sink is away, so that a later run may succeed.

    True for a ``SinkAwayError`` among the causes, and for a service that was unreachable, too slow,
    shutting down, read-only, or out of connections or disk space. The outermost exception with a
    verdict decides: an ``IntegrityError`` raised while an ``OperationalError`` was handled is no
    outage. Causes hidden by ``from None`` are ignored. In an exception group, all members must
    report an outage.

    False for a refusal of the data: constraints, deadlocks, statement timeouts, missing tables,
    HTTP 400, 404, 413, 422 and 500. Also False for HTTP 401 and 403, although an expired password
    is no record's fault: services return these codes for single records too, such as the records of
    one tenant. A handler that knows better raises ``SinkAwayError``. True for a wrong password of a
    database: it is an ``OperationalError`` without an SQLSTATE, like an unreachable database.

    Also False if a process of Spark ended, for any reason, or if Headrace could not read the source
    of the batch. For an exception of Spark, the causes are read from the JVM.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(sink_is_away(cause) for cause in error.exceptions)
    causes = list(with_causes(error, hidden=False))
    if any(_is_of_the_source(cause) for cause in causes):
        return False
    if any(isinstance(cause, SinkAwayError) for cause in causes):
        return True
    return next((verdict for cause in causes if (verdict := _verdict(cause)) is not None), False)


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
    """Return the verdict for the code in a driver's or client's exception; None without a code.

    Exceptions of SQLAlchemy have no verdict: their cause, the driver's exception, decides.
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
        # If the server gave a reason for ending the connection, the driver's exception has it.
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
    verdicts = {drivers.name_says(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    return False if False in verdicts else True if True in verdicts else None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _was_raised_by_pyspark(trace: TracebackType | None) -> bool:
    """Return whether the traceback is from PySpark's or Py4J's connection to the JVM."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in {"pyspark", "py4j"}:
            return True
        trace = trace.tb_next
    return False


# Exceptions of Spark.


class JavaError(NamedTuple):
    """Java exception: names of its class and superclasses, message, stack frames and SQLSTATE."""

    names: tuple[str, ...]
    message: str
    frames: str
    sqlstate: str | None = None


def _spark_verdict(error: BaseException) -> bool:
    """Return the verdict for an exception of Spark.

    The outermost Java exception with a verdict decides. The verdict is final, because the Python
    exceptions around the Java exceptions belong to PySpark.
    """
    name = type(error).__name__
    if name in _OF_THE_JOB or (name.startswith("PySpark") and name != "PySparkException"):
        return False
    try:
        links = _java_links(error)
    except Py4JError:  # the JVM has ended
        return False
    return next((verdict for link in links if (verdict := _link_verdict(link)) is not None), False)


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
"""Maximum number of exceptions read from a chain of causes, because Java's chains may have
cycles."""

_JOB: Final = (
    r"(?:An error occurred while calling \S+\n: )?(?:[\w.$]+: )?"
    r"Job aborted due to stage failure: [^\n]*?\(TID \d+\) \([^()\n]*\): "
)
_LINK: Final = re.compile(
    rf"(?:\A(?:{_JOB}|An error occurred while calling \S+\n: |\()?|^(?:Caused by: |: ))"
    r"((?:\w+\.)+[\w$]+)(?:(?:: |\) )([^\n]*(?:\n(?![ \t]+at |Caused by: |Driver stack)[^\n]*)*))?",
    re.MULTILINE,
)
"""First line of a Java exception in a printed trace. Spark Connect writes the class of an unknown
exception in parentheses."""


def _read_links(text: str) -> Iterator[JavaError]:
    """Yield the Java exceptions of a printed stack trace, each with its message and frames.

    A message ends where its stack frames begin. If Spark has printed only the exception of a Python
    worker, yield that exception.
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
    verdict = next((value for value in verdicts if value is not None), None)
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
    """Return the verdict for a traceback from a Python worker.

    The first exception in the text decides, because it is the root cause of the later exceptions.
    Above it are only frames. All text below it may be a part of its message, so a later exception
    can deny an outage, but not report one. Only a `SinkAwayError` reports an outage at any place.
    """
    start = _WORKER.match(text)
    raised = list(_RAISED.finditer(text[start.end() - len(_HEADER) :])) if start else []
    if not raised:
        return False
    frames, name, message = raised[0].groups()
    later = [exception[2].rpartition(".")[2] for exception in raised[1:]]
    if any(exception[1] and exception[2] == _AWAY for exception in raised):
        return True
    innermost = _INNERMOST_FRAME.match(frames)
    is_own = innermost is not None and _OWN_FRAME.search(innermost[1]) is not None
    if is_own or not drivers.REFUSALS.isdisjoint(later):
        return False
    return drivers.python_says(name, message or "")


_HEADER: Final = "Traceback (most recent call last):\n"
