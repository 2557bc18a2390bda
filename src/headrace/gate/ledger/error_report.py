"""Report of an error in the ledger: its class, its message, its trace and its root cause."""

import re
from dataclasses import dataclass
from traceback import TracebackException
from typing import Final, NamedTuple

from headrace.errors import READ, NotProcessedError

MAX_MESSAGE_LENGTH: Final = 4_000
"""Characters of an exception's message that are kept, from its beginning."""

QUERY_STOPPED: Final = "QueryStopped"
"""The class of the error of a batch whose query was stopped on purpose while it ran."""

REJECTED: Final = "Rejected"
"""The class of the error of a record that the handler rejected."""

BAD_VALUE: Final = "BadValue"
"""Class of the error of a record that was rejected because its value could not be decoded."""

MAX_TRACE_LENGTH: Final = 16_000
"""Characters of an exception's trace that are kept, up to its end, where the cause stands."""


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
    r"""The last exception of a Python worker behind one of PySpark's, or the last of Java's causes.

    None where the exception is not one of those that only wrap others, or says of no other.

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
    found = _PYTHON.fullmatch(lines[raised])
    if found is None:
        return None
    return RootCause(found[1], _message_up_to_trace(found[2], lines[raised + 1 :]))


def _of_java(text: str) -> RootCause | None:
    causes = list(_JAVA.finditer(text))
    if not causes:
        return None
    found = causes[-1]
    return RootCause(found[1], _message_up_to_trace(found[2], text[found.end() + 1 :].splitlines()))


def _message_up_to_trace(first: str | None, following: list[str]) -> str:
    """A message, which may have several lines, up to the trace behind it."""
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
"""SQLSTATEs of PostgreSQL: idle in a transaction, a transaction, or idle without one, each for
longer than a setting allows."""

_OPEN_TOO_LONG_CLASSES: Final = frozenset(
    {"IdleInTransactionSessionTimeout", "TransactionTimeout", "IdleSessionTimeout"}
)
"""The same by the classes of psycopg and psycopg2, which are all that a task leaves."""

READ_BEFORE: Final = "The transaction was open too long; read and compute before it"


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of a driver of PostgreSQL; None where it has none."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


def was_open_too_long(error: BaseException | None) -> bool:
    """Whether a server has ended a connection because its transaction was open for too long."""
    while error is not None:
        if sqlstate_of(error) in _OPEN_TOO_LONG:
            return True
        error = error.__cause__
    return False


FAILS_AS_A_WHOLE: Final = "The batch fails as a whole, and all of its parts pass"
"""The beginning of the message that is kept with a batch that succeeded in parts alone."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Why a batch failed, as text of bounded length that every database can store."""

    error_class: str
    message: str
    trace: str

    @classmethod
    def of(cls, error: "BaseException | ErrorReport") -> "ErrorReport":
        """Describe an exception, with those that caused it; a report stays as it is.

        Class and message are those of the root cause if Spark only wraps it, and of the handler's
        exception, which is its cause, if Headrace says that nothing passes.
        """
        if isinstance(error, ErrorReport):
            return error
        described = TracebackException.from_exception(error)
        kind = type(error)
        prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        error_class, message = prefix + kind.__qualname__, str(described)
        trace = "".join(described.format())
        if isinstance(error, NotProcessedError) and error.last is not None:
            of_handler, said = error.last
            return cls(of_handler, f"{said[: MAX_MESSAGE_LENGTH // 2]}\n{message}", trace)
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
        """Whether it was raised by the whole of a batch whose parts have all passed."""
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
    """Return a handler's error with ``***`` for what reads as a password.

    >>> without_passwords("postgresql://app:hunter2@db refused password=hunter2, user=app")
    'postgresql://app:***@db refused password=***, user=app'
    """
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


OWNER_GONE: Final = ErrorReport(
    "OwnerGone",
    "The process that ran this batch is gone: it ended, or stopped renewing its lease, before it "
    "reported the outcome.",
    "",
)
"""Why a batch failed that was abandoned."""

NOT_RUN_AGAIN: Final = ErrorReport(
    "NotRunAgain",
    "The query was stopped while this batch ran, and has been started again without it, as with "
    "another checkpoint; a backfill runs it.",
    "",
)
"""Why a batch failed that was interrupted by a stop and not run again."""


def query_stopped(error: BaseException) -> ErrorReport:
    """Why a batch is not done whose query was stopped while it ran.

    Args:
        error: The handler's error; its trace is kept.
    """
    message = "The query was stopped while this batch ran; it runs again at the next start."
    return ErrorReport(QUERY_STOPPED, message, ErrorReport.of(error).trace)


def error_values(error: ErrorReport | None) -> dict[str, str | None]:
    """Return the columns of ``batch`` that say why a batch failed; None clears them."""
    if error is None:
        return dict.fromkeys(("error_class", "error_message", "error_trace"))
    return {
        "error_class": error.error_class,
        "error_message": error.message,
        "error_trace": error.trace,
    }
