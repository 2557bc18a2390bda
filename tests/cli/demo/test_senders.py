"""How the demo's orders reach a receiver that is busy, refuses them, or is not there."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.cli.demo.senders import LINES, HttpSender
from headrace.errors import ReceiverError
from headrace.local.server import free_ports


class Receiver(ThreadingHTTPServer):
    """Answers with these statuses, one after the other, and 200 from then on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.statuses: list[int] = []
        self.taken: list[bytes] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


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


def test_what_is_not_taken_yet_is_sent_again_until_it_is(receiver: Receiver) -> None:
    receiver.statuses = [429, 503, 429]
    orders = [b"%d" % number for number in range(LINES + 3)]
    with closing(HttpSender(receiver.address)) as sender:
        for order in orders:
            sender.send(order, 0)
        assert receiver.taken == orders[:LINES]
        sender.flush()
        sender.flush()
    assert receiver.taken == orders


def test_a_refusal_is_told(receiver: Receiver) -> None:
    receiver.statuses = [400]
    with closing(HttpSender(receiver.address)) as sender:
        sender.send(b"x", 0)
        with pytest.raises(ReceiverError, match="refused 1 orders with status 400"):
            sender.flush()


def test_a_receiver_that_is_not_there_is_told() -> None:
    sender = HttpSender(f"127.0.0.1:{free_ports(1)[0]}")
    sender.send(b"x", 0)
    with pytest.raises(ReceiverError, match="did not answer"):
        sender.flush()
