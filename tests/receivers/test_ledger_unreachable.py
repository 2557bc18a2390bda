"""``headrace receive --gate`` while its ledger, a real PostgreSQL server, is away."""

import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.ledger.samples import a_sample
from tests.receivers.processes import ReceiverProcess, receiver
from tests.services.ledgers import report_sample
from tests.services.postgresql import PostgresqlServer
from tests.services.waiting import wait_until

from headrace.journal import Journal
from headrace.ledger import Ledger

RATE_PER_S = 400.0
LINES = 800
"""Lines of which the rate lets in no more than a burst at once: the rest takes some looks."""


def publish(url: str, time_ms: int, rate_per_s: float) -> None:
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
        report_sample(ledger, a_sample(time_ms, rate_per_s))


def acknowledged(sender: socket.socket, count: int) -> int:
    """Wait for that many lines to be durable."""
    with sender.makefile("rb") as answers:
        left = count
        while left > 0:
            word, number = answers.readline().split()
            assert word == b"ok"
            left -= int(number)
    return count - left


def has_said(running: ReceiverProcess, name: str, times: int) -> bool:
    return len(running.events(name)) == times


def limits(running: ReceiverProcess) -> list[float]:
    return [each["limit_per_s"] for each in running.events("limit")]


@pytest.mark.integration
def test_while_the_ledger_is_unreachable_the_rate_stays_and_one_line_is_logged(
    tmp_path: Path, own_postgresql: PostgresqlServer
) -> None:
    publish(own_postgresql.url, 1, RATE_PER_S)
    options = ["--acknowledge", "--gate", "orders", "--ledger", own_postgresql.url]
    with (
        receiver(tmp_path, "tcp", *options) as running,
        socket.create_connection(running.address, timeout=60) as sender,
    ):
        wait_until(lambda: limits(running) == [RATE_PER_S])
        ends: list[Callable[[], None]] = [partial(own_postgresql.stop, "fast"), own_postgresql.kill]
        for outage, end in enumerate(ends, start=1):
            end()
            wait_until(partial(has_said, running, "ledger-unreachable", outage))
            sender.sendall(b"21.5\n" * LINES)
            assert acknowledged(sender, LINES) == LINES
            assert limits(running) == [RATE_PER_S]
            own_postgresql.start()
            wait_until(partial(has_said, running, "ledger-reachable", outage))
            assert has_said(running, "ledger-unreachable", outage)
        with Ledger.open(own_postgresql.url) as ledger:
            wait_until(
                lambda: [each.records for each in ledger.receivers.of_gate("orders")] == [2 * LINES]
            )
            (known,) = ledger.receivers.of_gate("orders")
            assert known.limit_per_s == RATE_PER_S
        publish(own_postgresql.url, 2, 2 * RATE_PER_S)
        wait_until(lambda: limits(running) == [RATE_PER_S, 2 * RATE_PER_S])
        own_postgresql.stop("fast")
        sender.sendall(b"21.5\n")
        running.send(signal.SIGTERM)
        assert running.ended() == 0
        assert "Traceback" not in running.errors
    own_postgresql.start()
    assert Journal.open(str(tmp_path / "events")).bounds()[0][1] >= 2 * LINES
