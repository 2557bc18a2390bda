"""Ctrl-C while Python runs what it ignores the exceptions of."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.services.waiting import wait_until

from headrace.operate.cli.exits import interrupts_kept, leave, stopped_by_signals


class Finalized:
    """Does something when it is deleted."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __del__(self) -> None:
        self._do()


@contextmanager
def handled(number: signal.Signals, handler: Callable[[int, object], object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def never() -> None:
    wait_until(lambda: False)


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, leave, SystemExit),
        (signal.SIGHUP, leave, SystemExit),
    ],
)
def test_a_signal_that_falls_into_finalizers_comes_again(
    number: signal.Signals,
    handler: Callable[[int, object], object],
    raised: type[BaseException],
) -> None:
    with handled(number, handler), pytest.raises(raised), interrupts_kept():
        Finalized(lambda: signal.raise_signal(number))
        Finalized(never)  # the second time it comes here, and ends this
        never()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), SystemExit(None)])
def test_what_no_signal_has_raised_is_told_as_before(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: told.append(each.exc_value))
    hook = sys.unraisablehook
    with interrupts_kept():
        Finalized(fail)
    assert told == [error]
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_an_end_and_ctrl_c_after_that_interrupts(
    first: signal.Signals,
) -> None:
    calls: list[bool] = []
    asked = threading.Event()

    def stop() -> None:
        calls.append(True)
        asked.set()

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with stopped_by_signals(stop):
        signal.raise_signal(first)
        assert asked.wait(60)
        signal.raise_signal(signal.SIGTERM)  # it was asked for already
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert calls == [True]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
