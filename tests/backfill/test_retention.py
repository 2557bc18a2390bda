from hypothesis import given
from hypothesis import strategies as st

from headrace.backfill import OpenBatch
from headrace.backfill.monitor import RetentionWatch, near_retention
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.ledger import PlannedRange

PARTITION = TopicPartition("orders", 0)
RANGE = OffsetRange("orders", 0, 100, 110)
offsets = st.integers(0, 10**6)


def an_open_batch(key: str, *ranges: OffsetRange) -> OpenBatch:
    return OpenBatch(key, 0, 1, 0, tuple(map(PlannedRange, ranges or (RANGE,))))


def is_near(first: int, now: int) -> bool:
    return near_retention([RANGE], {PARTITION: first}, {PARTITION: now}) == (RANGE,)


def test_retention_is_near_when_half_the_way_is_gone() -> None:
    assert [is_near(40, now) for now in (40, 69, 70, 100, 200)] == [False, False, True, True, True]


def test_where_nothing_is_deleted_nothing_is_near() -> None:
    assert not is_near(100, 100)
    assert not is_near(0, 0)


def test_a_partition_that_is_not_known_is_left_out() -> None:
    assert near_retention([RANGE], {}, {PARTITION: 100}) == ()
    assert near_retention([RANGE], {PARTITION: 0}, {}) == ()


@given(offsets, offsets, offsets)
def test_before_it_is_warned_of_less_of_the_way_is_gone_than_is_left(
    first: int, moved: int, left: int
) -> None:
    now = first + moved
    ahead = OffsetRange("orders", 0, now + left, now + left + 1)
    warned = bool(near_retention([ahead], {PARTITION: first}, {PARTITION: now}))
    assert warned == (moved > 0 and moved >= left)


def test_each_batch_is_measured_from_when_it_was_first_looked_at_and_warned_of_once() -> None:
    watch = RetentionWatch()
    early, late = an_open_batch("early"), an_open_batch("late")
    other = an_open_batch("other", OffsetRange("orders", 1, 0, 9))
    second = TopicPartition("orders", 1)
    assert watch.look([early, other], {PARTITION: 0, second: 0}) == []
    assert watch.look([early, late, other], {PARTITION: 40, second: 0}) == []
    assert watch.look([early, late, other], {PARTITION: 50, second: 0}) == [(early, (RANGE,))]
    assert watch.look([early, late, other], {PARTITION: 70, second: 0}) == [(late, (RANGE,))]
    assert watch.look([early, late, other], {PARTITION: 99, second: 0}) == []


def test_what_is_not_open_any_more_is_forgotten() -> None:
    watch = RetentionWatch()
    batch = an_open_batch("one")
    watch.look([batch], {PARTITION: 0})
    assert watch.look([batch], {PARTITION: 90}) != []
    watch.look([], {})
    assert watch.look([batch], {PARTITION: 95}) == []
    assert watch.look([batch], {PARTITION: 98}) != []
