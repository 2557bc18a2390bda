"""What a handler raises whose batch is cut off, for its query is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError

_INTERRUPTED: Final = "java.lang.InterruptedException"
_CUT_OFF: Final = (
    "The query is stopped; py4j.protocol.Py4JJavaError: An error occurred while calling its"
    f" handler: {_INTERRUPTED}"
)


@contextmanager
def cut_off_in_short() -> Iterator[None]:
    """Tell in few words that a batch was cut off because its query is stopped.

    Spark searches what a handler raises for these, by a pattern that overflows its stack on the
    many lines that Py4J makes of it.
    """
    try:
        yield
    except Py4JJavaError as error:
        if str(error.java_exception).startswith(_INTERRUPTED):
            raise InterruptedError(_CUT_OFF) from None
        raise
