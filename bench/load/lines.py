"""Senders of lines over TCP, who read their acknowledgements."""

import contextlib
import resource
import select
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from bench.load.records import chunk

_CHUNK_RECORDS: Final = 5_000
_READ_BYTES: Final = 64 * 1024
PATIENCE_S: Final = 120
"""After so long without a byte the receiver is taken for dead."""

Acknowledged = list[tuple[float, int]]
"""When (s), and how many lines were acknowledged by then."""


def all_at_once(port: int, records: int) -> dict[str, float]:
    """Send so many lines as fast as they are taken, and wait until they are acknowledged."""
    data = chunk(min(records, _CHUNK_RECORDS))
    times, rest = divmod(records, _CHUNK_RECORDS)
    with _connected(port) as connection:
        began_s, began_cpu_s = time.perf_counter(), cpu_s()
        for _ in range(times):
            connection.sendall(data)
        if rest:
            connection.sendall(chunk(rest))
        connection.shutdown(socket.SHUT_WR)
        stored = max((count for _, count in _acknowledged(connection)), default=0)
        took_s = time.perf_counter() - began_s
    _all(stored, records)
    return {"seconds": took_s, "cpu_seconds": cpu_s() - began_cpu_s}


def at_a_pace(port: int, per_s: float, records: int, seconds: float) -> dict[str, list[float]]:
    """Send a chunk of so many lines each so often; how long each chunk waited for its word (ms)."""
    data, times = chunk(records), int(per_s * seconds / records)
    with _connected(port) as connection, _listening(connection) as acknowledged:
        began_s = time.perf_counter()
        sent_s = []
        for number in range(times):
            wait_until_s(began_s + number * records / per_s)
            sent_s.append(time.perf_counter())
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    counts = [count for _, count in acknowledged]
    _all(counts[-1] if counts else 0, times * records)
    delays_ms = []
    for number, at_s in enumerate(sent_s):
        heard_s, _ = acknowledged[bisect_left(counts, (number + 1) * records)]
        delays_ms.append((heard_s - at_s) * 1000)
    return {"delays_ms": delays_ms}


def without_pause(port: int, seconds: float) -> dict[str, Acknowledged]:
    """Send as much as is taken for so long, then go; what was acknowledged when."""
    data = chunk(_CHUNK_RECORDS)
    with _connected(port) as connection, _listening(connection) as acknowledged:
        end_s = time.perf_counter() + seconds
        left = memoryview(data)
        while (left_s := end_s - time.perf_counter()) > 0:
            if select.select([], [connection], [], left_s)[1]:
                left = left[connection.send(left) :] or memoryview(data)
        connection.shutdown(socket.SHUT_RDWR)
    return {"acknowledged": acknowledged}


def cpu_s() -> float:
    """Return the processor time that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def wait_until_s(time_s: float) -> None:
    """Until this time of the performance counter."""
    if (left_s := time_s - time.perf_counter()) > 0:
        time.sleep(left_s)


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


@contextlib.contextmanager
def _listening(connection: socket.socket) -> Iterator[Acknowledged]:
    """Fill a list while the block runs, and until the receiver has no more to say."""
    heard: Acknowledged = []
    thread = threading.Thread(target=lambda: heard.extend(_acknowledged(connection)))
    thread.start()
    try:
        yield heard
    finally:
        thread.join()


def _acknowledged(connection: socket.socket) -> Iterator[tuple[float, int]]:
    count, rest = 0, b""
    while data := connection.recv(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word != b"ok":
                raise ValueError(f"the receiver says: {line.decode()}")
            count += int(number)
        yield time.perf_counter(), count


def _all(stored: int, records: int) -> None:
    if stored != records:
        raise ValueError(f"{records} lines were sent, and {stored} acknowledged")
