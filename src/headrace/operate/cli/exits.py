"""Exit statuses of all commands, and handlers of the signals that end commands."""

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
    """The command succeeded, and no work is left undone."""
    ERROR = 1
    """The command failed, or ``headrace doctor`` found a problem."""
    USAGE = 2
    """The arguments of the command are invalid."""
    OPEN = 3
    """The command succeeded, but a batch, a failure, a loss or a drain is still open."""
    BROKEN = 4
    """Data is missing, duplicated or damaged."""
    HUNG_UP = 129
    """The terminal was closed (SIGHUP)."""
    INTERRUPTED = 130
    """Ctrl-C (SIGINT) interrupted the command."""
    TERMINATED = 143
    """SIGTERM interrupted a command before its end. A command without an end of its own, such as a
    server, exits with 0 instead."""


_AGAIN_S: Final = 0.02
"""A signal that was lost in a finalizer is raised again after this time (s). Most finalizers end
sooner. If a finalizer takes longer, the signal is lost again, and is raised once more."""

ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals that `leave` handles, so that they end a command in good order."""

_OF_CTRL_C: Final = (
    "KeyboardInterrupt while sending command",
    "Exception occurred while shutting down conn",
)
"""Beginnings of the messages that Py4J logs with a stack trace on Ctrl-C."""


def leave(number: int, _frame: object) -> NoReturn:
    """Raise SystemExit for the signal ``number``, so that open resources are closed."""
    sys.exit(128 + number)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise a signal again until it has an effect, if its exception was lost in a finalizer.

    Python ignores exceptions in finalizers, so a signal during a finalizer would have no effect.
    Use this context in the main thread only; it uses SIGALRM and the interval timer ITIMER_REAL.
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

    ``stop`` runs in a thread of its own. Use this context in the main thread only. It replaces
    Spark's handler of Ctrl-C, which would cancel the running jobs.
    """
    asked = False

    def ask(number: int, _frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked = True
            # Stop in another thread: the interrupted thread may hold a lock that `stop` needs.
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
