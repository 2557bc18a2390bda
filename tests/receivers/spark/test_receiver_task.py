"""What runs in a task, in a thread of the test: a real receiver, journal and connection."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark import cloudpickle
from tests.journal.journals import displace
from tests.receivers.finite import Finite
from tests.services.waiting import wait_until

from headrace.errors import OptionError
from headrace.journal import Journal
from headrace.journal.records import Records
from headrace.receivers import (
    Hosting,
    HttpReceiver,
    HttpSettings,
    Intake,
    IntakeSettings,
    TcpReceiver,
    TcpSettings,
)
from headrace.receivers.spark.receiver_task import Assignment, TaskOutcome, work
from headrace.receivers.spark.reporting import Order, Report, ReportServer

TOKEN = "t0ken"  # noqa: S105


class Tracker:
    """Tells a task what the test wants."""

    def __init__(self) -> None:
        self.order = Order.RECEIVE
        self.last: Report | None = None
        self.gone = threading.Event()

    def reported(self, _connection: object, report: Report) -> Order:
        self.last = report
        return self.order

    def left(self, _connection: object) -> None:
        self.gone.set()

    def wait_for_receiving(self) -> Report:
        wait_until(lambda: self.last and self.last.receiving)
        assert self.last
        return self.last


class Broken:
    """A receiver whose library raises what it likes."""

    async def receive(self, intake: Intake) -> None:
        raise KeyError("its own")


class Unloadable:
    """It can be sent, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return __import__, ("no_such_package",)


@pytest.fixture
def tracker(server: ReportServer) -> Tracker:
    found = Tracker()
    server.expect(TOKEN, found.reported, found.left)
    return found


@pytest.fixture
def assignment(server: ReportServer, tmp_path: Path) -> Assignment:
    hosting = Hosting(str(tmp_path / "events"), lane=2, intake=IntakeSettings(block_interval_ms=5))
    journal = Journal.open(hosting.journal, create=True)
    receiver = sent(HttpReceiver(HttpSettings(port=0)))
    return Assignment(("127.0.0.1", server.port), TOKEN, hosting, journal.id, receiver)


def sent(receiver: object) -> bytes:
    pickled: bytes = cloudpickle.dumps(receiver)  # type: ignore[no-untyped-call]
    return pickled


@contextlib.contextmanager
def working(assignment: Assignment) -> Iterator[Future[TaskOutcome]]:
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(work, assignment)


def post(address: str | None, line: str) -> int:
    assert address
    headers = {"content-type": "text/plain"}
    answer = httpx.post(address, content=line, headers=headers, timeout=60, trust_env=False)
    return answer.status_code


def values_in(assignment: Assignment) -> list[bytes]:
    journal = Journal.open(assignment.hosting.journal)
    blocks = [journal.records(2, each.first) for each in journal.blocks(2)]
    return [value for block in blocks for value in block.batch.column("value").to_pylist()]


def assert_lane_is_free(assignment: Assignment) -> None:
    with Journal.open(assignment.hosting.journal).writer(2):
        pass


def test_it_receives_says_where_and_ends_when_it_is_told_to(
    assignment: Assignment, tracker: Tracker
) -> None:
    with working(assignment) as outcome:
        report = tracker.wait_for_receiving()
        assert report.host == socket.gethostname()
        assert post(report.address, "a") == 200
        tracker.order = Order.STOP
        assert outcome.result(60) == TaskOutcome()
    assert values_in(assignment) == [b"a"]
    assert_lane_is_free(assignment)


def test_without_a_driver_it_ends_cleanly(assignment: Assignment) -> None:
    driver, tracker = ReportServer("127.0.0.1", 0), Tracker()
    driver.expect(TOKEN, tracker.reported, tracker.left)
    with working(replace(assignment, driver=("127.0.0.1", driver.port))) as outcome:
        assert post(tracker.wait_for_receiving().address, "a") == 200
        driver.close()
        ended = outcome.result(60)
    assert ended.error and "has ended, for its driver was lost" in ended.error
    assert not ended.is_permanent
    assert values_in(assignment) == [b"a"]
    assert_lane_is_free(assignment)


def test_a_driver_that_is_silent_is_taken_for_lost(assignment: Assignment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = work(replace(assignment, driver=silent.getsockname(), silence_s=0.05))
    assert ended.error
    assert ended.error.endswith("was lost: Nothing was heard for 0.05 s.")


@pytest.mark.parametrize("answer", [b"garbage\n", b"x" * 5_000, b'{"order": "dance"}\n'])
def test_a_driver_that_talks_nonsense_is_taken_for_lost(
    assignment: Assignment, answer: bytes
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as strange,
        working(replace(assignment, driver=strange.getsockname())) as outcome,
    ):
        connection, _ = strange.accept()
        with connection:
            connection.sendall(answer)
            ended = outcome.result(60)
    assert ended.error and "its driver was lost" in ended.error
    assert_lane_is_free(assignment)


def test_it_waits_for_its_turn_and_may_be_stopped_before(
    assignment: Assignment, tracker: Tracker
) -> None:
    tracker.order = Order.WAIT
    with working(assignment) as outcome:
        wait_until(lambda: tracker.last)
        assert_lane_is_free(assignment)
        tracker.order = Order.STOP
        assert outcome.result(60) == TaskOutcome()


def test_a_tracker_that_cannot_be_reached_is_named(assignment: Assignment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ended = work(replace(assignment, driver=("127.0.0.1", port)))
    assert ended.error and f"The driver at 127.0.0.1:{port} cannot be reached" in ended.error
    assert "Receivers(spark, port=...)" in ended.error


@pytest.mark.usefixtures("tracker")
def test_a_receiver_that_ends_by_itself_is_done(assignment: Assignment) -> None:
    assert work(replace(assignment, receiver=sent(Finite()))) == TaskOutcome()
    assert values_in(assignment) == [b"the", b"end"]


@pytest.mark.usefixtures("tracker")
def test_whatever_a_receiver_raises_is_told_and_may_be_tried_again(
    assignment: Assignment, caplog: pytest.LogCaptureFixture
) -> None:
    assert work(replace(assignment, receiver=sent(Broken()))) == TaskOutcome("KeyError: 'its own'")
    assert "The receiver of lane 2 has failed." in caplog.text
    assert_lane_is_free(assignment)


@pytest.mark.usefixtures("tracker")
def test_a_lane_that_another_has_is_told_and_may_be_tried_again(assignment: Assignment) -> None:
    with Journal.open(assignment.hosting.journal).writer(2):
        ended = work(assignment)
    assert ended.error and "is being written by process" in ended.error
    assert not ended.is_permanent


def test_a_lane_that_another_writes_by_now_is_told_and_may_be_tried_again(
    assignment: Assignment, tracker: Tracker
) -> None:
    with working(assignment) as outcome:
        address = tracker.wait_for_receiving().address
        displace(assignment.hosting.journal, 2)
        assert post(address, "a") == 503
        ended = outcome.result(60)
    assert ended.error and "has another writer by now" in ended.error
    assert not ended.is_permanent
    assert_lane_is_free(assignment)


@pytest.mark.usefixtures("tracker")
def test_a_function_of_the_lane_makes_the_receiver(assignment: Assignment) -> None:
    def make(lane: int) -> OneValue:
        return OneValue(b"lane %d" % lane)

    assert work(replace(assignment, receiver=sent(make))) == TaskOutcome()
    assert values_in(assignment) == [b"lane 2"]


class OneValue:
    """A receiver of one record."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    async def receive(self, intake: Intake) -> None:
        await intake.submit(Records.of([self.value], timestamp_ms=1))


def refusing(lane: int) -> HttpReceiver:
    raise OptionError(f"There is no port for lane {lane}.")


@pytest.mark.usefixtures("tracker")
@pytest.mark.parametrize(
    ("receiver", "why"),
    [
        (refusing, "There is no port for lane 2"),
        (str, "made a str; it must have a method receive"),
        (Unloadable(), "cannot be loaded on .*no_such_package"),
    ],
)
def test_what_cannot_succeed_is_not_to_be_tried_again(
    assignment: Assignment, receiver: object, why: str
) -> None:
    ended = work(replace(assignment, receiver=sent(receiver)))
    assert ended.is_permanent
    assert re.search(why, str(ended.error))


@pytest.mark.usefixtures("tracker")
def test_a_path_that_leads_to_another_journal_on_its_machine_is_found_out(
    assignment: Assignment, tmp_path: Path
) -> None:
    elsewhere = replace(assignment.hosting, journal=str(tmp_path / "elsewhere" / "events"))
    assert "driver's journal is not at" in str(work(replace(assignment, hosting=elsewhere)).error)
    assert not Path(elsewhere.journal).exists()
    Journal.open(elsewhere.journal, create=True)
    assert "another one than the driver's" in str(
        work(replace(assignment, hosting=elsewhere)).error
    )


@pytest.mark.usefixtures("tracker")
@pytest.mark.parametrize(
    ("receiver", "address"),
    [
        (HttpReceiver(HttpSettings(host="0.0.0.0", port=0)), r"http://127\.0\.0\.1:\d+/records"),  # noqa: S104
        (HttpReceiver(HttpSettings(host="127.0.0.1", port=0)), r"http://127\.0\.0\.1:\d+/records"),
        (TcpReceiver(TcpSettings(host="127.0.0.1", port=0)), r"tcp://127\.0\.0\.1:\d+"),
    ],
)
def test_the_address_is_one_that_senders_can_use(
    assignment: Assignment, tracker: Tracker, receiver: object, address: str
) -> None:
    with working(replace(assignment, receiver=sent(receiver))) as outcome:
        told = tracker.wait_for_receiving().address
        tracker.order = Order.STOP
        outcome.result(60)
    assert re.fullmatch(address, str(told))


def test_an_assignment_shows_no_secret(assignment: Assignment) -> None:
    ledger = "postgresql://app:hunter2@db/ledger"
    hosting = replace(assignment.hosting, gate="orders", ledger=ledger)
    receiver = sent(HttpReceiver(HttpSettings(token="hunter2")))  # noqa: S106
    secret = replace(assignment, token="hunter2", hosting=hosting, receiver=receiver)  # noqa: S106
    assert "hunter2" not in repr(secret) + repr(hosting)
