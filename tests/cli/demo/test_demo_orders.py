"""What the demo sends arrives once, and what it counts is what happened."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.waiting import wait_until

from headrace.cli.demo.demo_scenario import phase_at
from headrace.cli.demo.orders import OrderSender, missing_and_twice
from headrace.cli.demo.targets import LINES, JournalTarget
from headrace.errors import ReceiverError
from headrace.local.server import free_ports


@given(st.lists(st.integers(0, 40)), st.integers(0, 40), st.integers(0, 40))
def test_the_count_agrees_with_a_look_at_every_number(
    arrived: list[int], produced: int, waiting: int
) -> None:
    """A missing order, one that came twice, a stranger: each is found beside any other."""
    lost = sum(number not in arrived for number in range(produced))
    twice = {number for number in arrived if arrived.count(number) > 1 or number >= produced}
    found = missing_and_twice(Counter(arrived), produced, waiting)
    assert found == (max(lost - waiting, 0), len(twice))


@pytest.mark.parametrize(
    ("part", "left_over", "phase"),
    [
        (0.01, 50_000, "backlog"),
        (0.39, 0, "steady"),
        (0.41, 0, "slow handler x4"),
        (0.59, 20_000, "slow handler x4"),
        (0.61, 20_000, "recovering"),
        (0.75, 0, "steady"),
        (0.89, 0, "draining"),
    ],
)
def test_the_phases_follow_one_another(part: float, left_over: int, phase: str) -> None:
    assert phase_at(part, left_over) == phase


class Receiver(ThreadingHTTPServer):
    """Answers with these statuses, one after the other, and 200 from then on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.statuses: list[int] = []
        self.taken: list[bytes] = []


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == 200:
            self.server.taken += body.split(b"\n")
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(receiver: Receiver, tmp_path: Path) -> Iterator[JournalTarget]:
    with closing(JournalTarget(f"127.0.0.1:{receiver.server_port}", tmp_path)) as target:
        yield target


def test_a_backlog_and_a_stream_arrive_whole_though_the_receiver_says_later(
    receiver: Receiver, target: JournalTarget
) -> None:
    receiver.statuses = [429, 503, 429]
    with OrderSender(target) as sender:
        sender.send(LINES + 3)
        assert len(receiver.taken) == LINES + 3
        sender.start(2_000)
        wait_until(lambda: sender.produced > 2 * LINES)
        sender.check()
        sender.stop()
        produced = sender.produced
    orders = [json.loads(line) for line in receiver.taken]
    assert [order["id"] for order in orders] == list(range(produced))


def test_a_stream_that_is_refused_is_raised_by_the_next_check(
    receiver: Receiver, target: JournalTarget
) -> None:
    receiver.statuses = [400]

    def is_refused() -> bool:
        try:
            sender.check()
        except ReceiverError as error:
            return "with status 400" in str(error)
        return False

    with OrderSender(target) as sender:
        sender.start(1_000)
        wait_until(is_refused)


def test_a_receiver_that_is_not_there_is_reported(tmp_path: Path) -> None:
    target = JournalTarget(f"127.0.0.1:{free_ports(1)[0]}", tmp_path)
    with OrderSender(target) as sender, pytest.raises(ReceiverError, match="did not answer"):
        sender.send(1)
