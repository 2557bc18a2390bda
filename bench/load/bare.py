"""A bare receiver: reads what senders send and syncs it to one file, as fast as that can be.

It does nothing else that a receiver does: it cuts no lines, makes no records, compresses and checks
nothing, and bounds nothing. So it is what the same senders, sockets and disk allow in Python.
"""

import os
import socket
import threading
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 1024 * 1024
_SYNC_S: Final = 0.2
_SYNC_BYTES: Final = 8 * 1024 * 1024
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class File:
    """Gathers what comes; a thread of its own writes and syncs it when it is old or large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gathered: list[bytes] = []
        self._bytes = 0
        self._changed = threading.Condition()
        self._synced = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, data: bytes) -> threading.Event:
        """Answers what is set when this is durable."""
        with self._changed:
            self._gathered.append(data)
            self._bytes += len(data)
            self._changed.notify()
            return self._synced

    def _run(self) -> None:
        with self._path.open("wb") as file:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._gathered)
                    self._changed.wait_for(lambda: self._bytes >= _SYNC_BYTES, _SYNC_S)
                    parts, self._gathered, self._bytes = self._gathered, [], 0
                    synced, self._synced = self._synced, threading.Event()
                file.writelines(parts)
                file.flush()
                os.fdatasync(file.fileno())
                synced.set()


def receive(path: str, kind: str) -> None:
    """Receive until it is killed; it writes its port first."""
    file = File(Path(path))
    serve = {"lines": _lines, "posts": _posts}[kind]
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, file), daemon=True).start()


def _lines(connection: socket.socket, file: File) -> None:
    """Everything up to the end, then one word for all of it."""
    lines = 0
    synced = threading.Event()
    while data := connection.recv(_READ_BYTES):
        lines += data.count(b"\n")
        synced = file.add(data)
    synced.wait()
    connection.sendall(b"ok %d\n" % lines)
    connection.close()


def _posts(connection: socket.socket, file: File) -> None:
    """Each body, then a word for it."""
    reader = connection.makefile("rb", _READ_BYTES)
    while line := reader.readline().strip():
        size = 0
        while line:
            name, _, value = line.partition(b":")
            size = int(value) if name == b"content-length" else size
            line = reader.readline().strip()
        file.add(reader.read(size)).wait()
        connection.sendall(_ANSWER)
    reader.close()
    connection.close()
