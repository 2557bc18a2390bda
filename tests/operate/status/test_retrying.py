"""A retry that was asked for says what it waits for, as far as the ledger knows it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.operate.cli.histories import NOW_MS, a_batch
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.actions import RetryQueue, is_queued
from headrace.testing import ManualClock

IDLE = RetryQueue("orders", (), None, has_query=True)


def failed_batch(retry_ms: int | None) -> bool:
    batch = a_batch(1, NOW_MS, 10, status=Status.FAILED)  # ends 900 ms later
    return is_queued(replace(batch, retry_ms=retry_ms))


def test_a_retry_is_queued_until_the_next_attempt_has_ended() -> None:
    assert failed_batch(NOW_MS + 900) and failed_batch(NOW_MS + 5_000)
    assert not failed_batch(None)
    assert not failed_batch(NOW_MS + 899)
    done = replace(a_batch(1, NOW_MS, 10), retry_ms=NOW_MS + 5_000)
    assert not is_queued(done)


def test_what_a_retry_waits_for() -> None:
    first, second = "a" * 32, "b" * 32
    for queue, sentence in (
        (replace(IDLE, running=first), "waits while a backfill runs batch aaaaaaaa."),
        (
            replace(IDLE, has_query=False),
            "waits for a process: no query runs behind the gate, so run `headrace backfill"
            " bbbbbbbb`.",
        ),
        (replace(IDLE, asked=(first, second)), "waits for 1 batch before it."),
        (replace(IDLE, asked=(second,)), "runs next, between two batches of the stream."),
    ):
        assert queue.waits_for(second) == sentence
    assert "run `headrace backfill orders`" in replace(IDLE, has_query=False).waits_for()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    clock = ManualClock()
    url = f"sqlite:///{tmp_path}/headrace.db"
    with new_ledger(url, clock=clock, database_clock=clock) as opened:
        yield opened


def test_the_queue_is_read_from_the_ledger(ledger: Ledger) -> None:
    assert RetryQueue.read(ledger, "orders") is None
    claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
    assert ledger.gates.claim(claim, 30_000) is None
    keys = []
    for start in (0, 10):
        planned = PlannedRange(OffsetRange("orders", 0, start, start + 10))
        batch = PlannedBatch("orders", "run", (planned,), "rate", "localhost:9092")
        keys.append(ledger.batches.begin(batch).batch_key)
        ledger.batches.fail(keys[-1], ValueError("no number"))
    ledger.repairs.retry("orders", keys[1:], "Ada", "the sink is back")
    queue = RetryQueue.read(ledger, "orders")
    assert queue is not None and queue.has_query and queue.running is None
    assert queue.asked == (keys[1],)
    assert ledger.batches.claim(keys[1], "me", 60_000) is not None
    running = RetryQueue.read(ledger, "orders")
    assert running is not None and running.running == keys[1]
    assert ledger.gates.release("orders", "a query")
    without = RetryQueue.read(ledger, "orders")
    assert without is not None and not without.has_query
