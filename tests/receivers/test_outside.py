"""An HTTP receiver from outside: raw bytes on a socket, and the files that it leaves.

Nothing of the code under test says here what was sent, acknowledged or stored: requests are written
by hand, and blocks are read by pyarrow, from the files (a header of 128 bytes, an Arrow stream).
"""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.receivers.processes import ReceiverProcess, receiver

pytestmark = pytest.mark.integration  # a receiver in a process of its own


class Answer(NamedTuple):
    """What came back: the status, the body, and whether the connection was closed then."""

    status: int
    body: dict[str, object]
    closed: bool


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ReceiverProcess]:
    with receiver(tmp_path, "http") as process:
        yield process


def request(running: ReceiverProcess, data: bytes) -> Answer:
    """Send bytes on a connection of their own; answers with the first response to them."""
    with socket.create_connection(running.address, timeout=60) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as answers:
            status = int(answers.readline().split()[1])
            headers = {}
            while line := answers.readline().strip():
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
            body = b""
            if headers.get(b"transfer-encoding") == b"chunked":
                while size := int(answers.readline(), 16):
                    body += answers.read(size)
                    answers.readline()
                answers.readline()
            else:
                body = answers.read(int(headers[b"content-length"]))
            closed = headers.get(b"connection") == b"close"
            assert not closed or answers.read() == b""
            return Answer(status, json.loads(body), closed)


def post(
    running: ReceiverProcess,
    body: bytes,
    *ids: bytes,
    target: bytes = b"/records",
    kind: bytes = b"application/x-ndjson",
) -> Answer:
    headers = b"".join(b"Headrace-Message-Id: " + each + b"\r\n" for each in ids)
    length = b"Content-Length: %d\r\n" % len(body)
    kind = b"Content-Type: " + kind + b"\r\n"
    start = b"POST " + target + b" HTTP/1.1\r\nHost: there\r\n"
    return request(running, start + kind + headers + length + b"\r\n" + body)


def stored(tmp_path: Path) -> list[bytes]:
    """Every record of lane 0 in order."""
    found: list[bytes] = []
    for path in sorted((tmp_path / "events/0").glob("*.block")):
        assert int(path.stem) == len(found)
        with pa.ipc.open_stream(path.read_bytes()[128:]) as stream:
            found += stream.read_all().column("value").to_pylist()
    return found


def test_ids_are_compared_whole(tmp_path: Path) -> None:
    """No id of one message is that of a record of another, before a restart and after."""
    messages = [
        ((b"x",), b"1\n2\n"),
        ((b"x:1",), b"3\n"),
        ((b"x:0",), b"4\n5\n"),
        ((b"x:0:1",), b"6\n"),
        ((b"x:1:0",), b"7\n"),
        ((b"X",), b"8\n"),
        ((b"\xc3\xa9",), b"9\n"),  # one sign, and the same as a letter with an accent behind it
        ((b"e\xcc\x81",), b"10\n"),
        ((b"y" * 200,), b"11\n12\n"),
        ((b"y" * 199,), b"13\n"),
        ((b"y" * 198 + b":1",), b"14\n"),
    ]
    for restart in range(2):
        with receiver(tmp_path, "http") as running:
            for ids, body in messages:
                answer = post(running, body, *ids)
                assert answer.status == 200
                assert answer.body.get("duplicates", 0) == (body.count(b"\n") if restart else 0)
            running.send(signal.SIGKILL)
            running.ended()
        assert stored(tmp_path) == [b"%d" % number for number in range(1, 15)]


def test_an_id_that_is_none_is_refused(tmp_path: Path, running: ReceiverProcess) -> None:
    for ids in ((b"",), (b"  ",), (b"y" * 201,), (b"a", b"b"), (b"a", b"a")):
        answer = post(running, b"1\n", *ids)
        assert answer.status == 400
        assert str(answer.body["error"]).startswith("headrace-message-id ")
    assert stored(tmp_path) == []


CHUNKED = b"3\r\n1\n2\r\n0\r\n\r\n"
SMUGGLED = (
    b"POST /records HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n9"
)


@pytest.mark.parametrize("target", [b"/records", b"/none"])
def test_a_request_with_two_ends_is_refused_and_its_connection_closed(
    tmp_path: Path, running: ReceiverProcess, target: bytes
) -> None:
    """RFC 9112, 6.1. What follows it on the connection is not taken for a request, either."""
    start = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
    for lengths in (
        b"Content-Length: 13\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"transfer-encoding: Chunked\r\ncontent-length: 0\r\n",
    ):
        answer = request(running, start + lengths + b"\r\n" + CHUNKED + SMUGGLED)
        assert (answer.status, answer.closed) == (400, True)
        assert "both Content-Length and Transfer-Encoding" in str(answer.body["error"])
    assert stored(tmp_path) == []
    assert post(running, b"1\n").status == 200


def test_a_target_in_absolute_form_is_that_of_its_path(
    tmp_path: Path, running: ReceiverProcess
) -> None:
    """RFC 9112, 3.2.2."""
    for target in (
        b"http://there/records",
        b"HTTP://other:81/records?x=http://y/",
        b"https://there/%72ecords",
    ):
        assert post(running, b"1\n", target=target).status == 200
    assert stored(tmp_path) == [b"1"] * 3
    assert request(running, b"GET http://there/health HTTP/1.1\r\nHost: x\r\n\r\n").status == 200


@pytest.mark.parametrize("padding", [b"", b'{"a":1}\n' * 10_000])
def test_an_integer_that_is_too_long_is_refused_by_its_name_in_large_bodies_too(
    tmp_path: Path, running: ReceiverProcess, padding: bytes
) -> None:
    def line(digits: int) -> bytes:
        return padding + b'{"a":-' + b"7" * digits + b"}\n"

    answer = post(running, line(4301))
    assert answer.status == 400
    number = padding.count(b"\n") + 1
    assert answer.body["error"] == (
        f"Line {number} has an integer of 4301 digits, and 4300 are allowed; send it as a string."
    )
    answer = post(running, b"[1, " + b"7" * 5000 + b"]", kind=b"application/json")
    assert answer.status == 400
    assert str(answer.body["error"]).startswith("The body has an integer of 5000 digits, ")
    assert post(running, line(4300)).status == 200
    assert post(running, padding + b'{"a":"' + b"7" * 9000 + b'"}\n').status == 200
    count = padding.count(b"\n")
    assert len(stored(tmp_path)) == 2 * (count + 1)
