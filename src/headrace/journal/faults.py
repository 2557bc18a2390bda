"""A system's error, told as what could not be done."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import JournalError


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise an ``OSError`` from within as a ``JournalError``.

    Args:
        what: The beginning of the sentence, up to what the reason follows.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = what[0].upper() + what[1:]
        raise JournalError(
            f"{what}: {reason}; see to that, then try again: nothing acknowledged is lost."
        ) from error
