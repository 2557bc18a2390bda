"""``headrace receive mqtt``: what a broker was given is in the journal, whatever is killed."""

import asyncio
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.journal.receivers.brokered import TOPIC, mqtt, publish_now, subscribe
from tests.journal.receivers.processes import ReceiverProcess, settings
from tests.journal.samples import values_of
from tests.services.mosquitto import Mosquitto
from tests.services.waiting import wait_until

from headrace.journal import Journal, verify

pytestmark = pytest.mark.nightly

_PASSWORD = "tell-nobody"  # noqa: S105
_LATEST_S = 0.2
"""A receiver is killed so long after it has stored something new, at the latest."""


@contextmanager
def receiver(
    folder: Path, broker: Mosquitto, *arguments: str, **variables: str
) -> Iterator[ReceiverProcess]:
    places = ["--journal", "events", "--url", broker.url, "--topic", "sensors/#"]
    running = ReceiverProcess(folder, ["mqtt", *places, *arguments], variables)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def stored_in(folder: Path) -> list[bytes]:
    if not (folder / "events" / "journal.json").exists():
        return []
    return values_of(Journal.open(str(folder / "events")))


def stores_more(folder: Path, before: int) -> bool:
    return len(stored_in(folder)) > before


class Publisher(threading.Thread):
    """Publishes until it is told to end; what the broker has not confirmed is no promise."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[bytes] = []
        self.is_over = False
        self._port = port

    def run(self) -> None:
        while not self.is_over:
            start = len(self.confirmed)
            payloads = [b"%d" % number for number in range(start, start + 20)]
            publish_now(self._port, payloads, named=True)
            self.confirmed += payloads


def survive(kills: int, folder: Path) -> None:
    """Kill receivers so often while messages come, and compare what was confirmed and stored."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201  # shown when the test fails
    dice = random.Random(seed)
    with Mosquitto(folder) as broker:
        asyncio.run(subscribe(mqtt(broker.url, client_id="headrace-events-0")))
        publisher = Publisher(broker.port)
        publisher.start()
        for _ in range(kills):
            before = len(stored_in(folder))
            with receiver(folder, broker, *settings(folder, block_interval_ms=10)) as running:
                running.wait_for("connected")
                wait_until(partial(stores_more, folder, before))
                time.sleep(dice.uniform(0, _LATEST_S))
                running.send(signal.SIGKILL)
                running.ended()
        publisher.is_over = True
        publisher.join(60)
        with receiver(folder, broker) as last:
            wait_until(lambda: set(stored_in(folder)) >= set(publisher.confirmed))
            assert last.wait_for("receiving")["address"] == broker.url
            assert last.wait_for("connected")["topics"] == ["sensors/#"]
            last.send(signal.SIGTERM)
            assert last.ended() == 0
    assert sorted(stored_in(folder)) == sorted(publisher.confirmed)
    journal = Journal.open(str(folder / "events"))
    assert verify(journal).whole
    (first, *_) = journal.records(0, 0).batch.to_pylist()
    assert (first["key"], first["id"]) == (TOPIC.encode(), first["value"].decode())
    assert first["headers"] == [
        {"key": "headrace-message-id", "value": first["value"]},
        {"key": "content-type", "value": b"text/plain"},
    ]


def test_two_kills_lose_nothing_and_double_nothing_that_has_a_message_id(tmp_path: Path) -> None:
    survive(2, tmp_path)


@pytest.mark.soak
def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    survive(100, tmp_path)


def test_a_wrong_password_ends_it_with_one_sentence_without_it(tmp_path: Path) -> None:
    variables = {"HEADRACE_MQTT_PASSWORD": _PASSWORD}
    with (
        Mosquitto(tmp_path, users="") as broker,
        receiver(tmp_path, broker, "--username", "ada", **variables) as running,
    ):
        assert running.ended() == 1
        assert (
            f"The broker {broker.url} refuses the client 'headrace-events-0' as user 'ada': Not"
            " authorized; check the user, the password and the broker's access rules."
        ) in " ".join(running.errors.split())
        assert "Traceback" not in running.errors
        assert _PASSWORD not in running.errors + str(running.events("log"))
