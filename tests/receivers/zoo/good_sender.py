"""A sender that does all as documented, in a process of its own, until its input ends.

``python -m tests.receivers.zoo.good_sender http|tls|tcp PORT RECORD [AUTHORITY]``
"""

import http.client
import select
import socket
import ssl
import sys
import time
from pathlib import Path

from tests.receivers.zoo.record import Entry, Record

PAUSE_S = 0.003
_PER_CONNECTION = 20
_TIMEOUT_S = 60


class HttpSender:
    """Sends a record until it is answered 200, with an id; connects anew from time to time."""

    def __init__(self, port: int, trust: ssl.SSLContext | None) -> None:
        self._port = port
        self._trust = trust
        self._connection: http.client.HTTPConnection | None = None
        self._left = 0

    def send(self, value: str) -> list[int]:
        refused: list[int] = []
        while True:
            try:
                status, after_s = self._try(value)
            except (OSError, http.client.HTTPException):
                self._left = 0
                refused.append(0)
                continue
            if status == 200:
                return refused
            assert status in {408, 429, 503}, status
            refused.append(status)
            time.sleep(after_s)

    def _try(self, value: str) -> tuple[int, float]:
        if not self._left or not self._connection:
            if self._connection:
                self._connection.close()
            self._connection, self._left = self._connected(), _PER_CONNECTION
        self._left -= 1
        headers = {"Content-Type": "text/plain", "Headrace-Message-Id": value}
        self._connection.request("POST", "/records", value, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status, float(answer.headers.get("Retry-After", 0))

    def _connected(self) -> http.client.HTTPConnection:
        if self._trust:
            return http.client.HTTPSConnection(
                "127.0.0.1", self._port, timeout=_TIMEOUT_S, context=self._trust
            )
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)


class LineSender:
    """Sends a line with an id in it until it is acknowledged."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._left = 0

    def send(self, value: str) -> list[int]:
        refused: list[int] = []
        while True:
            try:
                if not self._left or not self._socket:
                    if self._socket:
                        self._socket.close()
                    self._socket = socket.create_connection(("127.0.0.1", self._port), _TIMEOUT_S)
                    self._left = _PER_CONNECTION
                self._left -= 1
                self._socket.sendall(value.encode() + b"\n")
                if self._socket.recv(1_000).startswith(b"ok "):
                    return refused
            except OSError:
                pass
            self._left = 0
            refused.append(0)


def main(protocol: str, port: int, path: Path, authority: str | None) -> None:
    trust = ssl.create_default_context(cafile=authority) if protocol == "tls" else None
    sender = LineSender(port) if protocol == "tcp" else HttpSender(port, trust)
    record = Record(path)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        value, began = record.next_value(), time.monotonic()
        refused = sender.send(value)
        record.note(Entry(began, time.monotonic() - began, value, refused))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] if sys.argv[4:] else None)
