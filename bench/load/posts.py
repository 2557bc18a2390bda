"""Senders of NDJSON over HTTP/1.1, each with connections that it keeps."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

from bench.load.lines import PATIENCE_S, cpu_s, wait_until_s
from bench.load.records import chunk

_TAKEN: Final = 200
_LATER: Final = 429


class Connection:
    """One connection, on which one request follows another."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._answers = self._socket.makefile("rb")

    def post(self, body: bytes) -> int:
        """Send a request; 0 if it was taken, else the seconds after which to come again."""
        head = (
            "POST /records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-ndjson\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)  # in two, Nagle's algorithm delays the second
        status = int(self._answers.readline().split()[1])
        fields: dict[bytes, bytes] = {}
        while line := self._answers.readline().strip():
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
        text = self._answers.read(int(fields[b"content-length"]))
        if status not in (_TAKEN, _LATER):
            raise ValueError(f"the receiver answers {status}: {text.decode()}")
        return 0 if status == _TAKEN else int(fields[b"retry-after"])

    def close(self) -> None:
        """Go."""
        self._answers.close()
        self._socket.close()


def all_at_once(
    port: int, records: int, each: int, connections: int
) -> dict[str, list[float] | float]:
    """Send so many records, ``each`` a request, as fast as they are taken, until all are stored.

    A connection sends its next request when the last is answered; how long each took (ms).
    """
    delays_ms: list[float] = []
    body = chunk(each)
    requests = iter(range(-(-records // each)))

    def send(connection: Connection) -> None:
        for _ in requests:
            sent_s = time.perf_counter()
            if connection.post(body):
                raise ValueError("the receiver has no room for what it should have room for")
            delays_ms.append((time.perf_counter() - sent_s) * 1000)

    began_cpu_s = cpu_s()
    took_s = _on_each(port, connections, send)
    return {"seconds": took_s, "cpu_seconds": cpu_s() - began_cpu_s, "delays_ms": delays_ms}


def at_a_pace(
    port: int, per_s: float, records: int, seconds: float, connections: int
) -> dict[str, list[float]]:
    """Send a request of so many records each so often; how long each took (ms)."""
    body = chunk(records)
    pause_s = records * connections / per_s
    began_s = time.perf_counter()
    places = count()
    delays_ms: list[float] = []

    def send(connection: Connection) -> None:
        due_s = began_s + next(places) * records / per_s
        while due_s < began_s + seconds:
            wait_until_s(due_s)
            sent_s = time.perf_counter()
            while later_s := connection.post(body):
                time.sleep(later_s)
            answered_s = time.perf_counter()
            delays_ms.append((answered_s - sent_s) * 1000)
            due_s = max(due_s + pause_s, answered_s)

    _on_each(port, connections, send)
    return {"delays_ms": delays_ms}


def without_pause(port: int, seconds: float, each: int, connections: int) -> dict[str, int]:
    """Send as much as is taken for so long, and come again when asked to; how much was taken."""
    body = chunk(each)
    end_s = time.perf_counter() + seconds
    taken: list[int] = []

    def send(connection: Connection) -> None:
        while (left_s := end_s - time.perf_counter()) > 0:
            if later_s := connection.post(body):
                time.sleep(min(later_s, left_s))
            else:
                taken.append(each)

    _on_each(port, connections, send)
    return {"records": sum(taken)}


def _on_each(port: int, connections: int, send: Callable[[Connection], None]) -> float:
    """Send on so many connections at the same time; how long it took (s)."""
    opened = [Connection(port) for _ in range(connections)]
    try:
        with ThreadPoolExecutor(connections) as threads:
            began_s = time.perf_counter()
            for sent in [threads.submit(send, connection) for connection in opened]:
                sent.result()
            return time.perf_counter() - began_s
    finally:
        for connection in opened:
            connection.close()
