"""Verdicts on a handler's exception: the source, the program or too little memory is at fault."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

import pyspark
from pyspark.errors import PySparkException
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from headrace import errors
from headrace.errors import (
    READ,
    CorruptionError,
    DataLossError,
    HandlerExitError,
    HeadraceError,
    LedgerError,
    MachineryError,
    NotProcessedError,
    OptionError,
    RejectionError,
    SetupError,
    SourceError,
)
from headrace.gate.execution.outage_signs import NETWORK_NAMES, java_says, python_says
from headrace.gate.execution.sink_outage import sink_is_away, text_of
from headrace.gate.ledger.error_report import ErrorReport, was_open_too_long
from headrace.spark_versions import Py4JError, Py4JJavaError, Py4JNetworkError

_INTERRUPTED: Final = "java.lang.InterruptedException"
_STOPPED_QUERY: Final = (
    "The query is stopped; py4j.protocol.Py4JJavaError: An error occurred while calling its"
    f" handler: {_INTERRUPTED}"
)


@contextmanager
def shorten_interrupts(stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Say in few words that a batch was interrupted because its query is stopped.

    Spark searches what a handler raises for these, by a pattern that overflows its stack on the
    many lines that Py4J makes of it. While a query is ``stopped`` anything that is raised is that.
    """
    try:
        yield
    except Exception as error:
        interrupted = isinstance(error, Py4JJavaError) and str(error.java_exception).startswith(
            _INTERRUPTED
        )
        if interrupted or stopped():
            raise InterruptedError(_STOPPED_QUERY) from None
        raise


@contextmanager
def exits_as_errors(batch: str) -> Iterator[None]:
    """Raise what is no ``Exception`` as one, with the cause.

    Py4J's thread that calls a handler would end by it without an answer, and Spark wait for ever;
    any other thread would end without a word.

    Raises:
        HandlerExitError: SystemExit, KeyboardInterrupt or the like was raised.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExitError(
            f"The handler of batch {batch} raised {type(error).__name__}"
            f"{f': {error}' if str(error) else ''}, which ends its query; raise an Exception for"
            " what the policy on_failure is to deal with."
        ) from error


_UNREADABLE: Final = (DataLossError, CorruptionError)
_PROGRAMS: Final = (OptionError, SetupError)
_KINDS: Final = {kind.__name__: kind for kind in (*_UNREADABLE, *_PROGRAMS)}

# Spark has a task's exception as text: the traceback, as the Python worker wrote it.
_IN_A_TASK: Final = re.compile(
    rf"^{re.escape(HeadraceError.__module__)}\.({'|'.join(_KINDS)}): (.+)$", re.MULTILINE
)

_WHILE_READING: Final = re.compile(
    rf"^(?:{re.escape(HeadraceError.__module__)}\.(\w+): )?(.+)\n{re.escape(READ)}$", re.MULTILINE
)

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FULL_IN_TEXT: Final = re.compile(r"No space left on device|Disk quota exceeded")


def unreadable(error: BaseException) -> HeadraceError | None:
    """Why the source could not be read, in one sentence, if that is what was raised.

    Only what Spark raises is searched, and what led to it: what a handler says by itself may have a
    record's text in it.

    Returns:
        A ``DataLossError`` or ``CorruptionError`` as the task raised it; None for anything else.
    """
    return _raised(error, _UNREADABLE)


def program_error(error: BaseException) -> HeadraceError | None:
    """Why the program cannot run as it is, in one sentence, if that is what was raised.

    A schema or an option is wrong, a machine lacks a package, or a jar does not suit this Spark: no
    record is at fault, and no sink is away. Spark's exceptions are searched by their text, as in
    `unreadable`.
    """
    return _raised(error, _PROGRAMS) or _unsuited_jar(error) or _untrusted(error)


_NOT_TRUSTED: Final = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|PKIX path (?:building|validation) failed"
)
"""As Python, libpq and Java say it."""

_TLS_IN_TEXT: Final = re.compile(
    r"^(?:: |Caused by: )?[\w.]*(?:SSL\w*(?:Error|Exception)|OperationalError): (.+)$", re.MULTILINE
)


def _untrusted(error: BaseException) -> SetupError | None:
    for cause in with_causes(error):
        text = text_of(cause)
        if isinstance(cause, Py4JJavaError | PySparkException):
            lines = _TLS_IN_TEXT.findall(text)
        else:
            is_tls = isinstance(cause, OSError) or type(cause).__name__ == "OperationalError"
            lines = [text] if is_tls else []
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
        text = text_of(each) if isinstance(each, Py4JJavaError | PySparkException) else ""
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
    """Why the query is to stop, whatever its policy: the source or the program is at fault."""
    return unreadable(error) or program_error(error)


def _raised(error: BaseException, kinds: tuple[type[HeadraceError], ...]) -> HeadraceError | None:
    for each in with_causes(error):
        if type(each) in kinds:
            return cast(HeadraceError, each)
        if isinstance(each, Py4JJavaError | PySparkException):
            found = _IN_A_TASK.search(text_of(each))
            if found is not None and _KINDS[found[1]] in kinds:
                return _KINDS[found[1]](found[2])
    return None


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
        if isinstance(each, Py4JJavaError | PySparkException):
            found = _WHILE_READING.search(text_of(each))
            if found is not None:
                kind = getattr(errors, found[1] or "", SourceError)
                return cast(HeadraceError, kind(found[2]))
    return None


def not_the_records(error: BaseException) -> HeadraceError | None:
    """Why a handler's exception says nothing of its records; None where it may.

    The source could not be read, the program is wrong, a disk is full, the ledger failed, or the
    JVM is gone.
    """
    if isinstance(error, NotProcessedError):
        return error
    found = ends_query(error) or unreachable_source(error)
    if found is not None:
        return found
    for each in with_causes(error):
        what = _broken_machinery(each)
        if what is not None:
            return machinery_error(what, each)
    return None


_UNREACHED: Final = NETWORK_NAMES | {"InterfaceError", "OperationalError"}
"""Names of exceptions in Python itself, in databases' drivers (PEP 249), and in HTTP's clients."""


def no_connection(error: BaseException | ErrorReport) -> bool:
    """Whether what was raised says that something else could not be reached, or was too slow.

    The record is no cause of that, be it the only one that fails: its part of the sink may be down.
    More says so than for `sink_is_away`: also a database's deadlock and its lock timeout.
    """
    if isinstance(error, ErrorReport):
        name, message = error.error_class, error.message
        return bool(python_says(name, message) or java_says(name, message))
    return sink_is_away(error) or any(
        kind.__name__ in _UNREACHED for each in with_causes(error) for kind in type(each).__mro__
    )


def machinery_error(what: str, cause: BaseException) -> MachineryError:
    """Return the error that a batch could not be run, in one sentence, with its cause."""
    first_line = text_of(cause).strip().partition("\n")[0]
    error = MachineryError(f"{what}, which says nothing of the records: {first_line or cause!r}")
    error.__cause__ = cause
    return error


def _broken_machinery(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _FULL:
        return "A disk is full"
    if isinstance(error, LedgerError) and _is_the_databases(error):
        return "The ledger failed while the batch ran"
    if isinstance(error, Py4JNetworkError):
        return "Spark's JVM does not answer"
    spark_says = text_of(error) if isinstance(error, Py4JError | PySparkException) else ""
    return "A disk is full" if _FULL_IN_TEXT.search(spark_says) else None


def _is_the_databases(error: LedgerError) -> bool:
    """Whether the database failed: neither a handler's misuse of it, nor a row that it refused.

    A handler that computes within its transaction for longer than the server allows misuses it.
    """
    causes = [each for each in with_causes(error) if isinstance(each, SQLAlchemyError)]
    refused = any(isinstance(each, IntegrityError | DataError) for each in causes)
    return bool(causes) and not refused and not was_open_too_long(error)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that led to it."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        yield now
        seen.add(id(now))
        now = now.__cause__ or now.__context__


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
