"""A sender of numbers: what it has sent and what was acknowledged is written down outside."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from tests.services.waiting import wait_until


class Sender(threading.Thread):
    """Sends numbers to a lane, each until it is acknowledged, and writes down which are.

    ``address`` is changed where its receiver comes back elsewhere.
    """

    def __init__(self, lane: int, address: str) -> None:
        super().__init__(daemon=True)
        self.lane = lane
        self.address = address
        self.acknowledged: list[bytes] = []
        self.sent = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not self.is_over.is_set():
                value = f"{self.lane}/{len(self.acknowledged)}"
                headers = {"content-type": "text/plain", "headrace-message-id": value}
                self.sent = len(self.acknowledged) + 1
                try:
                    answer = client.post(self.address, content=value, headers=headers)
                except httpx.TransportError:
                    self.is_over.wait(0.02)  # until it is there again
                    continue
                assert answer.status_code in (200, 503), answer.text
                if answer.status_code == 200:
                    self.acknowledged.append(value.encode())

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until so many more are acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + count, 120)


@contextmanager
def sending(addresses: Sequence[str]) -> Iterator[list[Sender]]:
    """A sender for each lane, by the addresses of their receivers; they end with the block."""
    senders = [Sender(lane, address) for lane, address in enumerate(addresses)]
    for sender in senders:
        sender.start()
    try:
        yield senders
    finally:
        for sender in senders:
            sender.is_over.set()
        for sender in senders:
            sender.join(60)
