"""The picture of a gate: readable, bounded, and made of anything the ledger may hold."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.cli.histories import text_of

from headrace.cli.gate_view import gate_view, overview
from headrace.cli.snapshot import GateHistory, take_snapshot
from headrace.control.ranges import OffsetRange
from headrace.ledger import (
    BatchRecord,
    ErrorReport,
    GateRecord,
    Kind,
    Loss,
    PlannedRange,
    RateSample,
    ReceiverRecord,
    Status,
)

whole = st.integers(0, 2**63 - 1)
maybe = st.none() | whole
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=30)
errors = st.builds(ErrorReport, words, st.text(max_size=200), words)
batches = st.builds(
    BatchRecord,
    schedule_id=words,
    gate=words,
    run_id=st.sampled_from(["a", "b"]),
    kind=st.just(Kind.LIVE),
    status=st.sampled_from(Status),
    attempts=st.integers(1, 3),
    query_batch_id=maybe,
    created_time_ms=whole,
    start_time_ms=maybe,
    end_time_ms=maybe,
    reason=words,
    planned_records=whole,
    lag=maybe,
    rate_per_s=numbers,
    records=maybe,
    error=st.none() | errors,
)
samples = st.builds(
    RateSample,
    gate=words,
    time_ms=whole,
    rate_per_s=numbers,
    records=whole,
    processing_delay_ms=whole,
    scheduling_delay_ms=whole,
    processing_rate_per_s=numbers,
    proportional=numbers,
    integral=numbers,
    derivative=numbers,
)
offsets = st.builds(OffsetRange, words, st.integers(0, 2**31), whole, whole)
planned_ranges = st.builds(PlannedRange, offsets, maybe, st.none() | words)
receivers = st.builds(
    ReceiverRecord,
    gate=words,
    journal_id=words,
    lane=st.integers(0, 99_999),
    journal=words,
    owner=words,
    started_ms=whole,
    limit_per_s=numbers,
    records_per_s=st.floats(0, 1e300),
    records=whole,
    bytes=whole,
    buffered_bytes=whole,
    waiting_records=whole,
    seen_ms=whole,
)
histories = st.builds(
    GateHistory,
    gate=st.builds(
        GateRecord,
        name=words,
        interval_ms=st.integers(1, 2**40),
        source=words,
        estimator=words,
        created_ms=whole,
        rate_per_s=numbers,
        rate_time_ms=maybe,
    ),
    batches=st.lists(batches, max_size=20).map(tuple),
    samples=st.lists(samples, max_size=3).map(tuple),
    ranges=st.lists(planned_ranges, max_size=30).map(tuple),
    losses=st.lists(st.builds(Loss, words, whole, offsets), max_size=2).map(tuple),
    receivers=st.lists(receivers, max_size=3).map(tuple),
)


@given(histories, st.sampled_from([20, 80, 100, 200]), whole)
def test_whatever_the_ledger_holds_is_shown_within_the_terminal(
    history: GateHistory, width: int, now_ms: int
) -> None:
    snapshot = take_snapshot(history, now_ms)
    for picture in (gate_view(snapshot), overview([snapshot, snapshot])):
        lines = text_of(picture, width).splitlines()
        assert lines
        assert all(cell_len(line) <= width for line in lines)
    assert len(text_of(gate_view(snapshot), width).splitlines()) <= 28
