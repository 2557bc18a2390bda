"""Batches that have failed, for ``headrace backfill``."""

from headrace.core.ranges import OffsetRange
from headrace.ledger import BatchRecord, Ledger, PlannedBatch, PlannedRange


def one_range(offsets: OffsetRange, gate: str = "orders", servers: str = "x:1") -> PlannedBatch:
    return PlannedBatch(gate, "run", (PlannedRange(offsets),), "rate", servers)


def add_failed(
    ledger: Ledger, gate: str, offsets: OffsetRange, servers: str, *, source: str = "kafka"
) -> BatchRecord:
    ledger.declare_gate(gate, interval_ms=1_000, source=source, estimator="pid")
    batch = ledger.begin(one_range(offsets, gate, servers))
    ledger.fail(batch.schedule_id, ValueError("it was down"))
    found = ledger.batch(batch.schedule_id)
    assert found is not None
    return found
