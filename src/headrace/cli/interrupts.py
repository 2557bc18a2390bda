"""Ctrl-C that is never lost.

What a signal's handler raises is told on stderr and ignored by Python where the signal comes while
a finalizer runs, or what a weak reference calls; and everything would go on as if nobody had
pressed Ctrl-C.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_AGAIN_S: Final = 0.02
"""When most finalizers are over; in one that is not the signal is lost, and comes once more."""

ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals on which a command may `leave`."""


def leave(number: int, _frame: object) -> NoReturn:
    """Have what is open closed, by an exception; a handler of such a signal."""
    sys.exit(128 + number)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Send this process a signal again that was lost in a finalizer, until it has an effect.

    For the main thread. SIGALRM and its timer are in use within.
    """
    lost: int | None = None

    def keep(unraisable: "sys.UnraisableHookArgs") -> None:
        nonlocal lost
        number = _signal_of(unraisable.exc_value)
        if number is None:
            before(unraisable)
        else:
            lost = number
            # Not at once: what is raised in here is ignored, too.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def send_again(_number: int, _frame: object) -> None:
        if lost is not None:
            signal.raise_signal(lost)

    before, sys.unraisablehook = sys.unraisablehook, keep
    alarm_before = signal.signal(signal.SIGALRM, send_again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm_before)
        sys.unraisablehook = before


def _signal_of(raised: BaseException | None) -> int | None:
    """The signal whose handler has raised this; None if none has."""
    if isinstance(raised, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(raised, SystemExit):
        return next((each for each in ENDS if raised.code == 128 + each), None)
    return None
