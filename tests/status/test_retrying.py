"""A retry that was asked for says what it waits for, as far as the ledger knows it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.histories import NOW_MS, a_batch
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.ledger import GateClaim, Ledger, PlannedBatch, PlannedRange, Status
from headrace.status.limiting import RetryQueue, is_queued
from headrace.testing import ManualClock

IDLE = RetryQueue("orders", (), None, has_query=True, interval_ms=1_000, live=None)


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
    running = a_batch(2, NOW_MS, 10, status=Status.IN_PROGRESS)
    slow = replace(a_batch(2, NOW_MS, 10), end_time_ms=NOW_MS + 1_200)
    quick = a_batch(2, NOW_MS, 10)
    first, second = "a" * 32, "b" * 32
    for queue, sentence in (
        (replace(IDLE, running=first), "waits while a backfill runs batch aaaaaaaa."),
        (
            replace(IDLE, has_query=False),
            "waits for a process: no query runs behind the gate, so run `headrace backfill"
            " bbbbbbbb`.",
        ),
        (replace(IDLE, ready=(first, second)), "waits for 1 batch that is ready before it."),
        (
            replace(IDLE, live=running),
            "waits for spare rate: the stream runs a batch, and a backfill runs between two of"
            " them.",
        ),
        (
            replace(IDLE, live=slow),
            "waits for spare rate: the last batch of the stream took 1.20 s, and its interval is"
            " 1.00 s.",
        ),
    ):
        assert queue.waits_for(second) == sentence
    for queue in (IDLE, replace(IDLE, live=quick), replace(IDLE, ready=(second,))):
        assert "The ledger does not know the schedule" in queue.waits_for(second)
    assert "run `headrace backfill --gate orders`" in replace(IDLE, has_query=False).waits_for()


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
    assert set(queue.ready) == set(keys)
    assert ledger.batches.claim(keys[1], "me", 60_000) is not None
    running = RetryQueue.read(ledger, "orders")
    assert running is not None and running.running == keys[1]
    assert ledger.gates.release("orders", "a query")
    without = RetryQueue.read(ledger, "orders")
    assert without is not None and not without.has_query
