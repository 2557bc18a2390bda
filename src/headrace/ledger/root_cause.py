"""Which exception is at the root of what Spark raised, from the text of it."""

import re
from typing import Final, NamedTuple

from headrace.errors import READ

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
    r"""What an exception that PySpark raised was raised for, in a worker's Python or in Java.

    Args:
        error_class: Its class, with the module.
        text: Its text, in which Spark puts the traces.

    Returns:
        The last exception of a Python worker; or else the last of Java's causes. None where the
        exception is not one of those that only wrap others, or says of no other.

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
    return RootCause(found[1], _message(found[2], lines[raised + 1 :]))


def _of_java(text: str) -> RootCause | None:
    causes = list(_JAVA.finditer(text))
    if not causes:
        return None
    found = causes[-1]
    return RootCause(found[1], _message(found[2], text[found.end() + 1 :].splitlines()))


def _message(first: str | None, following: list[str]) -> str:
    """A message, which may have several lines, up to the trace behind it."""
    lines = [first or ""]
    for line in following:
        if line.startswith(_MESSAGE_ENDS):
            break
        lines.append(line)
    return "\n".join(lines).rstrip()
