"""Body of a task, in a thread of the test: a real receiver, journal and connection."""

import contextlib
import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from tests.journal.journals import displace
from tests.journal.receivers.finite import Finite
from tests.journal.receivers.spark.driven import TOKEN, Driven, is_free, post
from tests.journal.samples import values_of
from tests.services.waiting import wait_until

from headrace.errors import OptionError
from headrace.journal import Journal
from headrace.journal.receivers import (
    Hosting,
    HttpReceiver,
    HttpSettings,
    Intake,
    IntakeSettings,
    TcpReceiver,
    TcpSettings,
)
from headrace.journal.receivers.spark.receiver_task import Assignment, TaskOutcome, work
from headrace.journal.receivers.spark.reporting import Order, ReportServer
from headrace.journal.records import Records


class Broken:
    """A receiver whose library raises what it likes."""

    async def receive(self, intake: Intake) -> None:
        raise KeyError("its own")


class Unloadable:
    """It can be sent, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return __import__, ("no_such_package",)


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


def values_in(assignment: Assignment) -> list[bytes]:
    return values_of(Journal.open(assignment.hosting.journal), 2)


def test_it_receives_says_where_and_ends_when_it_is_told_to(
    assignment: Assignment, driven: Driven
) -> None:
    with working(assignment) as outcome:
        report = driven.wait_for_receiving()
        assert report.host == socket.gethostname()
        assert post(report.address, "a") == 200
        driven.order = Order.STOP
        assert outcome.result(60) == TaskOutcome()
    assert values_in(assignment) == [b"a"]
    assert is_free(assignment.hosting.journal, 2)


def test_without_a_driver_it_ends_cleanly(assignment: Assignment) -> None:
    driver, driven = ReportServer("127.0.0.1", 0), Driven()
    driver.expect(TOKEN, driven.reported, driven.left)
    with working(replace(assignment, driver=("127.0.0.1", driver.port))) as outcome:
        assert post(driven.wait_for_receiving().address, "a") == 200
        driver.close()
        ended = outcome.result(60)
    assert ended.error and "has ended, because its driver was lost" in ended.error
    assert not ended.is_permanent
    assert values_in(assignment) == [b"a"]
    assert is_free(assignment.hosting.journal, 2)


def test_a_driver_that_is_silent_is_taken_for_lost(assignment: Assignment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = work(replace(assignment, driver=silent.getsockname(), silence_s=0.05))
    assert ended.error
    assert ended.error.endswith("was lost: No line was received for 0.05 s.")


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
    assert is_free(assignment.hosting.journal, 2)


def test_it_waits_for_its_turn_and_may_be_stopped_before(
    assignment: Assignment, driven: Driven
) -> None:
    driven.order = Order.WAIT
    with working(assignment) as outcome:
        wait_until(lambda: driven.reports)
        assert is_free(assignment.hosting.journal, 2)
        driven.order = Order.STOP
        assert outcome.result(60) == TaskOutcome()


def test_a_driver_that_cannot_be_reached_is_named(assignment: Assignment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ended = work(replace(assignment, driver=("127.0.0.1", port)))
    assert ended.error and f"The driver at 127.0.0.1:{port} cannot be reached" in ended.error
    assert "Receivers(spark, port=...)" in ended.error


@pytest.mark.usefixtures("driven")
def test_a_receiver_that_ends_by_itself_is_done(assignment: Assignment) -> None:
    assert work(replace(assignment, receiver=sent(Finite()))) == TaskOutcome()
    assert values_in(assignment) == [b"the", b"end"]


@pytest.mark.usefixtures("driven")
def test_whatever_a_receiver_raises_is_told_and_may_be_tried_again(
    assignment: Assignment, caplog: pytest.LogCaptureFixture
) -> None:
    assert work(replace(assignment, receiver=sent(Broken()))) == TaskOutcome("KeyError: 'its own'")
    assert "The receiver of lane 2 has failed." in caplog.text
    assert is_free(assignment.hosting.journal, 2)


@pytest.mark.usefixtures("driven")
def test_a_lane_that_another_has_is_told_and_may_be_tried_again(assignment: Assignment) -> None:
    with Journal.open(assignment.hosting.journal).writer(2):
        ended = work(assignment)
    assert ended.error and "is being written by process" in ended.error
    assert not ended.is_permanent


def test_a_lane_that_another_writes_by_now_is_told_and_may_be_tried_again(
    assignment: Assignment, driven: Driven
) -> None:
    with working(assignment) as outcome:
        address = driven.wait_for_receiving().address
        displace(assignment.hosting.journal, 2)
        assert post(address, "a") == 503
        ended = outcome.result(60)
    assert ended.error and "has another writer by now" in ended.error
    assert not ended.is_permanent
    assert is_free(assignment.hosting.journal, 2)


@pytest.mark.usefixtures("driven")
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


@pytest.mark.usefixtures("driven")
@pytest.mark.parametrize(
    ("receiver", "why"),
    [
        (refusing, "There is no port for lane 2"),
        (str, "returned a str; it must return a receiver with a method receive"),
        (Unloadable(), "cannot be unpickled on .*no_such_package"),
    ],
)
def test_what_cannot_succeed_is_not_to_be_tried_again(
    assignment: Assignment, receiver: object, why: str
) -> None:
    ended = work(replace(assignment, receiver=sent(receiver)))
    assert ended.is_permanent
    assert re.search(why, str(ended.error))


@pytest.mark.usefixtures("driven")
def test_a_path_that_leads_to_another_journal_on_its_machine_is_found_out(
    assignment: Assignment, tmp_path: Path
) -> None:
    elsewhere = replace(assignment.hosting, journal=str(tmp_path / "elsewhere" / "events"))
    assert "driver's journal is not at" in str(work(replace(assignment, hosting=elsewhere)).error)
    assert not Path(elsewhere.journal).exists()
    Journal.open(elsewhere.journal, create=True)
    assert "is not the driver's journal" in str(work(replace(assignment, hosting=elsewhere)).error)


@pytest.mark.integration
@pytest.mark.usefixtures("driven")
@pytest.mark.parametrize(
    ("receiver", "address"),
    [
        (HttpReceiver(HttpSettings(host="0.0.0.0", port=0)), r"http://127\.0\.0\.1:\d+/records"),  # noqa: S104
        (HttpReceiver(HttpSettings(host="127.0.0.1", port=0)), r"http://127\.0\.0\.1:\d+/records"),
        (TcpReceiver(TcpSettings(host="127.0.0.1", port=0)), r"tcp://127\.0\.0\.1:\d+"),
    ],
)
def test_the_address_is_one_that_senders_can_use(
    assignment: Assignment, driven: Driven, receiver: object, address: str
) -> None:
    with working(replace(assignment, receiver=sent(receiver))) as outcome:
        told = driven.wait_for_receiving().address
        driven.order = Order.STOP
        outcome.result(60)
    assert re.fullmatch(address, str(told))


def test_an_assignment_shows_no_secret(assignment: Assignment) -> None:
    ledger = "postgresql://app:hunter2@db/ledger"
    hosting = replace(assignment.hosting, gate="orders", ledger=ledger)
    receiver = sent(HttpReceiver(HttpSettings(token="hunter2")))  # noqa: S106
    secret = replace(assignment, token="hunter2", hosting=hosting, receiver=receiver)  # noqa: S106
    assert "hunter2" not in repr(secret) + repr(hosting)
