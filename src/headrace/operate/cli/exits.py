"""The exit statuses of all commands, and the signals that end them."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, NoReturn


class ExitStatus(IntEnum):
    """Exit status of a command. ``docs/commands.md`` has the same as a table."""

    DONE = 0
    """It did what was asked for; nothing is open."""
    ERROR = 1
    """It could not do it, or something is wrong with the machine; a sentence says what."""
    USAGE = 2
    """The command cannot be understood."""
    OPEN = 3
    """It did what was asked for, and something is not done yet."""
    BROKEN = 4
    """Something is missing, there twice, or damaged."""
    HUNG_UP = 129
    """Its terminal has gone (SIGHUP)."""
    INTERRUPTED = 130
    """Ctrl-C."""
    TERMINATED = 143
    """SIGTERM, of a command that does not end well by it."""


_AGAIN_S: Final = 0.02
"""When most finalizers are over; where one is not, the signal is lost, and comes once more."""

ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals on which a command may `leave`."""

_OF_CTRL_C: Final = (
    "KeyboardInterrupt while sending command",
    "Exception occurred while shutting down conn",
)
"""Py4J logs Ctrl-C, and that Java had it too, with stack traces before it passes it on."""


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
            # A timer, for an exception raised in here is ignored, too.
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
    if isinstance(raised, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(raised, SystemExit):
        return next((each for each in ENDS if raised.code == 128 + each), None)
    return None


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM, call ``stop``; Ctrl-C after that is a KeyboardInterrupt.

    In the main thread. Spark's own handling of Ctrl-C, which aborts what runs, is put aside.
    """
    asked = False

    def ask(number: int, _frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked = True
            # Stop in a thread, for this one may hold a lock that is needed.
            threading.Thread(target=stop, daemon=True).start()

    def is_logged(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_OF_CTRL_C)

    loggers = [logging.getLogger(), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(is_logged)
    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for logger in loggers:
            logger.removeFilter(is_logged)
