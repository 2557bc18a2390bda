"""Batches that have failed, for ``headrace backfill``."""

from headrace.core.ranges import OffsetRange
from headrace.ledger import BatchRecord, Ledger, PlannedBatch, PlannedRange


def one_range(offsets: OffsetRange, gate: str = "orders", servers: str = "x:1") -> PlannedBatch:
    return PlannedBatch(gate, "run", (PlannedRange(offsets),), "rate", servers)


def add_failed(
    ledger: Ledger, gate: str, offsets: OffsetRange, servers: str, *, source: str = "kafka"
) -> BatchRecord:
    ledger.gates.declare(gate, interval_ms=1_000, source=source, estimator="pid")
    batch = ledger.batches.begin(one_range(offsets, gate, servers))
    ledger.batches.fail(batch.schedule_id, ValueError("it was down"))
    found = ledger.batches.get(batch.schedule_id)
    assert found is not None
    return found
