"""The planner of a gated stream obeys what operators have put in force, from its next plan on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from tests.services.kafka import TopicFactory
from tests.services.ledgers import gated_ledger
from tests.services.planners import gated, next_batch, planner_of

from headrace.gate.ledger.ledger import Ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/headrace.db"
    gated_ledger(url).close()
    return url


def test_a_paused_gate_plans_nothing_and_goes_on_where_it_was(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 500)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        end, _ = next_batch(planner, planner.initial())
        paused = ledger.operator_limits.pause("orders", "ops", "sink migration")
        assert not paused.seen
        for _ in range(3):
            assert next_batch(planner, end) == (end, [])
        assert ledger.operator_limits.of("orders").seen
        assert planner.advance(end, everything=True) == end, "not with Trigger.Once either"
        ledger.operator_limits.resume("orders", "ops")
        _, (after,) = next_batch(planner, end)
        assert (after.start, after.count) == (100, 100)
        assert all(each.seen_ms for each in ledger.operator_limits.history("orders"))


def test_a_gate_that_is_paused_before_it_starts_still_pins_where_it_begins(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    latest = gated(url, startingOffsets="latest")
    with planner_of(orders, latest) as planner, Ledger.open(url) as ledger:
        ledger.operator_limits.drain("orders", "ops")
        start = planner.initial()
        orders.produce(*[b"x"] * 500)
        end, ranges = next_batch(planner, start)
        assert end != start, "a batch without records, in which Spark keeps the start"
        assert ranges == []
        assert next_batch(planner, end) == (end, [])
        ledger.operator_limits.resume("orders", "ops")
        _, (first,) = next_batch(planner, end)
        assert first.start == 0


def test_a_limit_holds_from_the_next_batch_to_its_end(topic: TopicFactory, url: str) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 500)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        end, _ = next_batch(planner, planner.initial())
        until_ms = ledger.database_time_ms() + 60_000
        ledger.operator_limits.limit("orders", 30, "ops", "the sink's quota", until_ms)
        end, (limited,) = next_batch(planner, end)
        assert limited.count == 30
        (batch, _) = ledger.batches.newest("orders")
        assert batch.rate_per_s == 30
        assert batch.reason.startswith("limited to 30 records/s by ops: the sink's quota, since ")
        ledger.operator_limits.limit("orders", 30, "ops", until_ms=ledger.database_time_ms())
        _, (free,) = next_batch(planner, end)
        assert free.count == 100


def test_operator_limits_cost_a_plan_one_statement_while_they_are_in_force(
    topic: TopicFactory, url: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 500)
    with planner_of(orders, gated(url)) as planner, Ledger.open(url) as ledger:
        end, _ = next_batch(planner, planner.initial())
        end, _ = next_batch(planner, end)
        with statements() as free:
            end, _ = next_batch(planner, end)
        ledger.operator_limits.limit("orders", 30, "ops")
        end, _ = next_batch(planner, end)  # which marks it as seen
        with statements() as limited:
            end, _ = next_batch(planner, end)
        assert len(limited) == len(free) + 1
        assert sum("FROM gate" in each and "hold_action" in each for each in free) == 1


@contextmanager
def statements() -> Iterator[list[str]]:
    """Yield the statements that this thread sends to databases, while the block runs."""
    said: list[str] = []
    here = threading.get_ident()

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.get_ident() == here:
            said.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        yield said
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
