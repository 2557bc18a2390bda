from dataclasses import replace

import pytest
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import (
    a_batch,
    a_sample,
    batch_number,
    declare_clicks,
    stored,
)
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import MAX_MESSAGE_LENGTH, MAX_TRACE_LENGTH, ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedBatch, PlannedRange, part_key
from headrace.gate.ledger.tables import batch_range, batch_table
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")


def test_transition_a_writes_the_batch_down_as_planned(ledger: Ledger, clock: ManualClock) -> None:
    batch = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 7))
    assert ledger.batches.begin(batch) == BatchRecord(
        batch_key=batch.batch_key,
        gate="orders",
        checkpoint_id="run",
        status=Status.IN_PROGRESS,
        attempts=1,
        created_time_ms=clock(),
        reason="rate",
        planned_records=12,
        lag=100,
        rate_per_s=50.5,
    )


def test_transition_a_keeps_the_ranges_in_order_and_leaves_empty_ones_out(ledger: Ledger) -> None:
    first = PlannedRange(
        OffsetRange("a", 9, 2**62, 2**62 + 1), latest=2**62 + 3, reason="share", topic_id="x"
    )
    second = PlannedRange(OffsetRange("b", 0, 0, 5), latest=None, reason=None)
    third = PlannedRange(OffsetRange("b", 10, 3, 4), latest=4, reason="nothing left")
    empty = PlannedRange(OffsetRange("b", 11, 3, 3))
    batch = ledger.batches.begin(replace(a_batch(), ranges=(third, empty, first, second)))
    assert ledger.batches.ranges(batch.batch_key) == (first, second, third)


def test_a_batch_tells_the_brokers_it_was_planned_on(ledger: Ledger) -> None:
    batch = ledger.batches.begin(replace(a_batch(), bootstrap_servers="one:9092,two:9092"))
    ledger.batches.begin(replace(batch_number(5), bootstrap_servers="other:9092"))
    assert ledger.batches.servers(batch.batch_key) == "one:9092,two:9092"
    assert ledger.batches.servers("none") is None


def test_transition_a_takes_five_hundred_ranges(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", partition, 0, partition + 1) for partition in range(500)]
    batch = ledger.batches.begin(a_batch(*ranges))
    assert [planned.offsets for planned in ledger.batches.ranges(batch.batch_key)] == ranges


def test_transition_a_gives_every_batch_a_later_created_time_though_the_clock_is_set_back(
    ledger: Ledger, clock: ManualClock
) -> None:
    first = ledger.batches.begin(batch_number(1))
    second = ledger.batches.begin(batch_number(2))
    clock.now_ms -= 60_000
    third = ledger.batches.begin(batch_number(3))
    assert second.created_time_ms == first.created_time_ms + 1
    assert third.created_time_ms == first.created_time_ms + 2
    assert ledger.batches.newest("orders") == (third, second, first)


def test_transition_a_refuses_a_batch_that_reads_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'orders' has no offsets to read"):
        ledger.batches.begin(a_batch(OffsetRange("orders", 0, 10, 10)))
    assert ledger.batches.newest("orders") == ()


def test_transition_a_refuses_a_batch_of_an_undeclared_gate(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ledger.batches.begin(a_batch(gate="clicks"))
    assert ledger.batches.newest("clicks") == ()


def test_transition_a_writes_nothing_of_a_batch_with_a_range_twice(ledger: Ledger) -> None:
    batch = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 0, 10, 30))
    with pytest.raises(LedgerError, match="has refused a write"):
        ledger.batches.begin(batch)
    assert ledger.batches.get(batch.batch_key) is None
    assert ledger.batches.ranges(batch.batch_key) == ()


def test_transition_b_counts_an_attempt_and_keeps_the_first_plan(
    ledger: Ledger, clock: ManualClock
) -> None:
    first = ledger.batches.begin(a_batch())
    ranges = ledger.batches.ranges(first.batch_key)
    ledger.batches.attach(first.batch_key, 7)
    clock.now_ms += 1_000
    planned_anew = replace(a_batch(reason="run again"), lag=None, rate_per_s=None)
    again = replace(first, attempts=2, query_batch_id=7, outcome_unknown=True)
    assert ledger.batches.begin(planned_anew) == again
    assert ledger.batches.ranges(first.batch_key) == ranges
    assert ledger.batches.newest("orders") == (again,)


def test_transition_b_takes_the_ranges_in_any_order(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 5, 7)]
    ledger.batches.begin(a_batch(*ranges))
    empty = OffsetRange("orders", 2, 5, 5)
    assert ledger.batches.begin(a_batch(*reversed(ranges), empty)).attempts == 2


def test_transition_c_takes_a_failed_batch_up_without_its_error(ledger: Ledger) -> None:
    first = ledger.batches.begin(a_batch())
    ledger.batches.attach(first.batch_key, 7)
    ledger.batches.fail(first.batch_key, ERROR)
    assert ledger.batches.begin(a_batch()) == replace(first, attempts=2, query_batch_id=7)


def test_transitions_b_and_c_refuse_a_batch_whose_row_has_other_ranges(
    ledger: Ledger, execute: Execute
) -> None:
    batch = ledger.batches.begin(a_batch())
    execute(batch_range.update().values(until_offset=19))
    with pytest.raises(LedgerError, match=f"ranges of batch {batch.batch_key} .* differ"):
        ledger.batches.begin(a_batch())
    assert ledger.batches.get(batch.batch_key) == batch


def test_a_batch_in_progress_has_its_number_and_when_it_started(
    ledger: Ledger, clock: ManualClock
) -> None:
    batch = ledger.batches.begin(a_batch())
    clock.now_ms += 20
    assert ledger.batches.attach(batch.batch_key, 7)
    attached = replace(batch, query_batch_id=7, start_time_ms=clock())
    assert ledger.batches.get(batch.batch_key) == attached
    assert ledger.batches.attach(batch.batch_key, 8, start_time_ms=5)
    assert ledger.batches.get(batch.batch_key) == replace(batch, query_batch_id=8, start_time_ms=5)


def test_transition_d_keeps_the_records_that_a_rate_sample_has(ledger: Ledger) -> None:
    batch = ledger.batches.begin(a_batch())
    report_sample(ledger, a_sample(1_000, records=8, batch_key=batch.batch_key))
    assert ledger.batches.succeed(batch.batch_key)
    assert ledger.batches.newest("orders")[0].records == 8


def test_transition_e_bounds_what_it_keeps_of_any_exception(ledger: Ledger) -> None:
    batch = ledger.batches.begin(a_batch())
    error = ValueError("no \x00 and no \ud800" + "x" * 100_000)
    assert ledger.batches.fail(batch.batch_key, error)
    stored = ledger.batches.newest("orders")[0].error
    assert stored == ErrorReport.of(error)
    assert stored.message.startswith(r"no \x00 and no \ud800")
    assert (len(stored.message), len(stored.trace)) == (MAX_MESSAGE_LENGTH, MAX_TRACE_LENGTH)


def test_a_transition_changes_no_other_batch(ledger: Ledger) -> None:
    first, second, third = (ledger.batches.begin(batch_number(number)) for number in range(3))
    ledger.batches.attach(second.batch_key, 7)
    ledger.batches.succeed(second.batch_key)
    ledger.batches.fail(third.batch_key, ERROR)
    assert ledger.batches.get(first.batch_key) == first


def test_what_was_begun_last_is_known_with_how_often_there_was_a_beginning(ledger: Ledger) -> None:
    declare_clicks(ledger)
    assert ledger.gates.last_begun("orders") is None
    first, second = (ledger.batches.begin(batch_number(number)) for number in (5, 3))
    click = ledger.batches.begin(batch_number(1, gate="clicks"))
    assert ledger.gates.last_begun("orders") == (2, second)
    assert ledger.gates.last_begun("clicks") == (1, click)
    ledger.batches.succeed(first.batch_key)
    again = ledger.batches.begin(batch_number(5))
    assert again.status is Status.SUCCESS
    assert ledger.gates.last_begun("orders") == (3, again)


def test_the_open_batch_is_the_newest_in_progress_of_the_live_stream(ledger: Ledger) -> None:
    assert ledger.batches.open_batch("orders") is None
    first, second = (ledger.batches.begin(batch_number(number)) for number in (1, 2))
    assert ledger.batches.open_batch("orders") == second
    ledger.batches.succeed(second.batch_key)
    assert ledger.batches.open_batch("orders") == first
    ledger.batches.fail(first.batch_key, ERROR)
    assert ledger.batches.open_batch("orders") is None


NO = ErrorReport("ValueError", "no", "")

LEASE_MS = 30_000


def one_of_mine(ledger: Ledger, batch: PlannedBatch | None = None) -> BatchRecord:
    begun = ledger.batches.begin(batch or a_batch())
    ledger.batches.attach(begun.batch_key, 7, owner="me", lease_ms=LEASE_MS)
    return begun


def test_batches_are_filtered_by_gate_status_and_time(ledger: Ledger, clock: ManualClock) -> None:
    declare_clicks(ledger)
    created = []
    for number in range(6):
        clock.now_ms += 10
        planned = batch_number(number, gate=("orders", "clicks")[number % 2])
        created.append(ledger.batches.begin(planned))
    ledger.batches.succeed(created[0].batch_key)
    ledger.batches.fail(created[1].batch_key, NO)
    ledger.batches.fail(created[2].batch_key, NO)
    numbers = {batch.batch_key: number for number, batch in enumerate(created)}

    def found(batches: tuple[BatchRecord, ...]) -> list[int]:
        return [numbers[batch.batch_key] for batch in batches]

    assert found(ledger.batches.newest()) == [5, 4, 3, 2, 1, 0]
    assert found(ledger.batches.newest(limit=2)) == [5, 4]
    assert found(ledger.batches.newest("orders")) == [4, 2, 0]
    assert found(ledger.batches.newest(statuses=[Status.FAILED])) == [2, 1]
    assert found(ledger.batches.newest(statuses=[Status.FAILED, Status.SUCCESS], limit=2)) == [2, 1]
    assert found(ledger.batches.newest("orders", statuses=[Status.FAILED, Status.SUCCESS])) == [
        2,
        0,
    ]
    since_ms, until_ms = created[1].created_time_ms, created[3].created_time_ms
    assert found(ledger.batches.newest(since_ms=since_ms)) == [5, 4, 3, 2, 1]
    assert found(ledger.batches.newest(since_ms=since_ms, until_ms=until_ms)) == [2, 1]
    assert found(ledger.batches.newest("nobody's")) == []


IN_PARTS = Progress(done=frozenset(["0", "10"]), running="11", unknown=frozenset(["11"]), runs=4)


def test_what_is_done_of_a_batch_is_its_owners_to_say_and_goes_with_its_success(
    ledger: Ledger,
) -> None:
    key = one_of_mine(ledger).batch_key
    assert not ledger.batches.keep_progress(key, "another", IN_PARTS)
    assert ledger.batches.keep_progress(key, "me", IN_PARTS)
    batch = stored(ledger, key)
    assert (batch.parts, batch.done_records, batch.records_left) == (IN_PARTS, 8, 2)
    assert [str(one.offsets) for one in batch.open_ranges(ledger.batches.ranges(key))] == [
        "orders-0 [18, 20)"
    ]
    assert ledger.batches.is_over(part_key(key, "011"))
    assert not ledger.batches.is_over(part_key(key, "11"))
    ledger.batches.fail(key, NO)
    assert stored(ledger, key).parts == IN_PARTS
    assert ledger.batches.claim(key, "me", LEASE_MS)
    assert ledger.batches.put_back(key, "me")
    batch = stored(ledger, key)
    assert (batch.status, batch.backfills, batch.parts) == (Status.FAILED, 0, IN_PARTS)
    assert ledger.batches.claim(key, "me", LEASE_MS)
    assert ledger.batches.backfilled(key, "me")
    batch = stored(ledger, key)
    assert (batch.progress, batch.records_left) == (None, 0)
    assert ledger.batches.is_over(part_key(key, "11"))


def test_a_part_commits_what_is_done_with_its_sink(ledger: Ledger) -> None:
    key = one_of_mine(ledger).batch_key
    with (
        pytest.raises(ValueError, match="no"),
        ledger.batches.transaction(key, "me", progress=IN_PARTS),
    ):
        raise ValueError("no")
    assert stored(ledger, key).progress is None
    with ledger.batches.transaction(key, "me", progress=IN_PARTS):
        pass
    batch = stored(ledger, key)
    assert (batch.status, batch.parts) == (Status.IN_PROGRESS, IN_PARTS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"done": ["0"]}',
        IN_PARTS.to_text().replace('"10"', '"2"'),
        IN_PARTS.to_text().replace('"10"', '"10000"'),
        IN_PARTS.to_text().replace('"10"', '"00"'),
        IN_PARTS.to_text().replace('"11"', "11"),
        IN_PARTS.to_text().replace(":4,", ":null,"),
        IN_PARTS.to_text().replace(":4,", ':4,"more":1,'),
        IN_PARTS.to_text().replace('"evidence":""', '"evidence":0'),
    ],
)
def test_a_progress_that_names_no_parts_of_its_batch_is_refused(
    ledger: Ledger, execute: Execute, text: str
) -> None:
    key = one_of_mine(ledger).batch_key
    execute(batch_table.update().values(progress=text))
    with pytest.raises(LedgerError, match=f"Batch {key} .* not valid for 10 offsets"):
        _ = stored(ledger, key).parts


def test_ranges_of_a_batch_that_share_an_offset_are_refused(
    ledger: Ledger, execute: Execute
) -> None:
    apart = a_batch(OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 0, 30, 35))
    key = ledger.batches.begin(apart).batch_key
    execute(batch_range.update().where(batch_range.c.start_offset == 30).values(start_offset=19))
    with pytest.raises(LedgerError, match=rf"Two ranges of batch {key} .* orders-0 \[19, 20\)"):
        ledger.batches.ranges(key)
