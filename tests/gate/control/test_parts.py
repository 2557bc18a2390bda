"""Parts: halves of what was planned, and what is left of a batch without some of them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import (
    WHOLE,
    Progress,
    above,
    beside,
    halves,
    joined,
    path_of,
    ranges_of,
    rest,
    size,
)

batches = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=5).map(
    lambda rows: [
        OffsetRange("orders", partition, start, start + count)
        for partition, (start, count) in enumerate(rows)
    ]
)


def places(ranges: list[OffsetRange], part: str = WHOLE) -> list[tuple[int, int]]:
    found = ranges_of(ranges, part)
    return [(r.partition, offset) for r in found for offset in range(r.start, r.until)]


def part_within(data: st.DataObject, records: int) -> str:
    part = WHOLE
    while size(records, part) > 1 and data.draw(st.booleans()):
        part = data.draw(st.sampled_from(halves(part)))
    return part


@given(batches, st.data())
def test_two_halves_are_their_whole_and_the_first_comes_first(
    batch: list[OffsetRange], data: st.DataObject
) -> None:
    records = sum(r.count for r in batch)
    part = part_within(data, records)
    assert len(places(batch, part)) == size(records, part) > 0
    if size(records, part) > 1:
        first, second = (places(batch, half) for half in halves(part))
        assert sorted(first + second) == sorted(places(batch, part))
        assert 0 <= len(first) - len(second) <= 1
        for partition in {place[0] for place in first} & {place[0] for place in second}:
            last = max(offset for number, offset in first if number == partition)
            assert last < min(offset for number, offset in second if number == partition)


@given(batches, st.data())
def test_each_record_is_one_part(batch: list[OffsetRange], data: st.DataObject) -> None:
    partition, offset = data.draw(st.sampled_from(places(batch)))
    part = path_of(batch, "orders", partition, offset)
    assert part is not None
    assert places(batch, part) == [(partition, offset)]
    assert all((partition, offset) in places(batch, whole) for whole in above(part))
    assert path_of(batch, "others", partition, offset) is None


@given(batches, st.data())
def test_what_is_beside_a_part_makes_up_the_rest(
    batch: list[OffsetRange], data: st.DataObject
) -> None:
    part = part_within(data, sum(r.count for r in batch))
    around = [place for other in beside(WHOLE, part) for place in places(batch, other)]
    assert sorted(around + places(batch, part)) == sorted(places(batch))
    assert sorted(rest([part])) == sorted(beside(WHOLE, part))
    assert joined([part, *beside(WHOLE, part)]) == {WHOLE}


@given(batches, st.data())
def test_done_and_open_are_all_of_it_whatever_fails(
    batch: list[OffsetRange], data: st.DataObject
) -> None:
    records = sum(r.count for r in batch)
    progress = Progress()
    for _ in range(data.draw(st.integers(0, 12))):
        if not (waiting := progress.open):
            break
        part = data.draw(st.sampled_from(waiting))
        if data.draw(st.booleans()):
            progress = progress.with_done(part)
        elif size(records, part) > 1:
            halved = progress.halved | {part}
            progress = Progress(progress.done, None, progress.unknown - {part}, halved)
        else:
            progress = Progress(progress.done, None, progress.unknown | {part}, progress.halved)
        everything = [*progress.done, *progress.open]
        assert sorted(p for part in everything for p in places(batch, part)) == places(batch)
        assert not progress.halved & set(progress.open)
        assert progress.records_left(records) == sum(size(records, p) for p in progress.open)
        assert Progress.from_text(progress.to_text(), records, "a batch") == progress
