"""Ledgers to look at."""

from typing import Final

from tests.gate.ledger.samples import convict

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, PlannedBatch, PlannedRange, RateSample

HOSTILE: Final = "<script>document.title='owned'</script>\u202egpj.\x1b[31m\"'&"
"""Markup, a mark that turns the direction of writing, what a terminal obeys, quotes."""


def planned(gate: str, start: int, lag: int = 500) -> PlannedBatch:
    ranges = (PlannedRange(OffsetRange("orders", 0, start, start + 100), start + lag, "rate"),)
    return PlannedBatch(gate, "run", ranges, "rate", "localhost:9", lag=lag, rate_per_s=100.0)


def add_batch(ledger: Ledger, gate: str = "orders", start: int = 0, lag: int = 500) -> str:
    """A batch that succeeds at once; its key."""
    key = ledger.batches.begin(planned(gate, start, lag)).batch_key
    ledger.batches.succeed(key, records=100)
    now_ms = wall_clock_ms()
    sample = RateSample(gate, now_ms, 100.0, 100, 800, 0, 125.0, 1.0, 2.0, 0.0, batch_key=key)
    ledger.rates.report(key, start // 100, now_ms, sample)
    return key


def add_failure(
    ledger: Ledger, gate: str = "orders", start: int = 10_000, error: str = "no number"
) -> str:
    """A batch that fails; its key."""
    key = ledger.batches.begin(planned(gate, start)).batch_key
    ledger.batches.fail(key, ValueError(error))
    return key


def add_dead_letter(
    ledger: Ledger,
    gate: str = "orders",
    start: int = 20_000,
    *,
    value: bytes = b'{"amount": "12,50"}',
    error: str = "no number",
) -> str:
    """A batch of one record, which cannot be processed; the batch's key."""
    one = PlannedRange(OffsetRange("orders", 0, start, start + 1), start + 1, "rate")
    batch = PlannedBatch(gate, "run", (one,), "rate", "localhost:9", lag=1)
    key = ledger.batches.begin(batch).batch_key
    report = ErrorReport("ValueError", error, "")
    headers = (("trace", b"1"), (HOSTILE, None))
    letter = DeadLetter("orders", 0, start, b"key", value, headers, wall_clock_ms(), 0, report)
    convict(ledger, key, letter)
    return key


def a_ledger(url: str, *gates: str, batches: int = 5) -> str:
    """A ledger whose gates have had some batches; its URL."""
    with Ledger.open(url) as ledger:
        for gate in gates or ("orders",):
            ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
            for number in range(batches):
                add_batch(ledger, gate, number * 100)
    return url
