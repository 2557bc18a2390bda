"""Server to which tasks report, and the connections that it refuses."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.journal.receivers.serving import comparisons, run
from tests.journal.receivers.spark.driven import TOKEN, Driven
from tests.services.waiting import wait_until

from headrace.errors import ReceiverError
from headrace.journal.receivers.spark.reporting import (
    MAX_LINE_BYTES,
    Order,
    Report,
    ReportServer,
    decode_order,
    encode_order,
    read_line,
)


@contextlib.contextmanager
def connected(server: ReportServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def answer(connection: socket.socket, line: bytes) -> bytes:
    """Return the answer: a line, or nothing, for the connection was closed."""
    connection.sendall(line)
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_task_with_the_token_is_told_what_to_do_after_each_report(
    server: ReportServer, driven: Driven
) -> None:
    with connected(server) as connection:
        for receiving in (False, True):
            report = Report(TOKEN, "worker", receiving=receiving)
            assert json.loads(answer(connection, report.encode())) == {"order": "receive"}
            assert driven.reports[-1] == report
    assert driven.gone.wait(60)
    assert driven.connections == set()


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
    server: ReportServer, driven: Driven, sent: bytes
) -> None:
    with connected(server) as connection:
        assert answer(connection, sent) == b""
    assert driven.reports == []
    with connected(server) as connection:
        assert answer(connection, Report(TOKEN, "worker").encode())


def test_strangers_are_told_of_once_and_no_token_is_shown(
    server: ReportServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.receivers.spark")
    for _ in range(3):
        with connected(server) as connection:
            assert answer(connection, Report("s3cret", "worker").encode()) == b""
    assert len([line for line in caplog.messages if "without the token" in line]) == 1
    assert "s3cret" not in caplog.text


def test_tokens_are_compared_in_constant_time(
    server: ReportServer, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = comparisons(monkeypatch)
    server.expect("another", driven.reported, driven.left)
    with connected(server) as connection:
        answer(connection, Report("wrong", "worker").encode())
    assert compared == [b"wrong", b"wrong"]


def test_a_task_that_is_not_expected_any_more_is_closed_at_its_next_report(
    server: ReportServer, driven: Driven
) -> None:
    with connected(server) as connection:
        assert answer(connection, Report(TOKEN, "worker").encode())
        server.forget(TOKEN)
        assert answer(connection, Report(TOKEN, "worker").encode()) == b""
    assert driven.gone.wait(60)


def test_silence_ends_a_connection() -> None:
    driven = Driven()
    with contextlib.closing(ReportServer("127.0.0.1", 0, silence_s=0.05)) as server:
        server.expect(TOKEN, driven.reported, driven.left)
        with connected(server) as connection:
            assert answer(connection, Report(TOKEN, "worker").encode())
            assert connection.recv(1) == b""
        assert driven.gone.wait(60)


def test_only_so_many_may_be_connected_without_a_report() -> None:
    driven = Driven()
    strict = ReportServer("127.0.0.1", 0, max_unauthenticated=2, first_report_s=3600)
    with contextlib.closing(strict) as server:
        server.expect(TOKEN, driven.reported, driven.left)
        with connected(server) as known:
            assert answer(known, Report(TOKEN, "worker").encode())
            with connected(server), connected(server), connected(server) as third:
                assert third.recv(1) == b""
                assert answer(known, Report(TOKEN, "worker").encode())
            wait_until(lambda: is_let_in(server))


def is_let_in(server: ReportServer) -> bool:
    with connected(server) as connection:
        return answer(connection, Report(TOKEN, "worker").encode()) != b""


def test_its_end_ends_all_connections(driven: Driven) -> None:
    ending = ReportServer("127.0.0.1", 0)
    ending.expect(TOKEN, driven.reported, driven.left)
    with connected(ending) as connection, connected(ending) as silent:
        assert answer(connection, Report(TOKEN, "worker").encode())
        ending.close()
        assert connection.recv(1) == b""
        assert silent.recv(1) == b""
    assert driven.connections == set()


TEXT = st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(st.builds(Report, TEXT, TEXT, st.booleans(), st.none() | TEXT))
def test_a_report_comes_as_it_was_sent_and_is_one_short_line(report: Report) -> None:
    line = report.encode()
    assert Report.decode(line) == report
    assert line.count(b"\n") == 1
    assert len(line) < MAX_LINE_BYTES


@pytest.mark.parametrize("order", Order)
def test_an_order_comes_as_it_was_sent(order: Order) -> None:
    assert decode_order(encode_order(order)) is order


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 4_000)
@example(b'{"order": ["stop"]}')
@example(b'{"token": "t", "host": "h", "receiving": 1, "address": null}')
@example(b'{"token": null, "host": "h", "receiving": true, "address": null}')
def test_what_is_neither_is_refused(line: bytes) -> None:
    with pytest.raises(ReceiverError, match="is not a report"):
        Report.decode(line)
    with pytest.raises(ReceiverError, match="is not an order"):
        decode_order(line)


def test_a_report_does_not_show_its_token() -> None:
    assert "s3cret" not in repr(Report("s3cret", "host"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"x" * (MAX_LINE_BYTES + 1) + b"\n", "more than 4096 bytes"),
        (b"half a line", "closed"),
        (b"", "closed"),
    ],
)
def test_a_line_is_bounded_and_whole(sent: bytes, why: str) -> None:
    async def work() -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(sent)
        reader.feed_eof()
        with pytest.raises(ReceiverError, match=why):
            await read_line(reader, 60)

    run(work())
