"""A receiver that is killed under load loses nothing that it has acknowledged.

The senders, outside of it, write down what was sent and what was acknowledged. Over HTTP they send
unanswered records again, under the same message id: each is stored once.
"""

import http.client
import random
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.journal.receivers.processes import ReceiverProcess, receiver, settings
from tests.journal.samples import values_of
from tests.services.waiting import wait_until

from headrace.journal import Journal, verify

SENDERS = 3
MOST_LINES = 20
LATEST_S = 0.3
"""A receiver is killed so long after some new acknowledgement, at the latest."""

_QUICK = {"block_interval_ms": 10}


class Record:
    """Records that all senders have sent, and those acknowledged to them."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.address: tuple[str, int] | None = None
        self.is_over = False

    def problems(self, stored: list[bytes], *, once: bool) -> list[str]:
        """Return the faults of the journal's records."""
        counted = Counter(stored)
        lost = self.acknowledged - counted.keys()
        strange = counted.keys() - self.sent
        doubled = [value for value, times in counted.items() if times > 1] if once else []
        found = {"lost": lost, "never sent": strange, "stored twice": doubled}
        return [
            f"{len(values)} {what}: {min(values)!r}" for what, values in found.items() if values
        ]


class Sender(threading.Thread):
    """Sends lines, each only once in its life or until it is acknowledged."""

    def __init__(self, record: Record, name: str, dice: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.record = record
        self._dice = dice
        self._number = 0

    def lines(self) -> list[bytes]:
        """The next ones, which were never sent before."""
        count = self._dice.randint(1, MOST_LINES)
        start, self._number = self._number, self._number + count
        lines = [
            b'"%s %d"' % (self.name.encode(), number) for number in range(start, start + count)
        ]
        self.record.sent.update(lines)
        return lines

    def run(self) -> None:
        while not self.record.is_over:
            with suppress(OSError, http.client.HTTPException):
                if self.record.address:
                    self.talk(*self.record.address)
            time.sleep(0.01)  # until it is there again

    def talk(self, host: str, port: int) -> None:
        """Send over one connection until it breaks, or all is over."""
        raise NotImplementedError


class HttpSender(Sender):
    """Sends again what was not answered, until it is."""

    def __init__(self, record: Record, name: str, dice: random.Random) -> None:
        super().__init__(record, name, dice)
        self._open: list[bytes] = []

    def talk(self, host: str, port: int) -> None:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            while self._open or not self.record.is_over:
                self._open = self._open or self.lines()
                headers = {"content-type": "application/x-ndjson"}
                headers["headrace-message-id"] = self._open[0].decode().strip('"')
                connection.request("POST", "/records", b"\n".join(self._open), headers)
                response = connection.getresponse()
                said = response.read()
                assert response.status == 200, said
                self.record.acknowledged.update(self._open)
                self._open = []
        finally:
            connection.close()


class TcpSender(Sender):
    """Counts the lines that are acknowledged; what was not is not sent again."""

    def talk(self, host: str, port: int) -> None:
        with socket.create_connection((host, port), timeout=60) as connection:
            answers = connection.makefile("rb")
            while not self.record.is_over:
                lines = self.lines()
                connection.sendall(b"".join(line + b"\n" for line in lines))
                while lines:
                    word, count = answers.readline().split() or (b"", b"")
                    assert word in (b"ok", b"")
                    if not word:
                        return
                    self.record.acknowledged.update(lines[: int(count)])
                    del lines[: int(count)]


@contextmanager
def sending(senders: list[Sender]) -> Iterator[None]:
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        senders[0].record.is_over = True
    for sender in senders:
        sender.join(60)
        assert not sender.is_alive()


def live_on(running: ReceiverProcess, record: Record, dice: random.Random) -> None:
    """Let it listen, and acknowledge something new."""
    record.address = running.address
    before = len(record.acknowledged)
    wait_until(lambda: len(record.acknowledged) > before + dice.randint(0, 5 * MOST_LINES))


def survive(kills: int, kind: str, folder: Path) -> None:
    """Kill receivers so often under load, end the last one cleanly, and judge what is there."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201  # shown when the test fails
    dice = random.Random(seed)
    record = Record()
    made = {"http": HttpSender, "tcp": TcpSender}[kind]
    options = ("http",) if kind == "http" else ("tcp", "--acknowledge")
    senders: list[Sender] = [
        made(record, f"{number}", random.Random(seed + number)) for number in range(SENDERS)
    ]
    with sending(senders):
        for _ in range(kills):
            with receiver(folder, *options, *settings(folder, **_QUICK)) as running:
                live_on(running, record, dice)
                time.sleep(dice.uniform(0, LATEST_S))
                running.send(signal.SIGKILL)
                running.ended()
            record.address = None
        with receiver(folder, *options, *settings(folder, **_QUICK)) as last:
            live_on(last, record, dice)
            record.is_over = True
            for sender in senders:
                sender.join(60)
            last.send(signal.SIGTERM)
            assert last.ended() == 0
    journal = Journal.open(str(folder / "events"))
    stored = values_of(journal)
    once = kind == "http"
    assert record.problems(stored, once=once) == []
    assert verify(journal).whole
    lost = next(iter(record.acknowledged))
    planted = [value for value in stored if value != lost]
    assert record.problems(planted, once=once) == [f"1 lost: {lost!r}"]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["http", "tcp"])
def test_three_kills_lose_nothing_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    survive(3, kind, tmp_path)


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["http", "tcp"])
def test_a_hundred_kills_lose_nothing_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    survive(100, kind, tmp_path)
