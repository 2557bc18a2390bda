from itertools import pairwise

from headrace.core.ranges import OffsetRange
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.packing import cut_at_blocks
from headrace.source.packing import RECORDS_WORTH_A_TASK

counts = st.lists(st.integers(1, 60_000), min_size=1, max_size=30)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[OffsetRange], dict[int, list[int]]]:
    """Ranges of some lanes, and where blocks begin in these."""
    ranges, firsts = [], {}
    for lane in range(draw(st.integers(1, 4))):
        begins = [0]
        for count in draw(counts):
            begins.append(begins[-1] + count)
        end = begins.pop()
        start = draw(st.integers(0, end - 1))
        ranges.append(OffsetRange("a", lane, start, draw(st.integers(start + 1, end))))
        firsts[lane] = begins
    return ranges, firsts


@given(lanes(), st.integers(1, 16))
def test_pieces_follow_each_other_and_are_cut_where_blocks_begin_only(
    drawn: tuple[list[OffsetRange], dict[int, list[int]]], parallelism: int
) -> None:
    ranges, firsts = drawn
    pieces = cut_at_blocks(ranges, firsts, parallelism)
    for r in ranges:
        own = [piece for piece in pieces if piece.partition == r.partition]
        assert (own[0].start, own[-1].until) == (r.start, r.until)
        for before, after in pairwise(own):
            assert before.until == after.start
            assert after.start in firsts[r.partition]
        assert all(piece.count > 0 for piece in own)


def test_a_lane_alone_is_shared_out_to_as_many_tasks_as_it_is_worth() -> None:
    begins = {0: list(range(0, 1_000_000, 1_000))}
    whole = OffsetRange("a", 0, 0, 1_000_000)
    assert len(cut_at_blocks([whole], begins, 4)) == 4
    few = OffsetRange("a", 0, 0, RECORDS_WORTH_A_TASK)
    assert cut_at_blocks([few], begins, 4) == [few]


def test_a_block_is_read_by_one_task_however_large_it_is() -> None:
    whole = OffsetRange("a", 0, 0, 1_000_000)
    assert cut_at_blocks([whole], {0: [0]}, 4) == [whole]
