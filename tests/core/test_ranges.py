"""The algebra of ranges, against sets of offsets."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.ranges import (
    OffsetRange,
    RangeSequence,
    TopicPartition,
    flat,
    merge,
    nested,
    partitions_of,
    shared_offsets,
)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 1))


@st.composite
def ranges(draw: st.DrawFn, of: TopicPartition | None = None) -> OffsetRange:
    start = draw(st.integers(0, 40))
    return (of or draw(partitions)).range(start, start + draw(st.integers(0, 20)))


LANE = TopicPartition("a", 0)
of_lane = ranges(of=LANE)


def offsets(*given_ranges: OffsetRange) -> set[tuple[TopicPartition, int]]:
    return {(r.topic_partition, each) for r in given_ranges for each in range(r.start, r.until)}


def assert_consecutive(parts: list[OffsetRange], whole: OffsetRange) -> None:
    """The parts are the whole, in order, without gaps, and none is empty."""
    assert all(part.count > 0 for part in parts)
    assert all(before.until == after.start for before, after in pairwise(parts))
    assert offsets(*parts) == offsets(whole)


@given(ranges(), ranges())
def test_an_intersection_has_what_both_have(one: OffsetRange, other: OffsetRange) -> None:
    shared = one.intersect(other)
    assert (offsets(shared) if shared else set()) == offsets(one) & offsets(other)
    assert shared is None or shared.count > 0


@given(ranges(), ranges())
def test_a_range_contains_what_is_within_its_bounds(one: OffsetRange, other: OffsetRange) -> None:
    if one.contains(other):
        assert offsets(other) <= offsets(one)
    elif other.count:
        assert not offsets(other) <= offsets(one)


@given(of_lane, of_lane)
def test_the_hull_is_the_shortest_range_that_contains_both(
    one: OffsetRange, other: OffsetRange
) -> None:
    hull = one.hull(other)
    assert hull.contains(one)
    assert hull.contains(other)
    assert hull.start in {one.start, other.start}
    assert hull.until in {one.until, other.until}


@given(of_lane, st.integers(-5, 70))
def test_a_split_gives_what_is_below_an_offset_and_the_rest(r: OffsetRange, offset: int) -> None:
    before, after = r.split_at(offset)
    assert (before.start, before.until, after.until) == (r.start, after.start, r.until)
    assert offsets(before) == {each for each in offsets(r) if each[1] < offset}
    assert offsets(after) == {each for each in offsets(r) if each[1] >= offset}


@given(of_lane, st.integers(1, 30))
def test_chunks_are_the_range_in_equal_parts(r: OffsetRange, count: int) -> None:
    chunks = r.chunks(count)
    assert_consecutive(chunks, r)
    assert len(chunks) == min(count, r.count)
    sizes = [chunk.count for chunk in chunks]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(of_lane, st.integers(1, 30), st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_chunks_are_split_at_the_given_offsets_only(
    r: OffsetRange, count: int, at: list[int]
) -> None:
    chunks = r.chunks(count, at)
    assert_consecutive(chunks, r)
    assert len(chunks) <= count
    assert all(chunk.start in at for chunk in chunks[1:])


@given(st.lists(ranges(), max_size=12))
def test_merged_ranges_have_the_same_offsets_in_as_few_ranges_as_can_be(
    given_ranges: list[OffsetRange],
) -> None:
    merged = merge(given_ranges)
    assert offsets(*(r for same in merged.values() for r in same)) == offsets(*given_ranges)
    for partition, same in merged.items():
        assert all(r.topic_partition == partition for r in same)
        assert all(before.until < after.start for before, after in pairwise(same))


@given(of_lane, st.lists(of_lane, max_size=8))
def test_a_range_is_split_by_a_cover_into_what_it_covers_and_the_rest(
    whole: OffsetRange, others: list[OffsetRange]
) -> None:
    cover = merge(others).get(LANE, ())
    parts = list(whole.split_by(cover))
    assert_consecutive([part for part, _ in parts], whole)
    covered = offsets(*(part for part, is_covered in parts if is_covered))
    assert covered == offsets(whole) & offsets(*others)
    assert offsets(*whole.subtract(cover)) == offsets(whole) - offsets(*others)


@given(st.lists(of_lane.filter(lambda r: r.count > 0), max_size=10).map(sorted))
def test_gaps_and_overlaps_are_what_is_between_ranges_and_in_two_of_them(
    rising: list[OffsetRange],
) -> None:
    so_far, found = set[tuple[TopicPartition, int]](), RangeSequence()
    for number, each in enumerate(rising):
        gap, overlap = found.gap_before(each), found.shared_with(each)
        reached = max((offset for _, offset in so_far), default=None)
        between = set() if reached is None else {(LANE, o) for o in range(reached + 1, each.start)}
        assert (offsets(gap) if gap else set()) == between
        assert (overlap is not None) == bool(offsets(each) & so_far)
        assert overlap is None or offsets(overlap) >= offsets(each) & so_far
        found.append(each, str(number))
        so_far |= offsets(each)


def test_the_last_range_is_the_one_that_reaches_furthest_and_a_first_gap_is_seen() -> None:
    found = RangeSequence(start=3)
    assert found.gap_before(LANE.range(5, 9)) == LANE.range(3, 5)
    found.append(LANE.range(5, 9), "long")
    found.append(LANE.range(6, 7), "short")
    assert found.last == "long"


@example([LANE.range(0, 10), LANE.range(3, 3), LANE.range(5, 8)])
@given(st.lists(ranges(), max_size=6))
def test_ranges_that_share_an_offset_are_found(given_ranges: list[OffsetRange]) -> None:
    offsets = [(r.topic_partition, at) for r in given_ranges for at in range(r.start, r.until)]
    assert (shared_offsets(given_ranges) is None) == (len(set(offsets)) == len(offsets))


@given(st.dictionaries(partitions, st.integers(-2, 2**62)))
def test_positions_are_written_by_topic_and_read_again(
    positions: dict[TopicPartition, int],
) -> None:
    assert flat(nested(positions)) == positions
    assert sorted(nested(positions)) == list(nested(positions))


@pytest.mark.parametrize("partition", ["", "x", "-1", "1.0", "٣"])
def test_what_is_no_partition_is_refused(partition: str) -> None:
    with pytest.raises(ValueError, match="is not a partition"):
        flat({"a": {partition: 1}})


def test_every_partition_of_topics_is_named() -> None:
    assert partitions_of({"a": [0, 1], "b": [3]}) == [
        TopicPartition("a", 0),
        TopicPartition("a", 1),
        TopicPartition("b", 3),
    ]
