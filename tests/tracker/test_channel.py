"""Where tasks report, and who is not let in there."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.receivers.serving import comparisons
from tests.services.waiting import wait_until

from headrace.errors import ReceiverError
from headrace.tracker import channel as channel_module
from headrace.tracker.channel import Channel
from headrace.tracker.messages import MAX_LINE_BYTES, Order, Report

TOKEN = "t0ken"  # noqa: S105


class Heard:
    """Writes down what is reported."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.connections: set[object] = set()
        self.gone = threading.Event()

    def reported(self, connection: object, report: Report) -> Order:
        self.reports.append(report)
        self.connections.add(connection)
        return Order.RECEIVE

    def left(self, connection: object) -> None:
        self.connections.remove(connection)
        self.gone.set()


@pytest.fixture
def heard(channel: Channel) -> Heard:
    found = Heard()
    channel.expect(TOKEN, found)
    return found


@contextlib.contextmanager
def connected(channel: Channel) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", channel.port), timeout=60) as connection:
        yield connection


def answer(connection: socket.socket, line: bytes) -> bytes:
    """What comes back: a line, or nothing, for the connection was closed."""
    connection.sendall(line)
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_task_with_the_token_is_told_what_to_do_after_each_report(
    channel: Channel, heard: Heard
) -> None:
    with connected(channel) as connection:
        for receiving in (False, True):
            report = Report(TOKEN, "worker", receiving=receiving)
            assert json.loads(answer(connection, report.encode())) == {"order": "receive"}
            assert heard.reports[-1] == report
    assert heard.gone.wait(60)
    assert heard.connections == set()


@pytest.mark.parametrize(
    "sent",
    [
        Report("other", "worker").encode(),
        Report("", "worker").encode(),
        Report("\ud800", "worker").encode(),
        b"\x80\x04garbage\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * (4 * MAX_LINE_BYTES),
        b'{"token": "t0ken"}\n',
    ],
)
def test_whoever_does_not_show_the_token_is_not_answered(
    channel: Channel, heard: Heard, sent: bytes
) -> None:
    with connected(channel) as connection:
        assert answer(connection, sent) == b""
    assert heard.reports == []
    with connected(channel) as connection:
        assert answer(connection, Report(TOKEN, "worker").encode())


def test_strangers_are_told_of_once_and_no_token_is_shown(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.tracker")
    for _ in range(3):
        with connected(channel) as connection:
            assert answer(connection, Report("s3cret", "worker").encode()) == b""
    assert len([line for line in caplog.messages if "without the token" in line]) == 1
    assert "s3cret" not in caplog.text


def test_tokens_are_compared_in_constant_time(
    channel: Channel, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = comparisons(monkeypatch)
    channel.expect("another", heard)
    with connected(channel) as connection:
        answer(connection, Report("wrong", "worker").encode())
    assert compared == [b"wrong", b"wrong"]


def test_a_task_that_is_not_expected_any_more_is_closed_at_its_next_report(
    channel: Channel, heard: Heard
) -> None:
    with connected(channel) as connection:
        assert answer(connection, Report(TOKEN, "worker").encode())
        channel.forget(TOKEN)
        assert answer(connection, Report(TOKEN, "worker").encode()) == b""
    assert heard.gone.wait(60)


def test_silence_ends_a_connection(
    channel: Channel, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "SILENCE_S", 0.05)
    with connected(channel) as connection:
        assert answer(connection, Report(TOKEN, "worker").encode())
        assert connection.recv(1) == b""
    assert heard.gone.wait(60)


def test_only_so_many_may_be_connected_without_a_report(
    channel: Channel, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_MOST_STRANGERS", 2)
    monkeypatch.setattr(channel_module, "_STRANGER_S", 3600)
    with connected(channel) as known:
        assert answer(known, Report(TOKEN, "worker").encode())
        with connected(channel), connected(channel), connected(channel) as third:
            assert third.recv(1) == b""
            assert answer(known, Report(TOKEN, "worker").encode())
        wait_until(lambda: is_let_in(channel))


def is_let_in(channel: Channel) -> bool:
    with connected(channel) as connection:
        return answer(connection, Report(TOKEN, "worker").encode()) != b""


def test_its_end_ends_all_connections(heard: Heard) -> None:
    ending = Channel("127.0.0.1", 0)
    ending.expect(TOKEN, heard)
    with connected(ending) as connection, connected(ending) as silent:
        assert answer(connection, Report(TOKEN, "worker").encode())
        ending.close()
        assert connection.recv(1) == b""
        assert silent.recv(1) == b""
    assert heard.connections == set()


def test_a_port_that_is_taken_is_refused(channel: Channel) -> None:
    with pytest.raises(ReceiverError, match=f"Port {channel.port} "):
        Channel("127.0.0.1", channel.port)
