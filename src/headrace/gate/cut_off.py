"""What a handler raises whose batch is cut off: its query is stopped, or it ends the program."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError

from headrace.errors import HandlerExitError

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
