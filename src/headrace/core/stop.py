"""Cancellation: what ends a thread's waiting early, such as the stop of its query."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class Cancellation(NamedTuple):
    """What ends the waiting of a thread before its timeout does."""

    is_requested: Callable[[], bool]
    reason: str


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("_CURRENT", default=None)


@contextmanager
def cancel_when(is_requested: Callable[[], bool], reason: str) -> Iterator[None]:
    """Within, this thread waits for a ledger only until ``is_requested`` returns True.

    It is asked between two tries, any number of times, and is to return soon: the error is then
    the one of a timeout, with this reason, such as ``the query was stopped``. One try is made in
    any case, and one may be going on.
    """
    before = _CURRENT.set(Cancellation(is_requested, reason))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def cancellation() -> Cancellation | None:
    """What cancels this thread's waiting; None where nothing does."""
    return _CURRENT.get()
