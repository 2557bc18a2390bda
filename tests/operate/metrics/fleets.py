"""Ledgers with gates that fare in different ways, for metrics."""

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, DeadLetter, PlannedBatch, PlannedRange
from headrace.testing import ManualClock

ERROR = ErrorReport("ValueError", "no", "")


def plan(  # noqa: PLR0917  (as short as a row of a table)
    ledger: Ledger, start: int, count: int, latest: int, gate: str = "orders", reason: str = "rate"
) -> BatchRecord:
    """Begin the batch of these offsets of one partition, which ended there."""
    planned = PlannedRange(OffsetRange("orders", 0, start, start + count), latest, reason)
    return ledger.batches.begin(
        PlannedBatch(gate, "run", (planned,), reason, "localhost:9092", lag=latest - start)
    )


def done(  # noqa: PLR0917  (the same)
    ledger: Ledger, clock: ManualClock, start: int, count: int, latest: int, took_ms: int = 400
) -> BatchRecord:
    """A batch that has succeeded; time passes by."""
    batch = plan(ledger, start, count, latest)
    clock.now_ms += took_ms
    ledger.batches.succeed(batch.batch_key)
    return batch


def letter(offset: int) -> DeadLetter:
    return DeadLetter("orders", 0, offset, b"k", b"v", None, 0, 0, ERROR)
