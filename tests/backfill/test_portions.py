from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backfill.splitting import earlier_and_later, gone_and_there, one_of_each
from headrace.control.ranges import OffsetRange
from headrace.ledger import PlannedRange

batches = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=6).map(
    lambda rows: [
        PlannedRange(OffsetRange("orders", number, start, start + count), topic_id=f"id {number}")
        for number, (start, count) in enumerate(rows)
    ]
)


def offsets(portion: Sequence[PlannedRange]) -> list[tuple[int, int]]:
    return [
        (each.offsets.partition, offset)
        for each in portion
        for offset in range(each.offsets.start, each.offsets.until)
    ]


@given(batches)
def test_both_portions_are_the_whole_and_even(batch: list[PlannedRange]) -> None:
    first, second = earlier_and_later(batch)
    assert sorted(offsets(first) + offsets(second)) == sorted(offsets(batch))
    assert 0 <= len(offsets(first)) - len(offsets(second)) <= 1
    assert all(each.offsets.count for each in (*first, *second))


@given(batches)
def test_each_partition_is_in_both_with_the_earlier_offsets_in_the_first(
    batch: list[PlannedRange],
) -> None:
    first, second = ({each.offsets.partition: each for each in p} for p in earlier_and_later(batch))
    for each in batch:
        number = each.offsets.partition
        if each.offsets.count > 1:
            assert first[number].offsets.until == second[number].offsets.start
            assert first[number].topic_id == second[number].topic_id == each.topic_id


@given(batches, st.data())
def test_what_is_gone_and_what_is_there_are_the_whole(
    batch: list[PlannedRange], data: st.DataObject
) -> None:
    gone = []
    for each in batch:
        o = each.offsets
        missing = data.draw(st.integers(0, o.count + 3))
        if missing:
            gone.append(OffsetRange(o.topic, o.partition, o.start, o.start + missing))
    before, after = gone_and_there(batch, gone)
    assert sorted(offsets(before) + offsets(after)) == sorted(offsets(batch))
    lost = {(r.partition, offset) for r in gone for offset in range(r.start, r.until)}
    assert lost.issuperset(offsets(before))
    assert lost.isdisjoint(offsets(after))


@given(batches, st.sets(st.tuples(st.integers(0, 5), st.integers(0, 90))))
def test_holes_are_parted_too_and_each_portion_of_the_rest_has_one_range_of_a_partition(
    batch: list[PlannedRange], holes: set[tuple[int, int]]
) -> None:
    missing = holes & set(offsets(batch))
    gone, there = gone_and_there(batch, [OffsetRange("orders", p, o, o + 1) for p, o in missing])
    assert set(offsets(gone)) == missing
    portions = one_of_each(there)
    assert sorted(o for each in portions for o in offsets(each)) == sorted(
        set(offsets(batch)) - missing
    )
    for portion in portions:
        partitions = [each.offsets.partition for each in portion]
        assert len(partitions) == len(set(partitions))


def test_what_is_gone_of_another_partition_is_refused() -> None:
    batch = [PlannedRange(OffsetRange("orders", 0, 10, 20))]
    with pytest.raises(ValueError, match="orders-1 is not in the batch"):
        gone_and_there(batch, [OffsetRange("orders", 1, 10, 14)])
