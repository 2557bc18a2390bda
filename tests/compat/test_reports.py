"""Contents of a batch's report on each version of Spark."""

from dataclasses import replace
from uuid import uuid4

from tests.gate.execution.events import gated_source, planned, progress

from headrace.core.ranges import OffsetRange
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution.listener import GateListener
from headrace.gate.ledger.ledger import Ledger
from headrace.spark_versions import PLANS_FROM_START

START_MS = 1_700_000_000_000


def test_a_batch_after_one_that_left_a_backlog_is_late_by_what_that_one_overran(
    ledger: Ledger,
) -> None:
    """Before 4.2 Spark does not report how far the log goes, and the ledger's row says it."""
    run, ranges = uuid4(), [OffsetRange("t", 0, 0, 500), OffsetRange("t", 0, 500, 900)]
    ledger.gates.declare(
        "orders", interval_ms=1_000, source="kafka", estimator=EstimatorSettings().to_text()
    )
    for each in ranges:
        ledger.batches.begin(replace(planned("orders", each), lag=each.count + 50))
    listener = GateListener(lambda _gate, _run: ledger)
    for number, each in enumerate(ranges):
        unread = 50 if PLANS_FROM_START else 0
        source = gated_source("orders", each, unread=unread, first=number == 0)
        start_ms = START_MS + number * 2_000
        event = progress(source, run=run, batch_id=number, start_ms=start_ms, duration_ms=1_700)
        listener.onQueryProgress(event)
    assert ledger.rates.history("orders")[0].scheduling_delay_ms == 700
