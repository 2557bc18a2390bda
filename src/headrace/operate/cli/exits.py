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
    """Exit status of a command. ``docs/commands.md`` has the same table."""

    DONE = 0
    """The command succeeded; nothing is open."""
    ERROR = 1
    """The command failed, or the machine has a problem; a sentence on standard error says which."""
    USAGE = 2
    """The arguments of the command are invalid."""
    OPEN = 3
    """The command succeeded, and something is not done yet."""
    BROKEN = 4
    """Data is missing, duplicated or damaged."""
    HUNG_UP = 129
    """The terminal was closed (SIGHUP)."""
    INTERRUPTED = 130
    """Ctrl-C."""
    TERMINATED = 143
    """SIGTERM, for a command that SIGTERM interrupts."""


_AGAIN_S: Final = 0.02
"""Time until a lost signal is raised again (s). Most finalizers end sooner; in a longer one the
signal is lost, and raised, once more."""

ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals for which `leave` is a handler."""

_OF_CTRL_C: Final = (
    "KeyboardInterrupt while sending command",
    "Exception occurred while shutting down conn",
)
"""Beginnings of log lines with stack traces that Py4J writes on Ctrl-C."""


def leave(number: int, _frame: object) -> NoReturn:
    """Handle a signal by SystemExit, so that open resources are closed."""
    sys.exit(128 + number)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise a signal again if its exception was lost in a finalizer, until it has an effect.

    Python ignores exceptions in finalizers. Use in the main thread only; the context uses SIGALRM
    and its timer.
    """
    lost: int | None = None

    def keep(unraisable: "sys.UnraisableHookArgs") -> None:
        nonlocal lost
        number = _signal_of(unraisable.exc_value)
        if number is None:
            before(unraisable)
        else:
            lost = number
            # A timer, because an exception raised in this hook is ignored too.
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
        return next((number for number in ENDS if raised.code == 128 + number), None)
    return None


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the first Ctrl-C or SIGTERM; raise KeyboardInterrupt on a later Ctrl-C.

    Use in the main thread only. Replaces Spark's own handler of Ctrl-C, which cancels the jobs.
    """
    asked = False

    def ask(number: int, _frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked = True
            # Stop in another thread: the interrupted one may hold a lock that `stop` needs.
            threading.Thread(target=stop, daemon=True).start()

    def is_logged(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_OF_CTRL_C)

    loggers = [logging.getLogger(), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(is_logged)
    before = {
        received: signal.signal(received, ask) for received in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for received, handler in before.items():
            signal.signal(received, handler)
        for logger in loggers:
            logger.removeFilter(is_logged)
