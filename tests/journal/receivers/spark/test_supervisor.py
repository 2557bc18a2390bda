"""One receiver under its supervisor, whose tasks are the test's."""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.services.waiting import wait_until

from headrace.core.backoff import Backoff
from headrace.journal.receivers.spark import HostedState, ReceiverStatus
from headrace.journal.receivers.spark.receiver_task import TaskOutcome
from headrace.journal.receivers.spark.reporting import Order, Report, ReportServer
from headrace.journal.receivers.spark.supervisor import BACKOFF, LaneSupervisor

HERE, THERE = object(), object()
"""Two connections."""


QUICK = Backoff(first_ms=1, most_ms=4)


class Tasks:
    """Runs a task until the test says how it ends."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.cancelled = 0
        self._outcomes: queue.Queue[TaskOutcome] = queue.Queue()

    def run(self, token: str) -> TaskOutcome:
        self.tokens.append(token)
        return self._outcomes.get(timeout=60)

    def cancel(self) -> None:
        self.cancelled += 1
        self._outcomes.put(TaskOutcome())

    def end(self, error: str | None = None, *, is_permanent: bool = False) -> None:
        """End the task that runs."""
        self._outcomes.put(TaskOutcome(error, is_permanent))


class Tracked:
    """A lane that runs in a thread."""

    def __init__(self, server: ReportServer, backoff: Backoff) -> None:
        self.tasks = Tasks()
        self.now_s = 1_000.0
        self.lane = LaneSupervisor(
            3,
            "events",
            self.tasks.run,
            self.tasks.cancel,
            server,
            now_s=lambda: self.now_s,
            backoff=backoff,
        )
        self.thread = threading.Thread(target=self.lane.run, daemon=True)

    @property
    def status(self) -> ReceiverStatus:
        return self.lane.status

    def wait_for(self, state: HostedState) -> ReceiverStatus:
        wait_until(lambda: self.status.state is state)
        return self.status

    def wait_for_task(self, number: int) -> None:
        wait_until(lambda: len(self.tasks.tokens) == number)

    def report(
        self, connection: object = HERE, *, receiving: bool = True, address: str | None = None
    ) -> Order:
        host = "one" if connection is HERE else "another"
        report = Report(self.tasks.tokens[-1], host, receiving, address)
        return self.lane.on_report(connection, report)

    def receives(self, number: int = 1) -> None:
        """Have the task with this number receive."""
        self.wait_for_task(number)
        assert self.report() is Order.RECEIVE


@pytest.fixture
def tracked(request: pytest.FixtureRequest, server: ReportServer) -> Iterator[Tracked]:
    made = Tracked(server, getattr(request, "param", BACKOFF))
    made.thread.start()
    yield made
    made.lane.stop()
    made.lane.finish(made.thread, -1)


quickly = pytest.mark.parametrize("tracked", [QUICK], indirect=True)


def test_it_starts_receives_and_is_stopped(tracked: Tracked) -> None:
    assert tracked.status == ReceiverStatus(3, HostedState.STARTING, None, None, 0, None)
    tracked.wait_for_task(1)
    assert tracked.report(receiving=False) is Order.RECEIVE
    assert tracked.status == ReceiverStatus(3, HostedState.STARTING, "one", None, 0, None)
    assert tracked.report(address="tcp://one:7070") is Order.RECEIVE
    receiving = ReceiverStatus(3, HostedState.RECEIVING, "one", "tcp://one:7070", 0, None)
    assert tracked.lane.wait_until_settled(60) == receiving
    tracked.lane.stop()
    assert tracked.report() is Order.STOP
    tracked.lane.on_disconnect(HERE)
    tracked.tasks.end()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status == ReceiverStatus(3, HostedState.STOPPED, None, None, 0, None)


def test_the_waits_are_one_second_doubled_to_thirty() -> None:
    waits_ms = [BACKOFF.wait_ms(failures) for failures in range(1, 8)]
    assert waits_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


@quickly
def test_it_is_restarted_after_waits_that_grow_until_it_ran_well(
    tracked: Tracked, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 6):
        tracked.receives(number)
        tracked.now_s += 59.9
        tracked.tasks.end(f"It broke {number}.")
    tracked.receives(6)
    tracked.now_s += 60
    tracked.tasks.end("It broke late.")
    tracked.receives(7)
    late = "It broke late."
    assert tracked.status == ReceiverStatus(3, HostedState.RECEIVING, "one", None, 6, late)
    assert len(set(tracked.tasks.tokens)) == 7
    again = [line for line in caplog.messages if "is restarted" in line]
    assert [line.split(" s: ")[0].split()[-1] for line in again] == [
        *("0.001", "0.002", "0.004", "0.004", "0.004"),
        "0.001",
    ]
    assert "The receiver of lane 3 of the journal events is restarted in 0.001" in again[0]


@pytest.mark.parametrize("tracked", [Backoff(first_ms=600_000, most_ms=600_000)], indirect=True)
def test_while_it_waits_it_says_why_and_a_stop_does_not_wait(tracked: Tracked) -> None:
    tracked.receives()
    tracked.tasks.end("The lane has another writer.")
    waiting = ReceiverStatus(3, HostedState.WAITING, None, None, 0, "The lane has another writer.")
    assert tracked.wait_for(HostedState.WAITING) == waiting
    tracked.lane.stop()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status.state is HostedState.STOPPED
    assert len(tracked.tasks.tokens) == 1


def test_what_would_go_wrong_again_is_not_tried_again(
    tracked: Tracked, caplog: pytest.LogCaptureFixture
) -> None:
    tracked.wait_for_task(1)
    tracked.tasks.end("The port is 70000.", is_permanent=True)
    tracked.thread.join(60)
    assert tracked.status == ReceiverStatus(
        3, HostedState.FAILED, None, None, 0, "The port is 70000."
    )
    assert [(line.levelno, line.message) for line in caplog.records] == [
        (
            logging.ERROR,
            "The receiver of lane 3 of the journal events is not restarted: The port is 70000.",
        )
    ]


def test_a_receiver_to_which_nothing_more_comes_is_stopped(tracked: Tracked) -> None:
    tracked.receives()
    tracked.lane.on_disconnect(HERE)
    tracked.tasks.end()
    tracked.thread.join(60)
    assert tracked.status == ReceiverStatus(3, HostedState.STOPPED, None, None, 0, None)


def test_a_second_copy_of_the_task_waits_until_the_first_is_lost(tracked: Tracked) -> None:
    tracked.receives()
    assert tracked.report(THERE, receiving=False) is Order.WAIT
    assert tracked.report(HERE) is Order.RECEIVE
    assert tracked.status.host == "one"
    tracked.lane.on_disconnect(HERE)
    assert tracked.status == ReceiverStatus(3, HostedState.STARTING, None, None, 0, None)
    assert tracked.report(THERE, receiving=False) is Order.RECEIVE
    assert tracked.report(THERE) is Order.RECEIVE
    lost = "The task on one was lost, and Spark has run it again."
    assert tracked.status == ReceiverStatus(3, HostedState.RECEIVING, "another", None, 1, lost)
    tracked.lane.on_disconnect(HERE)
    assert tracked.status.state is HostedState.RECEIVING


def test_a_second_copy_is_not_stopped_before_the_first_has_ended(tracked: Tracked) -> None:
    tracked.receives()
    tracked.lane.stop()
    assert tracked.report(THERE, receiving=False) is Order.WAIT
    assert tracked.report(HERE) is Order.STOP
    tracked.lane.on_disconnect(HERE)
    assert tracked.report(THERE, receiving=False) is Order.STOP


@quickly
def test_a_task_of_a_job_that_is_over_has_no_say_any_more(
    tracked: Tracked, server: ReportServer
) -> None:
    tracked.receives(1)
    tracked.tasks.end("Its executor was lost.")
    tracked.wait_for_task(2)
    late = Report(tracked.tasks.tokens[0], "one", receiving=True)
    assert tracked.lane.on_report(HERE, late) is Order.STOP
    assert tracked.report(THERE) is Order.RECEIVE
    tracked.lane.on_disconnect(HERE)
    assert tracked.status.host == "another"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(late.encode())
        assert connection.recv(4096) == b"", "its token is not accepted any more"


def test_a_task_that_has_not_begun_is_killed_at_once(tracked: Tracked) -> None:
    tracked.wait_for_task(1)
    tracked.lane.stop()
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.tasks.cancelled
    assert tracked.status == ReceiverStatus(3, HostedState.STOPPED, None, None, 0, None)


def test_a_task_that_does_not_end_is_killed_when_its_time_is_over(tracked: Tracked) -> None:
    tracked.receives()
    tracked.lane.stop()
    ended: list[bool] = []
    deadline_s = tracked.now_s + 60
    finishing = in_thread(lambda: ended.append(tracked.lane.finish(tracked.thread, deadline_s)))
    assert tracked.report() is Order.STOP
    assert not tracked.tasks.cancelled
    tracked.now_s = deadline_s
    finishing.join(60)
    assert ended == [False]
    assert tracked.tasks.cancelled


def test_what_goes_wrong_while_it_is_being_stopped_is_told(
    tracked: Tracked, caplog: pytest.LogCaptureFixture
) -> None:
    tracked.receives()
    tracked.lane.stop()
    tracked.tasks.end("The last block could not be stored.")
    assert tracked.lane.finish(tracked.thread, tracked.now_s + 60)
    assert tracked.status.state is HostedState.STOPPED
    assert tracked.status.last_error == "The last block could not be stored."
    assert "failed while it was being stopped: The last block" in caplog.text


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
