"""The picture of a gate: readable, bounded, and made of anything the ledger may hold."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.cli.histories import NOW_MS, a_batch, a_gate, ranges, text_of, with_lags

from headrace.cli.gate_view import BATCHES, PARTITIONS, gate_view, overview
from headrace.cli.snapshot import GateHistory, take_snapshot
from headrace.control.ranges import OffsetRange
from headrace.ledger import (
    BatchRecord,
    ErrorReport,
    GateRecord,
    Kind,
    Loss,
    NotMadeGood,
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


def test_a_gate_without_a_batch_has_a_picture() -> None:
    text = text_of(gate_view(take_snapshot(GateHistory(a_gate(rate_per_s=None)), NOW_MS)))
    assert "No batch yet." in text
    assert "orders · kafka · every 1.00 s" in text


def test_a_backlog_is_shown_with_its_time_to_drain() -> None:
    history = replace(with_lags(9_000, 8_500, 8_000), ranges=ranges([5_000, 3_000]))
    text = text_of(gate_view(take_snapshot(history, NOW_MS)))
    assert "Draining: 7,000 records left waiting, about 16.0 s to go." in text
    assert "↓ falling 500/s · arriving 500/s · admitted 1,000/s" in text
    assert "limited by: rate" in text


def test_the_bar_of_a_late_batch_crosses_the_mark_of_its_interval() -> None:
    late = replace(with_lags(9_000, 8_500), batches=(_lasting(2_000), _lasting(500, number=1)))
    rows = text_of(gate_view(take_snapshot(late, NOW_MS))).splitlines()
    long, short = (next(row for row in rows if f"#{n} " in row) for n in (0, 1))
    assert "┃█" in long
    assert "┃" not in short
    assert short.index(" │ ") == long.index("┃") - 1, "the marks stand below each other"


def _lasting(duration_ms: int, number: int = 0) -> BatchRecord:
    begun_ms = NOW_MS - duration_ms - number
    return replace(a_batch(number, begun_ms, 9_000), end_time_ms=begun_ms + duration_ms)


def test_of_many_partitions_those_that_lag_most_are_shown_and_the_others_in_one_line() -> None:
    history = replace(with_lags(9_000), ranges=ranges(range(300)))
    text = text_of(gate_view(take_snapshot(history, NOW_MS)))
    assert [f"orders-{n} " in text for n in (299, 293, 292, 0)] == [True, True, False, False]
    shown = PARTITIONS - 1
    others = f"and {300 - shown} others"
    (line,) = [row for row in text.splitlines() if others in row]
    assert f"{sum(range(300 - shown)):,}" in line


def test_few_partitions_are_shown_in_their_order() -> None:
    history = replace(with_lags(9_000), ranges=ranges([5, 900, 20]))
    text = text_of(gate_view(take_snapshot(history, NOW_MS)))
    assert text.index("orders-0 ") < text.index("orders-1 ") < text.index("orders-2 ")


def test_failures_and_losses_are_told_at_the_end() -> None:
    error = ErrorReport("ValueError", "\x1b[31mbad [order] {12}", "")
    history = GateHistory(
        a_gate(),
        (a_batch(0, NOW_MS, 10, status=Status.FAILED, error=error),),
        losses=(Loss("orders", 1, OffsetRange("orders", 0, 5, 25)),),
        unresolved=NotMadeGood(failed=1, letters=2),
    )
    text = text_of(gate_view(take_snapshot(history, NOW_MS)), width=140)
    assert "20 records lost before they were read · 1 failed batch to be run again" in text
    assert "2 dead letters" in text
    assert "Failed: ValueError:  [31mbad [order] {12}" in text
    assert "#0 failed" in text


def test_a_picture_without_colours_has_no_escapes_and_one_with_colours_the_same_words() -> None:
    snapshot = take_snapshot(with_lags(*range(9_000, 3_000, -500)), NOW_MS)
    plain = text_of(gate_view(snapshot))
    assert "\x1b" not in plain
    assert len([row for row in plain.splitlines() if " │" in row and "#" in row]) == BATCHES


def test_several_gates_have_a_line_each() -> None:
    keeping_up = take_snapshot(with_lags(900, 1_000), NOW_MS)
    behind = replace(take_snapshot(with_lags(9_000, 9_500), NOW_MS), gate="payments")
    text = text_of(overview([keeping_up, behind]))
    assert "keeping up" in next(row for row in text.splitlines() if row.startswith("orders"))
    assert "falling behind" in next(row for row in text.splitlines() if row.startswith("payments"))


def receiver(
    lane: int, records_per_s: float, waiting: int = 0, age_ms: int = 500
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
        seen_ms=NOW_MS - age_ms,
    )


def test_receivers_are_one_line_and_those_not_seen_are_somebodys_work() -> None:
    told = (receiver(0, 2_500, waiting=7), receiver(1, 1_200), receiver(2, 80, age_ms=34_000))
    history = replace(with_lags(900), receivers=told)
    snapshot = take_snapshot(history, NOW_MS)
    text = text_of(gate_view(snapshot))
    (row,) = [row for row in text.splitlines() if "receivers " in row]
    assert "receivers  " in row
    assert " 2  taking in 3,700/s · at most 5,000/s · 1 limited" in row
    assert "1 receiver not seen: events lane 2 for 34.0 s" in text
    assert [each.state for each in snapshot.receivers] == ["limited", "receiving", "silent"]


def test_receivers_without_records_are_idle() -> None:
    history = replace(with_lags(900), receivers=(receiver(0, 0), receiver(1, 0)))
    text = text_of(gate_view(take_snapshot(history, NOW_MS)))
    assert "taking in 0/s · at most 5,000/s · idle" in text


def test_a_gate_without_receivers_has_no_line_for_them() -> None:
    assert "receiver" not in text_of(gate_view(take_snapshot(with_lags(900), NOW_MS)))
