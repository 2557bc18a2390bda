"""Tests of a handler and its sink, without Kafka, a database's server or a JVM.

    pytest examples/testing_a_handler.py

`Totals` stands for your own handler and its sink. Around it the harness runs Headrace's own
planner, ledger, failure policies and backfill.
"""

import json
from typing import Any

from headrace import Batch
from headrace.gate import Status
from headrace.testing import Crash, MemoryLog, StreamHarness

TWO_A_BATCH = {"maxOffsetsPerTrigger": 2}


class Totals:
    """A sink that has each batch once: what is written again under a key replaces itself."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}
        self.is_down = False

    def write(self, df: Any, batch: Batch) -> None:
        """The handler."""
        amounts = [json.loads(row.value)["amount"] for row in df.collect()]
        if self.is_down:
            raise ConnectionError("the sink is down")
        self.rows[batch.key] = amounts

    @property
    def total(self) -> float:
        """The sum of all orders."""
        return sum(sum(amounts) for amounts in self.rows.values())


def orders(*amounts: float) -> list[str]:
    """The values of records."""
    return [json.dumps({"amount": amount}) for amount in amounts]


def test_a_batch_that_fails_is_deferred_and_backfilled_once() -> None:
    sink = Totals()
    log = MemoryLog(*orders(1, 2, 3, 4))
    with StreamHarness(sink.write, log, on_failure="defer", options=TWO_A_BATCH) as stream:
        stream.run_batch()
        sink.is_down = True
        stream.run_batch()
        assert stream.statuses()[2] == Status.FAILED
        sink.is_down = False
        log.append(*orders(5, 6))
        stream.run()  # the stream has gone on without the batch
        assert sink.total == 1 + 2 + 5 + 6
        stream.backfill()
    assert sink.total == 1 + 2 + 3 + 4 + 5 + 6


def test_a_crash_between_the_sink_and_the_ledger_doubles_nothing() -> None:
    sink = Totals()
    log = MemoryLog(*orders(1, 2), Crash("after handle"), *orders(3))
    with StreamHarness(sink.write, log, options=TWO_A_BATCH) as stream:
        stream.run()
        assert stream.crashes == 1
    assert sink.total == 1 + 2 + 3


def test_an_order_that_cannot_be_read_becomes_a_dead_letter_and_the_others_are_written() -> None:
    sink = Totals()
    # It is blamed only when others are written after it has failed: there must be some.
    log = MemoryLog(*orders(1, 2), "not JSON", *orders(*[1] * 20))
    with StreamHarness(sink.write, log, on_failure="isolate") as stream:
        stream.run()
        (dead,) = stream.ledger.dead_letters.oldest()
        assert (dead.letter.offset, dead.letter.value) == (2, b"not JSON")
    assert sink.total == 1 + 2 + 20


def test_a_sink_of_500_orders_a_second_is_given_500_a_second() -> None:
    log = MemoryLog()

    def slow(df: Any, _batch: Batch) -> None:
        log.clock.sleep(df.count() / 500)

    with StreamHarness(slow, log, interval="2 seconds") as stream:
        for _ in range(10):
            log.append(*orders(*range(2_000)))  # twice as many as it can process
            stream.run_batch()
        assert stream.rate_per_s is not None
        assert 495 < stream.rate_per_s < 505
