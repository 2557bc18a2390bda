"""Calls of one gate that PostgreSQL has at the same time: each waits for the gate's row."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.gate.ledger.samples import a_batch, a_sample, batch_number, stored
from tests.services.postgresql import NewUrl
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.ledger.transitions import Status

pytestmark = pytest.mark.integration

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE '%gate%' AND application_name = 'headrace'"
)


@pytest.fixture
def url(new_postgresql_url: NewUrl) -> str:
    return new_postgresql_url()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url, clock=lambda: 1_000) as opened:  # which makes no difference of its own
        opened.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        yield opened


def together(url: str, *calls: Callable[[], Any]) -> list[Any]:
    """Have all calls in the server, before the first of them gets the gate's row."""
    with ThreadPoolExecutor(len(calls)) as pool, psycopg.connect(url) as other:
        other.execute("SELECT * FROM gate WHERE name = 'orders' FOR UPDATE")
        answers = []
        for number, call in enumerate(calls, start=1):
            answers.append(pool.submit(call))
            wait_until(partial(_are_waiting, url, number))
        other.rollback()
        return [answer.result() for answer in answers]


def _are_waiting(url: str, number: int) -> bool:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute(WAITING).fetchone() or (0,)
    return bool(found == number)


def test_batches_begun_together_are_created_one_after_the_other(url: str, ledger: Ledger) -> None:
    calls = [partial(ledger.batches.begin, batch_number(number)) for number in range(3)]
    created = [batch.created_time_ms for batch in together(url, *calls)]
    assert len(set(created)) == 3
    known = ledger.history.checkpoints("orders")
    assert [checkpoint.begins for checkpoint in known] == [3]


def test_a_batch_begun_twice_together_has_two_attempts(url: str, ledger: Ledger) -> None:
    """Transitions A and B."""
    together(url, *[partial(ledger.batches.begin, a_batch())] * 2)
    assert stored(ledger, a_batch().batch_key).attempts == 2
    known = ledger.history.checkpoints("orders")
    assert [(checkpoint.begins, checkpoint.offsets) for checkpoint in known] == [(2, 10)]


def test_a_batch_attached_by_two_together_is_one_owners(url: str, ledger: Ledger) -> None:
    key = ledger.batches.begin(a_batch()).batch_key
    owners = ("one", "other")
    attach = partial(ledger.batches.attach, key, 0, lease_ms=30_000)
    answers = together(url, *[partial(attach, owner=owner) for owner in owners])
    (attached,) = [answer for answer in answers if answer is not None]
    assert stored(ledger, key).owner == attached.batch.owner


@pytest.mark.parametrize("ended", [True, False])
def test_a_report_that_comes_twice_together_is_kept_once(
    url: str, ledger: Ledger, *, ended: bool
) -> None:
    key = ledger.batches.begin(a_batch()).batch_key
    if ended:
        ledger.batches.succeed(key)
    report = partial(ledger.rates.report, key, 0, 5, a_sample(10, batch_key=key))
    together(url, report, report)
    assert len(ledger.rates.history("orders")) == 1
    assert stored(ledger, key).status is Status.SUCCESS
    assert stored(ledger, key).records == 80


def test_a_topic_that_is_named_twice_is_written_down(ledger: Ledger) -> None:
    ranges = [OffsetRange(topic, 0, 0, 5) for topic in ("orders", "renamed")]
    planned = tuple(PlannedRange(each, 5, None, "an id") for each in ranges)
    batch = PlannedBatch("orders", "run", planned, "rate", "localhost:9092")
    assert ledger.batches.begin(batch).status is Status.IN_PROGRESS
    assert len(ledger.batches.ranges(batch.batch_key)) == 2
