"""Report of an error in the ledger: its class, its message, its trace and its root cause."""

import re
from dataclasses import dataclass
from traceback import TracebackException
from typing import Final, NamedTuple

from headrace.errors import READ, NotProcessedError

MAX_MESSAGE_LENGTH: Final = 4_000
"""Maximum stored length of an exception's message (characters), from its beginning."""

QUERY_STOPPED: Final = "QueryStopped"
"""Error class of a batch whose query was stopped on purpose while the batch ran."""

REJECTED: Final = "Rejected"
"""Error class of a record that the handler rejected."""

BAD_VALUE: Final = "BadValue"
"""Error class of a record that was rejected because its value could not be decoded."""

MAX_TRACE_LENGTH: Final = 16_000
"""Maximum stored length of an exception's trace (characters), up to its end, which has the
cause."""


_FROM_SPARK: Final = {
    "py4j.protocol.Py4JJavaError",
    "pyspark.errors.exceptions.captured.PythonException",
    "pyspark.errors.exceptions.captured.StreamingQueryException",
}

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_PYTHON: Final = re.compile(r"([^\W\d][\w.]*)(?:: (.*))?")
_JAVA: Final = re.compile(r"^(?:Caused by: |: )([\w.$]+)(?:: (.*))?$", re.MULTILINE)
_MESSAGE_ENDS: Final = (READ, "\t", "Caused by: ", "Driver stacktrace:", "JVM stacktrace:")


class RootCause(NamedTuple):
    """The class and the message of an exception."""

    error_class: str
    message: str


def root_cause(error_class: str, text: str) -> RootCause | None:
    r"""Return the exception of a Python worker behind PySpark's, or the last of Java's causes.

    None if the exception's class does not wrap other exceptions, or the text names no cause.

    >>> text = "An error occurred while calling o1.save.\n: a.B: no\n\tat x\nCaused by: c.D: full\n"
    >>> root_cause("py4j.protocol.Py4JJavaError", text)
    RootCause(error_class='c.D', message='full')
    """
    if error_class not in _FROM_SPARK:
        return None
    return _of_python(text) or _of_java(text)


def _of_python(text: str) -> RootCause | None:
    _, traceback, frames = text.rpartition(_TRACEBACK)
    lines = frames.splitlines()
    raised = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), None)
    if not traceback or raised is None:
        return None
    match = _PYTHON.fullmatch(lines[raised])
    if match is None:
        return None
    return RootCause(match[1], _message_up_to_trace(match[2], lines[raised + 1 :]))


def _of_java(text: str) -> RootCause | None:
    causes = list(_JAVA.finditer(text))
    if not causes:
        return None
    last = causes[-1]
    return RootCause(last[1], _message_up_to_trace(last[2], text[last.end() + 1 :].splitlines()))


def _message_up_to_trace(first: str | None, following: list[str]) -> str:
    """Return a message, which may have several lines, without the trace behind it."""
    lines = [first or ""]
    for line in following:
        if line.startswith(_MESSAGE_ENDS):
            break
        lines.append(line)
    return "\n".join(lines).rstrip()


def storable(text: str) -> str:
    r"""Escape characters that UTF-8 (lone surrogates) or PostgreSQL (NUL) cannot store.

    >>> print(storable("a\x00b\ud800"))
    a\x00b\ud800
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


_OPEN_TOO_LONG: Final = frozenset({"25P03", "25P04", "57P05"})
"""SQLSTATEs of PostgreSQL for a session idle in a transaction, a transaction, or an idle session
that lasted longer than a setting allows."""

_OPEN_TOO_LONG_CLASSES: Final = frozenset(
    {"IdleInTransactionSessionTimeout", "TransactionTimeout", "IdleSessionTimeout"}
)
"""Classes of psycopg and psycopg2 for the same errors; the text of a failed task has only the
class."""

READ_BEFORE: Final = "The transaction was open too long; read and compute before it"


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of a PostgreSQL driver; None if the error has none."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


def was_open_too_long(error: BaseException | None) -> bool:
    """Return whether a server closed a connection because its transaction was open too long."""
    while error is not None:
        if sqlstate_of(error) in _OPEN_TOO_LONG:
            return True
        error = error.__cause__
    return False


FAILS_AS_A_WHOLE: Final = "The batch fails as a whole, and all of its parts pass"
"""Beginning of the message stored with a batch that succeeded only in parts."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Error of a batch, as text of bounded length that every database can store."""

    error_class: str
    message: str
    trace: str

    @classmethod
    def of(cls, error: "BaseException | ErrorReport") -> "ErrorReport":
        """Describe an exception and its causes; a report is returned unchanged.

        Class and message are from the root cause if Spark only wraps the cause. For a
        `NotProcessedError`, both are from the handler's exception.
        """
        if isinstance(error, ErrorReport):
            return error
        described = TracebackException.from_exception(error)
        kind = type(error)
        prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        error_class, message = prefix + kind.__qualname__, str(described)
        trace = "".join(described.format())
        if isinstance(error, NotProcessedError) and error.last is not None:
            of_handler, last_message = error.last
            return cls(of_handler, f"{last_message[: MAX_MESSAGE_LENGTH // 2]}\n{message}", trace)
        error_class, message = root_cause(error_class, message) or (error_class, message)
        package, _, name = error_class.rpartition(".")
        in_a_task = package.startswith("psycopg") and name in _OPEN_TOO_LONG_CLASSES
        if in_a_task or was_open_too_long(error):
            message = f"{READ_BEFORE}: {message}"
        return cls(error_class, message, trace)

    @property
    def line(self) -> str:
        """The error in short: its class, and the first line of its message."""
        first_line = self.message.strip().partition("\n")[0]
        return f"{self.error_class}: {first_line}" if first_line else self.error_class

    @property
    def is_of_whole(self) -> bool:
        """Whether the whole batch raised the error, and all of its parts passed."""
        return self.message.startswith(FAILS_AS_A_WHOLE)

    def __post_init__(self) -> None:
        object.__setattr__(self, "error_class", storable(self.error_class))
        message, trace = map(without_passwords, (storable(self.message), storable(self.trace)))
        object.__setattr__(self, "message", message[:MAX_MESSAGE_LENGTH])
        object.__setattr__(self, "trace", trace[-MAX_TRACE_LENGTH:])


_PASSWORD: Final = re.compile(
    r"""(://[^\s/:@'"]*:)[^\s/@'"]+(?=@)|(\bpassword['"]?\s*[=:]\s*['"]?)[^\s,;&'")]+""",
    re.IGNORECASE,
)


def without_passwords(text: str) -> str:
    """Replace passwords in the text of a handler's error by ``***``.

    >>> without_passwords("postgresql://app:hunter2@db refused password=hunter2, user=app")
    'postgresql://app:***@db refused password=***, user=app'
    """
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", text)


OWNER_GONE: Final = ErrorReport(
    "OwnerGone",
    "The process that ran this batch is gone: it ended, or stopped renewing its lease, before it "
    "reported the outcome.",
    "",
)
"""Error of an abandoned batch."""

NOT_RUN_AGAIN: Final = ErrorReport(
    "NotRunAgain",
    "The query was stopped while this batch ran, and has been started again without it, as with "
    "another checkpoint; a backfill runs it.",
    "",
)
"""Error of a batch that was interrupted by a stop and not run again."""


def query_stopped(error: BaseException) -> ErrorReport:
    """Return the report for a batch whose query was stopped while the batch ran.

    The trace is from the handler's error.
    """
    message = "The query was stopped while this batch ran; it runs again at the next start."
    return ErrorReport(QUERY_STOPPED, message, ErrorReport.of(error).trace)


def error_values(error: ErrorReport | None) -> dict[str, str | None]:
    """Return the error columns of ``batch``; None clears them."""
    if error is None:
        return dict.fromkeys(("error_class", "error_message", "error_trace"))
    return {
        "error_class": error.error_class,
        "error_message": error.message,
        "error_trace": error.trace,
    }
