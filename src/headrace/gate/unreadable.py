"""What a handler raises because its source cannot be read: that says nothing of the records."""

import re
from collections.abc import Iterator
from typing import Final, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headrace import errors
from headrace.errors import READ, CorruptionError, DataLossError, HeadraceError, SourceError

_KINDS: Final = {kind.__name__: kind for kind in (DataLossError, CorruptionError)}

# Spark has a task's exception as text: the traceback, as the Python worker wrote it.
_IN_A_TASK: Final = re.compile(
    rf"^{re.escape(HeadraceError.__module__)}\.({'|'.join(_KINDS)}): (.+)$", re.MULTILINE
)

_WHILE_READING: Final = re.compile(
    rf"^(?:{re.escape(HeadraceError.__module__)}\.(\w+): )?(.+)\n{re.escape(READ)}$", re.MULTILINE
)


def unreadable(error: BaseException) -> HeadraceError | None:
    """Why the source could not be read, in one sentence, if that is what was raised.

    Only what Spark raises is searched, and what led to it: what a handler says by itself may have a
    record's text in it.

    Returns:
        A ``DataLossError`` or ``CorruptionError`` as the task raised it; None for anything else.
    """
    for each in _with_causes(error):
        if isinstance(each, DataLossError | CorruptionError):
            return each
        if isinstance(each, Py4JJavaError | PySparkException):
            found = _IN_A_TASK.search(_text(each))
            if found is not None:
                return _KINDS[found[1]](found[2])
    return None


def unreachable_source(error: BaseException) -> HeadraceError | None:
    """Why the source could not be read this time, in one sentence, if that is what was raised.

    The brokers or the journal's store are away, or refuse: the same read may succeed later. Only
    what Spark raises is searched, for what a sink raises in a task, or a handler, is of the same
    classes.

    Returns:
        What the task raised, of its class; a ``SourceError`` where that is not Headrace's own. None
        for anything else.
    """
    for each in _with_causes(error):
        if isinstance(each, Py4JJavaError | PySparkException):
            found = _WHILE_READING.search(_text(each))
            if found is not None:
                kind = getattr(errors, found[1] or "", SourceError)
                return cast(HeadraceError, kind(found[2]))
    return None


def _text(error: BaseException) -> str:
    """What Spark says, which it may ask its JVM for; nothing where that is gone by now."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (whatever a JVM that ends makes of it)
        return ""


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that led to it."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        yield now
        seen.add(id(now))
        now = now.__cause__ or now.__context__
