"""Batches, rate samples and a clock for the ledger's tests; and what an error shows."""

import traceback

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.receivers import ReceiverReport
from headrace.gate.ledger.records import (
    BatchRecord,
    DeadLetter,
    PlannedBatch,
    PlannedRange,
    RateSample,
)
from headrace.gate.ledger.transitions import Status


def a_batch(
    *ranges: OffsetRange, gate: str = "orders", checkpoint_id: str = "run", reason: str = "rate"
) -> PlannedBatch:
    """A planned batch of these ranges, or of offsets 10 to 20 of one partition."""
    offsets = ranges or (OffsetRange("orders", 0, 10, 20),)
    return PlannedBatch(
        gate=gate,
        checkpoint_id=checkpoint_id,
        ranges=tuple(PlannedRange(each, latest=each.until + 5, reason="share") for each in offsets),
        reason=reason,
        bootstrap_servers="localhost:9092",
        lag=100,
        rate_per_s=50.5,
    )


def a_range(start: int, until: int, partition: int = 0) -> OffsetRange:
    """Offsets of the topic ``orders``."""
    return OffsetRange("orders", partition, start, until)


def convict(ledger: Ledger, key: str, *letters: DeadLetter, owner: str = "me") -> None:
    """Keep records of a batch as dead letters, as if the others had passed: it is a success."""
    batches, done = ledger.batches, Progress(done=frozenset([""]))
    if stored(ledger, key).status is Status.IN_PROGRESS:
        assert batches.attach(key, 1, owner=owner, lease_ms=30_000)
    assert batches.keep_progress(key, owner, done, *letters)
    assert batches.succeed(key, owner=owner) or batches.backfilled(key, owner)


def stored(ledger: Ledger, key: str) -> BatchRecord:
    """A batch that is in the ledger."""
    found = ledger.batches.get(key)
    assert found is not None
    return found


def declare_clicks(ledger: Ledger) -> None:
    """Have a second gate."""
    ledger.gates.declare("clicks", interval_ms=500, source="kafka", estimator="pid")


def batch_number(number: int, gate: str = "orders") -> PlannedBatch:
    """One of a sequence of batches that follow each other."""
    return a_batch(OffsetRange("orders", 0, number * 10, number * 10 + 10), gate=gate)


def a_sample(
    time_ms: int,
    rate_per_s: float | None = 100.0,
    *,
    gate: str = "orders",
    records: int = 80,
    batch_key: str | None = None,
) -> RateSample:
    """Return an estimator's sample of a batch."""
    return RateSample(
        gate=gate,
        time_ms=time_ms,
        rate_per_s=rate_per_s,
        records=records,
        processing_delay_ms=800,
        scheduling_delay_ms=20,
        processing_rate_per_s=100.0,
        proportional=12.5,
        integral=0.25,
        derivative=0.0,
        query_batch_id=7,
        batch_key=batch_key,
    )


def a_receiver(
    *, gate: str = "orders", journal_id: str = "5ca1ab1e", lane: int = 0, owner: str = "me"
) -> ReceiverReport:
    """Return a receiver's report."""
    return ReceiverReport(
        gate=gate,
        journal_id=journal_id,
        lane=lane,
        journal="events",
        owner=owner,
        started_ms=1_000,
        limit_per_s=100.5,
        most_per_s=None,
        records_per_s=80.0,
        records=400,
        bytes=8_000,
        buffered_bytes=300,
        waiting_records=7,
        refusing=None,
        rejected={},
    )


def everything_of(error: BaseException) -> str:
    """All that a log could show of an exception, whatever chain it follows."""
    linked = [other for other in (error.__cause__, error.__context__) if other is not None]
    own = "".join(traceback.format_exception(error)) + repr(error)
    return own + "".join(map(everything_of, linked))
