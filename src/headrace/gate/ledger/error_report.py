"""The report of a batch's error as the ledger stores it: class, message and trace."""

import re
from dataclasses import dataclass
from traceback import TracebackException
from typing import Final, NamedTuple

from headrace.errors import READ, NotProcessedError

MAX_MESSAGE_LENGTH: Final = 4_000
"""Maximum stored length of an exception's message (characters); the end of a longer message is
cut."""

QUERY_STOPPED: Final = "QueryStopped"
"""Error class of a batch that was interrupted because its query was stopped."""

REJECTED: Final = "Rejected"
"""Error class of a record that the handler rejected."""

BAD_VALUE: Final = "BadValue"
"""Error class of a record that was rejected because its value could not be decoded."""

MAX_TRACE_LENGTH: Final = 16_000
"""Maximum stored length of an exception's trace (characters); the beginning of a longer trace is
cut, because the end has the cause."""


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
    r"""Extract the root cause from the text of an exception of PySpark or Py4J.

    The result is the Python worker's exception. For a text without a Python exception, it is the
    last of Java's causes. The result is None if the exception's class does not wrap other
    exceptions, or the text has no cause.

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
    """Join the first and the following lines of a message, up to the beginning of a trace."""
    lines = [first or ""]
    for line in following:
        if line.startswith(_MESSAGE_ENDS):
            break
        lines.append(line)
    return "\n".join(lines).rstrip()


def storable(text: str) -> str:
    r"""Escape lone surrogates, which UTF-8 cannot encode, and NUL, which PostgreSQL refuses.

    >>> print(storable("a\x00b\ud800"))
    a\x00b\ud800
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


_OPEN_TOO_LONG: Final = frozenset({"25P03", "25P04", "57P05"})
"""SQLSTATEs of PostgreSQL for a closed connection: the transaction was idle or open, or the session
was idle, for longer than a timeout of the server."""

_OPEN_TOO_LONG_CLASSES: Final = frozenset(
    {"IdleInTransactionSessionTimeout", "TransactionTimeout", "IdleSessionTimeout"}
)
"""Exception classes of psycopg and psycopg2 for the SQLSTATEs in `_OPEN_TOO_LONG`. The text of a
failed task contains only the class."""

READ_BEFORE: Final = "The transaction was open too long; read and compute before it"


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a PostgreSQL driver's exception; None for other exceptions."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


def was_open_too_long(error: BaseException | None) -> bool:
    """Return whether a server closed a connection because its transaction was open too long."""
    while error is not None:
        if sqlstate_of(error) in _OPEN_TOO_LONG:
            return True
        error = error.__cause__
    return False


FAILS_AS_A_WHOLE: Final = "The batch fails as a whole, but all of its parts pass"
"""Beginning of the stored message of a batch that failed when run as a whole, although all of its
parts succeeded."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Error of a batch or a record, as text of bounded length that every database can store."""

    error_class: str
    message: str
    trace: str

    @classmethod
    def of(cls, error: "BaseException | ErrorReport") -> "ErrorReport":
        """Return the report of an exception and its causes; return a report unchanged.

        If Spark's exception only wraps another exception, class and message are from the root
        cause. For a `NotProcessedError`, class and message are from the handler's exception.
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
        """The error in one line: its class, and the first line of its message."""
        first_line = self.message.strip().partition("\n")[0]
        return f"{self.error_class}: {first_line}" if first_line else self.error_class

    @property
    def is_of_whole(self) -> bool:
        """Whether the batch failed when it ran as a whole, and all of its parts succeeded."""
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
    """Replace the passwords in a text by ``***``.

    >>> without_passwords("postgresql://app:hunter2@db refused password=hunter2, user=app")
    'postgresql://app:***@db refused password=***, user=app'
    """
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", text)


OWNER_GONE: Final = ErrorReport(
    "OwnerGone",
    "The process that ran this batch ended, or stopped renewing its lease, before it reported the "
    "outcome of the batch.",
    "",
)
"""Error of a batch whose owner ended or lost its lease without reporting an outcome."""

NOT_RUN_AGAIN: Final = ErrorReport(
    "NotRunAgain",
    "The query was stopped while this batch ran, and the restarted query did not run the batch "
    "again, for example because it has another checkpoint; a backfill runs the batch.",
    "",
)
"""Error of a batch that was interrupted when its query was stopped, and that the restarted query
did not run again."""


def query_stopped(error: BaseException) -> ErrorReport:
    """Return the report for a batch whose query was stopped while the batch ran.

    The trace is from the handler's error.
    """
    message = "The query was stopped while this batch ran; the next start runs the batch again."
    return ErrorReport(QUERY_STOPPED, message, ErrorReport.of(error).trace)


def error_values(error: ErrorReport | None) -> dict[str, str | None]:
    """Return the values of ``batch``'s error columns; for None, values that clear the columns."""
    if error is None:
        return dict.fromkeys(("error_class", "error_message", "error_trace"))
    return {
        "error_class": error.error_class,
        "error_message": error.message,
        "error_trace": error.trace,
    }
