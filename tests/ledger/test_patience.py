import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.planners import ManualTime

from headrace.core.stop import cancel_when
from headrace.errors import LedgerError
from headrace.ledger.patience import (
    OutageError,
    Patience,
    next_wait_s,
)

seconds = st.floats(0, 10_000)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.ledger")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def away_until(time: ManualTime, back_s: float) -> Callable[[], float]:
    """What cannot be reached until then, and answers when it is asked after that."""

    def attempt() -> float:
        if time.now_s < back_s:
            raise OutageError("The ledger L cannot be reached: refused.")
        return time.now_s

    return attempt


@given(st.integers(1, 10_000), seconds, st.floats(0.001, 10_000))
def test_a_wait_is_within_its_bounds_and_ends_with_patience(
    tries: int, waited_s: float, patience_s: float
) -> None:
    wait_s = next_wait_s(tries, waited_s, patience_s)
    if wait_s is None:
        assert waited_s >= patience_s
    else:
        assert 0 < wait_s <= LONGEST_WAIT_S
        assert wait_s >= FIRST_WAIT_S or wait_s == patience_s - waited_s


def test_waits_grow_from_the_shortest_to_the_longest(time: ManualTime) -> None:
    tried_s = [0.0]
    time.on_sleep = lambda: tried_s.append(time.now_s)
    Patience("L", 600).wait_out(away_until(time, 60))
    waits_s = [round(later - tried, 6) for tried, later in pairwise(tried_s)]
    assert waits_s[0] == FIRST_WAIT_S
    assert waits_s[-1] == LONGEST_WAIT_S
    assert all(later == min(2 * wait, LONGEST_WAIT_S) for wait, later in pairwise(waits_s))


def test_what_comes_back_is_noticed_within_the_longest_wait(time: ManualTime) -> None:
    assert 60 <= Patience("L", 600).wait_out(away_until(time, 60)) <= 60 + LONGEST_WAIT_S


def test_waiting_is_logged_when_it_begins_and_when_it_is_over(
    time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    Patience("L", 600).wait_out(away_until(time, 3))
    assert lines(caplog) == [
        "WARNING The ledger L cannot be reached: refused. It is tried again for up to 600 s.",
        "INFO The ledger L is back after 3.1 s.",
    ]


def test_the_next_outage_is_logged_too(time: ManualTime, caplog: pytest.LogCaptureFixture) -> None:
    waiting = Patience("L", 600)
    for back_s in (3, 20):
        waiting.wait_out(away_until(time, back_s))
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING", "INFO"] * 2


def test_what_answers_at_once_is_not_logged(
    time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    assert Patience("L", 600).wait_out(lambda: "answer") == "answer"
    assert (time.now_s, lines(caplog)) == (0, [])


@pytest.mark.parametrize("patience_s", [0.25, 10])
def test_after_patience_the_last_error_is_raised_with_the_time_that_was_waited(
    time: ManualTime, patience_s: float
) -> None:
    with pytest.raises(LedgerError) as caught:
        Patience("L", patience_s).wait_out(away_until(time, 1_000))
    assert type(caught.value) is LedgerError
    assert str(caught.value) == (
        f"The ledger L cannot be reached: refused; it was waited for {patience_s:.0f} s."
    )
    assert time.now_s == pytest.approx(patience_s)


@pytest.mark.parametrize("error", [LedgerError("no"), ValueError("no"), KeyboardInterrupt()])
def test_any_other_error_passes_at_once(time: ManualTime, error: BaseException) -> None:
    def attempt() -> None:
        raise error if time.now_s else OutageError("away.")

    with pytest.raises(type(error)) as caught:
        Patience("L", 600).wait_out(attempt)
    assert caught.value is error
    assert time.now_s == FIRST_WAIT_S


def test_an_interrupted_wait_ends_at_once_and_the_next_outage_is_logged(
    time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    waiting = Patience("L", 600)
    time.on_sleep = interrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            waiting.wait_out(away_until(time, 1_000))
    assert time.now_s == 2 * FIRST_WAIT_S
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING"] * 2


def test_waiting_is_cancelled_by_what_it_is_for_and_the_error_says_so(time: ManualTime) -> None:
    with (
        pytest.raises(LedgerError) as caught,
        cancel_when(lambda: time.now_s >= 30, "the query was stopped"),
    ):
        Patience("L", 600).wait_out(away_until(time, 1_000))
    assert type(caught.value) is LedgerError
    told = str(caught.value)
    assert told.startswith("The ledger L cannot be reached: refused; it was waited for 3")
    assert told.endswith(" s, until the query was stopped.")
    assert 30 <= time.now_s <= 30 + LONGEST_WAIT_S


def test_one_try_is_made_however_late_it_is(time: ManualTime) -> None:
    with cancel_when(lambda: True, "it ended"):
        assert Patience("L", 600).wait_out(lambda: "answer") == "answer"
        with pytest.raises(LedgerError, match="it was waited for 0 s, until it ended"):
            Patience("L", 600).wait_out(away_until(time, 1))
    assert time.now_s == 0
    assert Patience("L", 600).wait_out(away_until(time, 1)) >= 1


def test_the_waiting_of_another_thread_goes_on(time: ManualTime) -> None:
    waiting = Patience("L", 600)
    with ThreadPoolExecutor(1) as pool, cancel_when(lambda: True, "it ended"):
        assert pool.submit(waiting.wait_out, away_until(time, 60)).result() >= 60


def test_threads_that_wait_together_log_once(caplog: pytest.LogCaptureFixture) -> None:
    waiting, together, is_back = Patience("L", 600), threading.Barrier(5), threading.Event()

    def call() -> str:
        tried = False

        def attempt() -> str:
            nonlocal tried
            if not tried:
                tried = True
                raise OutageError("The ledger L cannot be reached: refused.")
            if not is_back.is_set():
                together.wait()
                is_back.wait()
            return "answer"

        return waiting.wait_out(attempt)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call) for _ in range(4)]
        together.wait()
        is_back.set()
        assert [answer.result() for answer in answers] == ["answer"] * 4
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING", "INFO"]
