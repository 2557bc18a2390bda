"""One receiver under its tracker, whose tasks are the test's."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.services.waiting import wait_until

from headrace.backfill.schedule import Backoff
from headrace.tracker import lane as lane_module
from headrace.tracker.channel import Reporting
from headrace.tracker.lane import TrackedLane
from headrace.tracker.messages import Order, Report
from headrace.tracker.status import ReceiverStatus, State
from headrace.tracker.task import Outcome

HERE, THERE = object(), object()
"""Two connections."""


class Tasks:
    """Runs a task until the test says how it ends; knows who may report."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.expected: dict[str, Reporting] = {}
        self.cancelled = 0
        self._outcomes: queue.Queue[Outcome] = queue.Queue()

    def run(self, token: str) -> Outcome:
        self.tokens.append(token)
        return self._outcomes.get(timeout=60)

    def cancel(self) -> None:
        self.cancelled += 1
        self._outcomes.put(Outcome())

    def expect(self, token: str, reporting: Reporting) -> None:
        self.expected[token] = reporting

    def forget(self, token: str) -> None:
        del self.expected[token]

    def end(self, error: str | None = None, *, lasting: bool = False) -> None:
        """End the task that runs."""
        self._outcomes.put(Outcome(error, lasting))


class Tracked:
    """A lane that runs in a thread."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.now_s = 1_000.0
        self.lane = TrackedLane(3, "events", self.tasks, self.tasks, lambda: self.now_s)
        self.thread = threading.Thread(target=self.lane.run, daemon=True)

    @property
    def status(self) -> ReceiverStatus:
        return self.lane.status

    def wait_for(self, state: State) -> ReceiverStatus:
        wait_until(lambda: self.status.state is state)
        return self.status

    def wait_for_task(self, number: int) -> None:
        wait_until(lambda: len(self.tasks.tokens) == number)

    def report(
        self, connection: object = HERE, *, receiving: bool = True, address: str | None = None
    ) -> Order:
        token = self.tasks.tokens[-1]
        host = "one" if connection is HERE else "another"
        return self.tasks.expected[token].reported(
            connection, Report(token, host, receiving, address)
        )

    def receives(self, number: int = 1) -> None:
        """Have the task with this number receive."""
        self.wait_for_task(number)
        assert self.report() is Order.RECEIVE


@contextmanager
def running() -> Iterator[Tracked]:
    tracked = Tracked()
    tracked.thread.start()
    try:
        yield tracked
    finally:
        tracked.lane.stop()
        tracked.lane.finish(tracked.thread, -1)


@pytest.fixture
def tracked() -> Iterator[Tracked]:
    with running() as found:
        yield found


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_BACKOFF", Backoff(first_ms=1, most_ms=4))


def test_it_starts_receives_and_is_stopped(tracked: Tracked) -> None:
    assert tracked.status == ReceiverStatus(3, State.STARTING, None, None, 0, None)
    tracked.wait_for_task(1)
    assert tracked.report(receiving=False) is Order.RECEIVE
    assert tracked.status == ReceiverStatus(3, State.STARTING, "one", None, 0, None)
    assert tracked.report(address="tcp://one:7070") is Order.RECEIVE
    receiving = ReceiverStatus(3, State.RECEIVING, "one", "tcp://one:7070", 0, None)
    assert tracked.lane.wait_until_settled(60) == receiving
    tracked.lane.stop()
    assert tracked.report() is Order.STOP
    tracked.lane.left(HERE)
    tracked.tasks.end()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status == ReceiverStatus(3, State.STOPPED, None, None, 0, None)


def test_the_waits_are_one_second_doubled_to_thirty() -> None:
    waits_ms = [lane_module._BACKOFF.wait_ms(failures) for failures in range(1, 8)]
    assert waits_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


@pytest.mark.usefixtures("_quick")
def test_it_is_started_again_after_waits_that_grow_until_it_ran_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as tracked:
        for number in range(1, 6):
            tracked.receives(number)
            tracked.now_s += 59.9
            tracked.tasks.end(f"It broke {number}.")
        tracked.receives(6)
        tracked.now_s += 60
        tracked.tasks.end("It broke late.")
        tracked.receives(7)
        assert tracked.status == ReceiverStatus(
            3, State.RECEIVING, "one", None, 6, "It broke late."
        )
        assert len(set(tracked.tasks.tokens)) == 7
    again = [line for line in caplog.messages if "started again" in line]
    assert [line.split(" s: ")[0].split()[-1] for line in again] == [
        *("0.001", "0.002", "0.004", "0.004", "0.004"),
        "0.001",
    ]
    assert "The receiver of lane 3 of the journal events is started again in 0.001" in again[0]


def test_while_it_waits_it_says_why_and_a_stop_does_not_wait(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_BACKOFF", Backoff(first_ms=600_000, most_ms=600_000))
    tracked.receives()
    tracked.tasks.end("The lane has another writer.")
    waiting = ReceiverStatus(3, State.WAITING, None, None, 0, "The lane has another writer.")
    assert tracked.wait_for(State.WAITING) == waiting
    tracked.lane.stop()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status.state is State.STOPPED
    assert len(tracked.tasks.tokens) == 1


def test_what_would_go_wrong_again_is_not_tried_again(
    tracked: Tracked, caplog: pytest.LogCaptureFixture
) -> None:
    tracked.wait_for_task(1)
    tracked.tasks.end("The port is 70000.", lasting=True)
    tracked.thread.join(60)
    assert tracked.status == ReceiverStatus(3, State.FAILED, None, None, 0, "The port is 70000.")
    assert [(line.levelno, line.message) for line in caplog.records] == [
        (
            logging.ERROR,
            "The receiver of lane 3 of the journal events is not started again: The port is 70000.",
        )
    ]


def test_a_receiver_to_which_nothing_more_comes_is_stopped(tracked: Tracked) -> None:
    tracked.receives()
    tracked.lane.left(HERE)
    tracked.tasks.end()
    tracked.thread.join(60)
    assert tracked.status == ReceiverStatus(3, State.STOPPED, None, None, 0, None)


def test_a_second_copy_of_the_task_waits_until_the_first_is_lost(tracked: Tracked) -> None:
    tracked.receives()
    assert tracked.report(THERE, receiving=False) is Order.WAIT
    assert tracked.report(HERE) is Order.RECEIVE
    assert tracked.status.host == "one"
    tracked.lane.left(HERE)
    assert tracked.status == ReceiverStatus(3, State.STARTING, None, None, 0, None)
    assert tracked.report(THERE, receiving=False) is Order.RECEIVE
    assert tracked.report(THERE) is Order.RECEIVE
    lost = "Its task on one was lost, and Spark has run it again."
    assert tracked.status == ReceiverStatus(3, State.RECEIVING, "another", None, 1, lost)
    tracked.lane.left(HERE)
    assert tracked.status.state is State.RECEIVING


def test_a_second_copy_is_not_stopped_before_the_first_has_ended(tracked: Tracked) -> None:
    tracked.receives()
    tracked.lane.stop()
    assert tracked.report(THERE, receiving=False) is Order.WAIT
    assert tracked.report(HERE) is Order.STOP
    tracked.lane.left(HERE)
    assert tracked.report(THERE, receiving=False) is Order.STOP


def test_a_task_of_a_job_that_is_over_has_no_say_any_more(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_BACKOFF", Backoff(first_ms=1, most_ms=1))
    tracked.receives(1)
    tracked.tasks.end("Its executor was lost.")
    tracked.wait_for_task(2)
    late = Report(tracked.tasks.tokens[0], "one", receiving=True)
    assert tracked.lane.reported(HERE, late) is Order.STOP
    assert tracked.report(THERE) is Order.RECEIVE
    tracked.lane.left(HERE)
    assert tracked.status.host == "another"
    assert list(tracked.tasks.expected) == tracked.tasks.tokens[1:]


def test_a_task_that_has_not_begun_is_killed_at_once(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_CANCEL_S", 60.0)  # once, however slowly it ends
    tracked.wait_for_task(1)
    tracked.lane.stop()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.tasks.cancelled == 1
    assert tracked.status == ReceiverStatus(3, State.STOPPED, None, None, 0, None)


def test_a_task_that_does_not_end_is_killed_when_its_time_is_over(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked.receives()
    tracked.lane.stop()
    ended: list[bool] = []
    deadline_s = tracked.now_s + 60
    finishing = in_thread(lambda: ended.append(tracked.lane.finish(tracked.thread, deadline_s)))
    assert tracked.report() is Order.STOP
    assert tracked.tasks.cancelled == 0
    monkeypatch.setattr(lane_module, "_CANCEL_S", 60.0)  # once, however slowly it ends
    tracked.now_s = deadline_s
    finishing.join(60)
    assert ended == [False]
    assert tracked.tasks.cancelled == 1


def test_what_goes_wrong_while_it_is_being_stopped_is_told(
    tracked: Tracked, caplog: pytest.LogCaptureFixture
) -> None:
    tracked.receives()
    tracked.lane.stop()
    tracked.tasks.end("The last block could not be stored.")
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status.state is State.STOPPED
    assert tracked.status.last_error == "The last block could not be stored."
    assert "was stopped, and has ended so: The last block" in caplog.text


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
