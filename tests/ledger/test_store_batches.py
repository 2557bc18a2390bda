"""The moves of a batch, each named by its letter in `headrace.ledger.status`."""

from dataclasses import replace

import pytest
from tests.ledger.conftest import Execute
from tests.ledger.samples import ManualClock, a_batch, a_sample, batch_number

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import BatchRecord, ErrorReport, Kind, Ledger, PlannedRange, Status
from headrace.ledger.records import MAX_MESSAGE_LENGTH, MAX_TRACE_LENGTH
from headrace.ledger.tables import control, failure

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")


def stands_at(ledger: Ledger, execute: Execute, status: Status) -> BatchRecord:
    """A batch with this status, by whatever way."""
    batch = ledger.begin(a_batch())
    execute(control.update().values(status=status))
    return replace(batch, status=status)


def test_arrow_a_writes_the_batch_down_as_planned(ledger: Ledger, clock: ManualClock) -> None:
    batch = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 7))
    assert ledger.begin(batch) == BatchRecord(
        schedule_id=batch.schedule_id,
        gate="orders",
        run_id="run",
        kind=Kind.LIVE,
        status=Status.IN_PROGRESS,
        attempts=1,
        query_batch_id=None,
        created_time_ms=clock(),
        start_time_ms=None,
        end_time_ms=None,
        reason="rate",
        planned_records=12,
        lag=100,
        rate_per_s=50.5,
        records=None,
        error=None,
    )


def test_arrow_a_keeps_the_ranges_in_order_and_leaves_empty_ones_out(ledger: Ledger) -> None:
    first = PlannedRange(
        OffsetRange("a", 9, 2**62, 2**62 + 1), latest=2**62 + 3, reason="share", topic_id="x"
    )
    second = PlannedRange(OffsetRange("b", 0, 0, 5), latest=None, reason=None)
    third = PlannedRange(OffsetRange("b", 10, 3, 4), latest=4, reason="nothing left")
    empty = PlannedRange(OffsetRange("b", 11, 3, 3))
    batch = ledger.begin(replace(a_batch(), ranges=(third, empty, first, second)))
    assert ledger.ranges(batch.schedule_id) == (first, second, third)


def test_a_batch_tells_the_brokers_it_was_planned_on(ledger: Ledger) -> None:
    batch = ledger.begin(replace(a_batch(), bootstrap_servers="one:9092,two:9092"))
    ledger.begin(replace(batch_number(5), bootstrap_servers="other:9092"))
    assert ledger.servers(batch.schedule_id) == "one:9092,two:9092"
    assert ledger.servers("none") is None


def test_arrow_a_takes_five_hundred_ranges(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", partition, 0, partition + 1) for partition in range(500)]
    batch = ledger.begin(a_batch(*ranges))
    assert [planned.offsets for planned in ledger.ranges(batch.schedule_id)] == ranges


def test_arrow_a_gives_every_batch_a_later_created_time_though_the_clock_is_set_back(
    ledger: Ledger, clock: ManualClock
) -> None:
    first = ledger.begin(batch_number(1))
    second = ledger.begin(batch_number(2))
    clock.now_ms -= 60_000
    third = ledger.begin(batch_number(3))
    assert second.created_time_ms == first.created_time_ms + 1
    assert third.created_time_ms == first.created_time_ms + 2
    assert ledger.batches("orders") == (third, second, first)


def test_arrow_a_refuses_a_batch_that_reads_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'orders' has no offsets to read"):
        ledger.begin(a_batch(OffsetRange("orders", 0, 10, 10)))
    assert ledger.batches("orders") == ()


def test_arrow_a_refuses_a_batch_of_an_undeclared_gate(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ledger.begin(a_batch(gate="clicks"))
    assert ledger.batches("clicks") == ()


def test_arrow_a_writes_nothing_of_a_batch_with_a_range_twice(ledger: Ledger) -> None:
    batch = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 0, 10, 30))
    with pytest.raises(LedgerError, match=r"has refused what was written, .* is undone"):
        ledger.begin(batch)
    assert ledger.batch(batch.schedule_id) is None
    assert ledger.ranges(batch.schedule_id) == ()


def test_arrow_b_counts_an_attempt_and_keeps_the_first_plan(
    ledger: Ledger, clock: ManualClock
) -> None:
    first = ledger.begin(a_batch())
    ranges = ledger.ranges(first.schedule_id)
    ledger.attach(first.schedule_id, 7)
    clock.now_ms += 1_000
    planned_anew = replace(a_batch(reason="run again"), lag=None, rate_per_s=None)
    again = replace(first, attempts=2, query_batch_id=7, cut_short=True)
    assert ledger.begin(planned_anew) == again
    assert ledger.ranges(first.schedule_id) == ranges
    assert ledger.batches("orders") == (again,)


def test_arrow_b_takes_the_ranges_in_any_order(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 7)]
    ledger.begin(a_batch(*ranges))
    empty = OffsetRange("orders", 2, 5, 5)
    assert ledger.begin(a_batch(*reversed(ranges), empty)).attempts == 2


def test_arrow_c_takes_a_failed_batch_up_without_its_error(ledger: Ledger) -> None:
    first = ledger.begin(a_batch())
    ledger.attach(first.schedule_id, 7)
    ledger.fail(first.schedule_id, ERROR)
    assert ledger.begin(a_batch()) == replace(first, attempts=2, query_batch_id=7)


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.BACKFILLING, Status.DEAD])
def test_there_is_no_arrow_from_another_status_to_in_progress(
    ledger: Ledger, execute: Execute, status: Status
) -> None:
    stored = stands_at(ledger, execute, status)
    assert ledger.begin(a_batch(reason="run again")) == stored
    assert ledger.batch(stored.schedule_id) == stored


def test_arrows_b_and_c_refuse_a_batch_whose_row_has_other_ranges(
    ledger: Ledger, execute: Execute
) -> None:
    batch = ledger.begin(a_batch())
    execute(failure.update().values(until_offset=19))
    with pytest.raises(LedgerError, match=f"has other ranges for batch {batch.schedule_id}"):
        ledger.begin(a_batch())
    assert ledger.batch(batch.schedule_id) == batch


def test_a_batch_in_progress_is_told_its_number_and_when_it_started(
    ledger: Ledger, clock: ManualClock
) -> None:
    batch = ledger.begin(a_batch())
    clock.now_ms += 20
    assert ledger.attach(batch.schedule_id, 7)
    attached = replace(batch, query_batch_id=7, start_time_ms=clock())
    assert ledger.batch(batch.schedule_id) == attached
    assert ledger.attach(batch.schedule_id, 8, start_time_ms=5)
    assert ledger.batch(batch.schedule_id) == replace(batch, query_batch_id=8, start_time_ms=5)


def test_arrow_d_ends_a_batch_well(ledger: Ledger, clock: ManualClock) -> None:
    batch = ledger.begin(a_batch())
    clock.now_ms += 800
    assert ledger.succeed(batch.schedule_id)
    succeeded = replace(batch, status=Status.SUCCESS, end_time_ms=clock())
    assert ledger.batch(batch.schedule_id) == succeeded


def test_arrow_d_counts_the_records_where_the_caller_knows(ledger: Ledger) -> None:
    batch = ledger.begin(a_batch())
    assert ledger.succeed(batch.schedule_id, records=9)
    assert ledger.batches("orders")[0].records == 9


def test_arrow_d_keeps_the_records_that_a_rate_sample_has_told(ledger: Ledger) -> None:
    batch = ledger.begin(a_batch())
    ledger.publish_rate(a_sample(1_000, records=8, schedule_id=batch.schedule_id))
    assert ledger.succeed(batch.schedule_id)
    assert ledger.batches("orders")[0].records == 8


def test_arrow_e_keeps_why_a_batch_failed(ledger: Ledger, clock: ManualClock) -> None:
    batch = ledger.begin(a_batch())
    clock.now_ms += 800
    assert ledger.fail(batch.schedule_id, ERROR)
    failed = replace(batch, status=Status.FAILED, end_time_ms=clock(), error=ERROR)
    assert ledger.batch(batch.schedule_id) == failed


def test_arrow_e_bounds_what_it_keeps_of_any_exception(ledger: Ledger) -> None:
    batch = ledger.begin(a_batch())
    error = ValueError("no \x00 and no \ud800" + "x" * 100_000)
    assert ledger.fail(batch.schedule_id, error)
    stored = ledger.batches("orders")[0].error
    assert stored == ErrorReport.of(error)
    assert stored.message.startswith(r"no \x00 and no \ud800")
    assert (len(stored.message), len(stored.trace)) == (MAX_MESSAGE_LENGTH, MAX_TRACE_LENGTH)


@pytest.mark.parametrize("status", [status for status in Status if status != Status.IN_PROGRESS])
def test_arrows_d_and_e_begin_at_in_progress_only(
    ledger: Ledger, execute: Execute, status: Status
) -> None:
    stored = stands_at(ledger, execute, status)
    assert not ledger.succeed(stored.schedule_id, records=9)
    assert not ledger.fail(stored.schedule_id, ERROR)
    assert not ledger.attach(stored.schedule_id, 7)
    assert ledger.batch(stored.schedule_id) == stored


def test_a_batch_that_is_not_in_the_ledger_does_not_move(ledger: Ledger) -> None:
    assert not ledger.succeed("nobody")
    assert not ledger.fail("nobody", ERROR)
    assert not ledger.attach("nobody", 7)
    assert ledger.batch("nobody") is None
    assert ledger.ranges("nobody") == ()


def test_a_move_changes_no_other_batch(ledger: Ledger) -> None:
    first, second, third = (ledger.begin(batch_number(number)) for number in range(3))
    ledger.attach(second.schedule_id, 7)
    ledger.succeed(second.schedule_id)
    ledger.fail(third.schedule_id, ERROR)
    assert ledger.batch(first.schedule_id) == first


def test_batches_come_newest_first_each_gate_for_itself(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    first, second, third = (ledger.begin(batch_number(number)) for number in (5, 3, 4))
    ledger.begin(batch_number(1, gate="clicks"))
    assert ledger.batches("orders") == (third, second, first)
    assert ledger.batches("orders", limit=2) == (third, second)


def test_what_was_begun_last_is_told_with_how_often_there_was_a_beginning(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    assert ledger.last_begun("orders") is None
    first, second = (ledger.begin(batch_number(number)) for number in (5, 3))
    click = ledger.begin(batch_number(1, gate="clicks"))
    assert ledger.last_begun("orders") == (2, second)
    assert ledger.last_begun("clicks") == (1, click)
    ledger.succeed(first.schedule_id)
    again = ledger.begin(batch_number(5))
    assert again.status is Status.SUCCESS
    assert ledger.last_begun("orders") == (3, again)


def test_the_open_batch_is_the_newest_in_progress_of_the_live_stream(ledger: Ledger) -> None:
    assert ledger.open_batch("orders") is None
    first, second = (ledger.begin(batch_number(number)) for number in (1, 2))
    ledger.begin(replace(batch_number(3), kind=Kind.BACKFILL))
    assert ledger.open_batch("orders") == second
    ledger.succeed(second.schedule_id)
    assert ledger.open_batch("orders") == first
    ledger.fail(first.schedule_id, ERROR)
    assert ledger.open_batch("orders") is None
