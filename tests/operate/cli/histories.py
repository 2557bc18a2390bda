"""Histories of a gate to take snapshots of, and the text of a picture."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from headrace.core.ranges import OffsetRange
from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.receivers import ReceiverRecord
from headrace.gate.ledger.records import BatchRecord, GateRecord, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.states import GateHistory

NOW_MS = 1_700_000_000_000
INTERVAL_MS = 1_000
DURATION_MS = 900


def a_gate(rate_per_s: float | None = 1_000.0) -> GateRecord:
    return GateRecord(
        name="orders",
        interval_ms=INTERVAL_MS,
        source="kafka",
        estimator=EstimatorSettings().to_text(),
        created_ms=NOW_MS - 3_600_000,
        rate_per_s=rate_per_s,
        rate_time_ms=NOW_MS,
    )


def learnt(
    gate: GateRecord,
    *,
    fixed_s: float,
    record_s: float = 52e-6,
    law: str = "pid",
    changed_ms: int | None = None,
) -> GateRecord:
    """The gate once it knows what its batches cost."""
    known = (0.01 * fixed_s) ** 2, 0.0, (0.01 * record_s) ** 2
    cost = SourceCost(fixed_s, record_s, *known, noise=0.08, changed_ms=changed_ms)
    settings = EstimatorSettings(law)
    return replace(gate, batch_cost=cost.to_text(), estimator=settings.to_text())


def a_batch(  # noqa: PLR0917  (a row has the columns it has)
    number: int,
    created_ms: int,
    lag: int | None,
    planned: int = 1_000,
    status: Status = Status.SUCCESS,
    error: ErrorReport | None = None,
    checkpoint_id: str = "run",
) -> BatchRecord:
    return BatchRecord(
        batch_key=f"{checkpoint_id} {number}",
        gate="orders",
        checkpoint_id=checkpoint_id,
        status=status,
        attempts=1,
        query_batch_id=number,
        created_time_ms=created_ms,
        start_time_ms=created_ms + 10,
        end_time_ms=None if status is Status.IN_PROGRESS else created_ms + DURATION_MS,
        reason="rate",
        planned_records=planned,
        lag=lag,
        rate_per_s=1_000.0,
        records=None,
        error=error,
    )


def in_parts(*, runs: int, left: int) -> BatchRecord:
    """A batch of 7 131 records that is run in parts now."""
    batch = a_batch(1, NOW_MS, None, 7_131, Status.IN_PROGRESS)
    return replace(batch, progress=Progress(runs=runs).to_text(), done_records=7_131 - left)


def with_lags(*lags: int | None, planned: int = 1_000, ended_ms_ago: int = 100) -> GateHistory:
    """One batch each second with these lags, the oldest first; the last ended just now."""
    last_ms = NOW_MS - ended_ms_ago - DURATION_MS
    batches = [
        a_batch(number, last_ms - (len(lags) - 1 - number) * 1_000, lag, planned)
        for number, lag in enumerate(lags)
    ]
    return GateHistory(a_gate(), tuple(reversed(batches)))


def ranges(lags: Sequence[int], admitted: int = 10) -> tuple[PlannedRange, ...]:
    """A partition for each lag, all at offset 100."""
    return tuple(
        PlannedRange(OffsetRange("orders", number, 100, 100 + admitted), 100 + lag, "rate")
        for number, lag in enumerate(lags)
    )


def a_receiver(
    lane: int,
    records_per_s: float,
    waiting: int = 0,
    age_ms: int = 500,
    refusing: str | None = None,
) -> ReceiverRecord:
    return ReceiverRecord(
        gate="orders",
        journal_id="5ca1ab1e",
        lane=lane,
        journal="events",
        owner="me",
        started_ms=NOW_MS - 60_000,
        limit_per_s=2_500.0,
        most_per_s=None,
        records_per_s=records_per_s,
        records=10_000,
        bytes=1_000_000,
        buffered_bytes=300,
        waiting_records=waiting,
        refusing=refusing,
        rejected={"HTTP 429": 12},
        seen_ms=NOW_MS - age_ms,
    )


def text_of(picture: RenderableType, width: int = 100) -> str:
    """Return the text that a pipe is given: without colours."""
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(picture)
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()
