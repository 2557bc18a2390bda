"""Segments as bytes: what is whole, what is a torn tail, and what is damage."""

import zlib
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.samples import numbered

from headrace.journal.block import Block, decode, decode_together, encode
from headrace.journal.frame import (
    HEADER_BYTES,
    Checked,
    Frames,
    Place,
    check_segment,
    frames,
    salvaged,
)
from headrace.journal.records import SCHEMA, Records

ID: Final = bytes(range(16))
PLACE: Final = Place(ID, 3, 5)


def blocks(*counts: int, in_flight: int = 1, **says: int) -> list[Block]:
    """Blocks of so many records in a row, of which so many are written at once."""
    made: list[Block] = []
    first, previous = PLACE.first, 0
    for number, count in enumerate(counts):
        durable = made[number - in_flight].header.until if number >= in_flight else PLACE.first
        block = encode(
            numbered(first, first + count),
            journal_id=ID,
            writer=b"w" * 16,
            lane=says.get("lane", PLACE.lane),
            first=first,
            synced=durable,
            previous=previous,
        )
        made.append(block)
        first, previous = block.header.until, block.header.checksum
    return made


def joined(some: list[Block]) -> bytes:
    return b"".join(b"".join(block.parts) for block in some)


def check(data: bytes, *, is_last: bool = True) -> Checked:
    return check_segment(data, PLACE, is_last=is_last)


def test_a_whole_segment_has_its_frames() -> None:
    some = blocks(2, 3, 1)
    data = joined(some)
    found = check(data)
    assert (found.defect, found.torn_bytes) == ("", 0)
    assert [found.frames.range_of(number) for number in range(3)] == [(5, 7), (7, 10), (10, 11)]
    assert (found.frames.end, found.frames.until) == (len(data), 11)
    assert found.frames.checksum == some[-1].header.checksum
    assert [found.frames.holding(offset) for offset in (4, 5, 6, 7, 10, 11)] == [
        None, 0, 0, 1, 2, None,
    ]  # fmt: skip


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_segment_cut_at_any_byte_has_a_torn_tail(in_flight: int) -> None:
    some = blocks(2, 3, 1, in_flight=in_flight)
    data = joined(some)
    ends = [len(joined(some[:count])) for count in range(4)]
    for size in range(len(data)):
        found = check(data[:size])
        whole = max(end for end in ends if end <= size)
        assert found.defect == ""
        assert (found.frames.end, found.torn_bytes) == (whole, size - whole)
        if size != whole:
            assert check(data[:size], is_last=False).defect, "later segments say that it was whole"


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_byte_that_changed_is_damage_if_a_later_frame_says_that_it_was_durable(
    in_flight: int,
) -> None:
    some = blocks(2, 3, 1, 2, in_flight=in_flight)
    data = joined(some)
    ends = [len(joined(some[:count])) for count in range(5)]
    for at in range(len(data)):
        found = check(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        number = max(number for number, end in enumerate(ends) if end <= at)
        assert len(found.frames) == number
        assert bool(found.defect) == (number < len(some) - in_flight), f"byte {at}"


@pytest.mark.parametrize("at", [5, 6])
def test_sectors_that_were_not_written_are_a_torn_tail(at: int) -> None:
    """A crash leaves the size of a file, and not all that was written to it."""
    data = joined(blocks(2, 3, 1, 200))
    begin, end = at * 512, (at + 1) * 512
    last = len(joined(blocks(2, 3, 1)))
    assert last < begin < end < len(data)
    found = check(data[:begin] + bytes(512) + data[end:])
    assert (found.frames.end, found.torn_bytes, found.defect) == (last, len(data) - last, "")


def test_zeros_behind_the_frames_are_a_torn_tail() -> None:
    data = joined(blocks(2, 3))
    found = check(data + bytes(1000))
    assert (found.frames.end, found.torn_bytes, found.defect) == (len(data), 1000, "")


def test_a_hole_in_a_segment_is_damage() -> None:
    one, _, three = blocks(2, 3, 1)
    found = check(joined([one, three]))
    assert len(found.frames) == 1
    assert "a later frame says" in found.defect


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (PLACE._replace(journal_id=b"x" * 16), "a frame of another journal"),
        (PLACE._replace(lane=4), "a frame of lane 3"),
        (PLACE._replace(first=6), "its first frame begins at offset 5"),
    ],
)
def test_a_frame_that_belongs_elsewhere_is_no_torn_tail(place: Place, says: str) -> None:
    assert says in check_segment(joined(blocks(2)), place, is_last=True).defect


def test_a_frame_of_another_life_of_the_lane_does_not_follow() -> None:
    one, two = blocks(2, 3)
    other = replace(two.header, previous=1)
    data = joined([one]) + other.encode() + b"".join(bytes(part) for part in two.payload)
    found = check(data)
    assert len(found.frames) == 1
    assert found.defect, "it is whole, so no crash has left it"


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    window=st.sampled_from([128, 300, 2**16]),
    at=st.integers(0, 6),
)
def test_frames_are_the_same_however_they_are_read(counts: list[int], window: int, at: int) -> None:
    """In windows of any size, at once or some first and the others later."""
    data = joined(blocks(*counts))

    def read(place: int, size: int) -> bytes:
        return data[place : place + min(size, window)]

    whole = frames(read, len(data), 0, PLACE)
    assert whole.places.tolist() == check(data).frames.places.tolist()
    split = whole.end_of(min(at, len(counts)) - 1) if at else 0
    begin = frames(read, split, 0, PLACE)
    both = begin.with_more(frames(read, len(data), begin.end, begin.follows))
    assert both.places.tolist() == whole.places.tolist()
    assert (both.end, both.follows) == (whole.end, whole.follows)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 3000))
def test_runs_have_all_frames_once_and_no_more_bytes_than_asked_for(
    counts: list[int], most_bytes: int
) -> None:
    found = check(joined(blocks(*counts))).frames
    runs = list(found.runs(0, len(found), most_bytes))
    assert [number for begin, end in runs for number in range(begin, end)] == [*range(len(counts))]
    for begin, end in runs:
        size = found.end_of(end - 1) - int(found.places[begin])
        assert size <= most_bytes or end == begin + 1


def _rows(found: list[Frames]) -> list[tuple[int, int]]:
    return [row.range_of(number) for row in found for number in range(len(row))]


def test_all_but_what_changed_is_salvaged() -> None:
    some = blocks(2, 3, 1, 2)
    data = joined(some)
    ends = [len(joined(some[:count])) for count in range(5)]
    every = [(block.header.first, block.header.until) for block in some]
    for at in range(len(data)):
        number = max(number for number, end in enumerate(ends) if end <= at)
        changed = data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]
        left = every[:number] + every[number + 1 :]
        assert _rows(list(salvaged(changed, PLACE))) == left, f"byte {at}"


def test_a_header_s_checksum_is_that_of_its_bytes() -> None:
    header = blocks(2)[0].header
    assert header.checksum == zlib.crc32(header.encode()[: HEADER_BYTES - 4])
    assert replace(header, synced=1).checksum != header.checksum


def test_frames_that_are_decoded_together_are_those_that_are_decoded_alone() -> None:
    some = blocks(2, 3, 1)
    data = joined(some)
    found = check(data).frames
    alone = pa.concat_batches(
        decode(pa.py_buffer(joined([block])), "the block", SCHEMA.names)[1] for block in some
    )

    def together(changed: bytes) -> pa.RecordBatch | None:
        places = found.places.tolist()
        return decode_together(pa.py_buffer(changed), found.rows, places, SCHEMA.names)

    assert together(data) == alone
    for number in range(len(found)):
        for at in range(int(found.places[number]) + HEADER_BYTES, found.end_of(number)):
            assert together(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]) is None


def test_frames_whose_schemas_or_times_differ_are_not_decoded_together() -> None:
    one, two = blocks(2, 3)
    bare = encode(
        Records.of([None], timestamp_ms=1),
        journal_id=ID,
        writer=b"w" * 16,
        lane=PLACE.lane,
        first=one.header.until,
        previous=one.header.checksum,
    )
    late = Block(replace(two.header, latest_ms=2**60), two.payload)
    for second in (bare, late):
        data = joined([one, second])
        found = check(data).frames
        assert len(found) == 2
        places = found.places.tolist()
        assert decode_together(pa.py_buffer(data), found.rows, places, SCHEMA.names) is None
