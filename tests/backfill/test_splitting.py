"""Batches that are split: too large for now, or partly gone; those that are not; and the ranges."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backfill.runners import (
    ERROR,
    LEASE_MS,
    WIDE,
    Backfill,
    Offsets,
    all_of,
    one_that_failed,
    processed,
    whole,
)
from tests.ledger.samples import HALVES, a_batch, stored

from headrace.backfill import Done, Failed, MarkedDead, Skipped, Split
from headrace.backfill.splitting import earlier_and_later, gone_and_there, one_of_each
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import CorruptionError, DataLossError
from headrace.ledger import BatchRecord, Ledger, PlannedRange, Status
from headrace.testing import ManualClock


def text_of(children: Sequence[BatchRecord], ledger: Ledger) -> list[list[str]]:
    return [
        [str(each.offsets) for each in ledger.batches.ranges(row.batch_key)] for row in children
    ]


def test_a_batch_too_large_for_now_is_halved_until_it_is_not_and_the_earlier_half_is_first(
    ledger: Ledger, clock: ManualClock
) -> None:
    key, backfill = one_that_failed(ledger, WIDE), Backfill(ledger, clock, most=9)
    split = backfill.work_on(key)
    assert isinstance(split, Split)
    assert text_of(split.children, ledger) == [
        ["orders-0 [10, 15)", "orders-1 [5, 9)"],
        ["orders-0 [15, 20)", "orders-1 [9, 12)"],
    ]
    assert stored(ledger, key).status is Status.SUCCESS
    assert [(row.status, row.attempts, row.error) for row in split.children] == [
        (Status.FAILED, 1, ERROR)
    ] * 2
    assert backfill.runner.runs == []
    backfill.budget.most = 5
    while batches := ledger.batches.failed("orders"):
        backfill.work_on(batches[0].batch_key)
    assert backfill.event_names.count("Split") == 3
    runs = [offsets for _, offsets in backfill.runner.runs]
    assert sorted(sum(r.count for r in offsets) for offsets in runs) == [4, 4, 4, 5]
    assert runs[0] == (OffsetRange("orders", 0, 10, 13), OffsetRange("orders", 1, 5, 7))
    assert processed(backfill.runner) == whole(key, ledger)


def test_a_batch_that_may_be_in_its_sink_already_is_run_whole_under_its_key(
    ledger: Ledger, clock: ManualClock
) -> None:
    raised = one_that_failed(ledger, a_batch(OffsetRange("orders", 0, 0, 10)))
    assert ledger.batches.claim(raised, "other", LEASE_MS)
    assert ledger.batches.release(raised, "other", ERROR, max_backfills=10)
    crashed = one_that_failed(ledger, a_batch(OffsetRange("orders", 0, 10, 20)))
    assert ledger.batches.claim(crashed, "other", LEASE_MS)
    abandoned = ledger.batches.begin(a_batch(OffsetRange("orders", 0, 20, 30))).batch_key
    ledger.batches.attach(abandoned, 7, owner="driver", lease_ms=LEASE_MS)
    clock.now_ms += LEASE_MS
    assert ledger.batches.resolve_abandoned("orders", but=None, unowned_before_ms=0) == [abandoned]
    backfill = Backfill(ledger, clock, most=1)
    keys = [raised, crashed, abandoned]
    assert [type(backfill.work_on(key)) for key in keys] == [Done] * 3
    assert backfill.runner.keys == keys


def test_a_child_whose_outcome_is_unknown_may_be_in_its_sink_too(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, a_batch())
    assert ledger.batches.claim(key, "other", LEASE_MS)
    first, second = (row.batch_key for row in ledger.batches.split(key, HALVES, "other", LEASE_MS))
    assert ledger.batches.fail(second, ERROR, owner="other")
    clock.now_ms += LEASE_MS  # the other one crashed as it ran the first
    backfill = Backfill(ledger, clock, most=2)
    outcomes = [backfill.work_on(each) for each in (key, first, second)]
    assert [type(outcome) for outcome in outcomes] == [Split, Done, Split]


def test_a_batch_that_raised_whenever_the_stream_ran_it_is_split(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = ledger.batches.begin(WIDE).batch_key
    ledger.batches.attach(key, 7, owner="driver", lease_ms=LEASE_MS)
    assert ledger.batches.retry(key, "driver", LEASE_MS)
    assert ledger.batches.fail(key, ERROR, owner="driver")
    assert ledger.batches.begin(WIDE).attempts == 3
    assert ledger.batches.fail(key, ERROR)
    assert isinstance(Backfill(ledger, clock, most=5).work_on(key), Split)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_is_still_there_of_a_batch_is_not_lost_with_what_is_gone_before_or_while_it_runs(
    ledger: Ledger, clock: ManualClock, *, meanwhile: bool
) -> None:
    key, backfill = one_that_failed(ledger, WIDE), Backfill(ledger, clock)
    begins = {TopicPartition("orders", 0): 13}

    def lose(_batch: BatchRecord, _offsets: Offsets) -> None:
        if not backfill.runner.begins:
            backfill.runner.begins = begins
            raise DataLossError("orders-0 [10, 13) are gone.")

    backfill.runner.handler = lose
    backfill.runner.begins = {} if meanwhile else begins
    split = backfill.work_on(key)
    assert isinstance(split, Split)
    assert (stored(ledger, key).status, stored(ledger, key).backfills) == (Status.SUCCESS, 0)
    backfill.runner.runs.clear()
    gone, there = (row.batch_key for row in split.children)
    assert [row.batch_key for row in ledger.batches.failed("orders")] == [gone, there]
    dead = backfill.work_on(gone)
    assert isinstance(dead, MarkedDead)
    assert "processed: orders-0 [10, 13);" in dead.error.message
    assert isinstance(backfill.work_on(there), Done)
    assert processed(backfill.runner) == [p for p in whole(key, ledger) if p >= (0, 13)]
    assert {str(each.offsets): each.status for each in ledger.history.coverage("orders")} == {
        "orders-0 [10, 13)": Status.DEAD,
        "orders-0 [13, 20)": Status.SUCCESS,
        "orders-1 [5, 12)": Status.SUCCESS,
    }


@pytest.mark.parametrize("error", [DataLossError("it is gone."), CorruptionError("it is damaged.")])
def test_a_batch_that_cannot_be_read_is_never_dead_for_that(
    ledger: Ledger, clock: ManualClock, error: Exception
) -> None:
    def fail(_batch: BatchRecord, _offsets: Offsets) -> None:
        raise error

    key = one_that_failed(ledger, WIDE)
    backfill = Backfill(ledger, clock, fail, max_backfills=1)
    assert [type(backfill.work_on(key)) for _ in range(3)] == [Failed] * 3
    assert stored(ledger, key).status is Status.FAILED


def test_a_batch_of_which_another_still_runs_a_child_is_waited_for(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, a_batch())
    assert ledger.batches.claim(key, "other", LEASE_MS)
    first, second = (row.batch_key for row in ledger.batches.split(key, HALVES, "other", LEASE_MS))
    clock.now_ms += LEASE_MS - 1
    assert ledger.batches.renew(second, "other", LEASE_MS)
    clock.now_ms += 1
    backfill = Backfill(ledger, clock)
    assert backfill.work_on(key) == Skipped(key)
    assert stored(ledger, key).status is Status.BACKFILLING
    assert [each.status for each in ledger.batches.children(key)] == [
        Status.FAILED,
        Status.IN_PROGRESS,
    ]
    assert ledger.batches.succeed(second, owner="other")
    clock.now_ms += LEASE_MS
    assert isinstance(backfill.work_on(key), Split)
    assert [each.batch_key for each in ledger.batches.failed()] == [first]


batches = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=6).map(
    lambda rows: [
        PlannedRange(OffsetRange("orders", number, start, start + count), topic_id=f"id {number}")
        for number, (start, count) in enumerate(rows)
    ]
)


def offsets_of(ranges: Sequence[PlannedRange]) -> list[tuple[int, int]]:
    return all_of(each.offsets for each in ranges)


@given(batches)
def test_both_halves_are_the_whole_and_even_and_of_each_partition_the_first_has_the_earlier(
    batch: list[PlannedRange],
) -> None:
    first, second = earlier_and_later(batch)
    assert sorted(offsets_of(first) + offsets_of(second)) == sorted(offsets_of(batch))
    assert 0 <= len(offsets_of(first)) - len(offsets_of(second)) <= 1
    assert all(each.offsets.count for each in (*first, *second))
    of_first, of_second = ({each.offsets.partition: each for each in p} for p in (first, second))
    for each in batch:
        number = each.offsets.partition
        if each.offsets.count > 1:
            assert of_first[number].offsets.until == of_second[number].offsets.start
            assert of_first[number].topic_id == of_second[number].topic_id == each.topic_id


@given(batches, st.sets(st.tuples(st.integers(0, 5), st.integers(0, 95))), st.data())
def test_what_is_gone_and_what_is_there_are_the_whole_and_each_child_has_a_partition_once(
    batch: list[PlannedRange], holes: set[tuple[int, int]], data: st.DataObject
) -> None:
    begins = [(each.offsets, data.draw(st.integers(0, each.offsets.count + 3))) for each in batch]
    lost = [OffsetRange(o.topic, o.partition, o.start, o.start + n) for o, n in begins if n]
    lost += [OffsetRange("orders", p, o, o + 1) for p, o in holes & set(offsets_of(batch))]
    gone, there = gone_and_there(batch, lost)
    assert set(offsets_of(gone)) == set(all_of(lost)) & set(offsets_of(batch))
    assert sorted(offsets_of(gone) + offsets_of(there)) == sorted(offsets_of(batch))
    children = one_of_each(there)
    assert sorted(o for each in children for o in offsets_of(each)) == sorted(offsets_of(there))
    for child in children:
        partitions = [each.offsets.partition for each in child]
        assert len(partitions) == len(set(partitions))


def test_what_is_gone_of_another_partition_is_refused() -> None:
    batch = [PlannedRange(OffsetRange("orders", 0, 10, 20))]
    with pytest.raises(ValueError, match="orders-1 is not in the batch"):
        gone_and_there(batch, [OffsetRange("orders", 1, 10, 14)])
