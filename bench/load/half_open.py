"""Senders who begin and never end: each of many sockets gives away one byte a second."""

import socket
import time
from typing import Final

_TEXTS: Final = {
    "lines": b"x" * 10_000,
    "posts": b"POST /records HTTP/1.1\r\nx-slow: " + b"x" * 10_000,
}
"""Bytes that each connection would send, far more than it has time for."""

_BYTE_S: Final = 1.0
"""Pause of each connection between two bytes."""

READY: Final = "ready"
"""Line that is written when all of them are connected."""


def hold(port: int, kind: str, count: int, seconds: float) -> dict[str, int]:
    """Hold so many sockets for so long; whoever is turned away comes back."""
    text, end_s = _TEXTS[kind], time.perf_counter() + seconds
    senders = [_Slow(port, text) for _ in range(count)]
    print(READY, flush=True)
    turned_away = 0
    while time.perf_counter() < end_s:
        for place, sender in enumerate(senders):
            time.sleep(_BYTE_S / count)
            if not sender.send_one():
                turned_away += 1
                senders[place] = _Slow(port, text)
    return {"turned_away": turned_away}


class _Slow:
    def __init__(self, port: int, text: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._rest = iter(text)

    def send_one(self) -> bool:
        """Whether the receiver still takes something."""
        try:
            self._socket.sendall(bytes([next(self._rest)]))
        except OSError:
            self._socket.close()
            return False
        return True
