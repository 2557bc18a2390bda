"""Ctrl-C and the other ways to be ended: nothing that was started may stay behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.cli.interrupts import ENDS, leave

SIGNALS: Final = (signal.SIGINT, *ENDS)


def leave_in_good_order() -> None:
    """Have what is open closed, by an exception, whichever signal ends this process."""
    for number in ENDS:
        signal.signal(number, leave)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let signals wait until the end of what could not be closed if it were interrupted."""
    held: list[int] = []
    before = {each: signal.signal(each, lambda number, _: held.append(number)) for each in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def ignore_signals() -> None:
    """Finish closing, however often the user presses Ctrl-C."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
