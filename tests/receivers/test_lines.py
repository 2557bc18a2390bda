"""Whole lines out of pieces: the same, wherever the pieces are cut."""

from hypothesis import given
from hypothesis import strategies as st
from tests.receivers.virtual import values_of

from headrace.errors import ReceiverError
from headrace.receivers import TcpSettings
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.tcp.line_sender import LineBuffer

contents = st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))


@given(
    st.lists(st.tuples(contents, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    contents,
    st.lists(st.integers(0, 500), max_size=8),
    st.integers(1, 40),
)
def test_lines_are_taken_up_to_the_first_that_is_too_long_wherever_they_are_cut(
    written: list[tuple[bytes, bytes]], rest: bytes, cuts: list[int], longest: int
) -> None:
    room = MemoryBudget(1_000)
    lines = LineBuffer(TcpSettings(max_line_bytes=longest), room)
    data = b"".join(line + end for line, end in written) + rest
    taken: list[bytes] = []
    refused = None
    start = 0
    try:
        for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
            if whole := lines.add(data[start:end]):
                records, error = lines.records(whole, 1)
                taken += values_of(records)
                if error:
                    raise error
            lines.check()
            start = end
    except ReceiverError as error:
        refused = str(error)

    good = [line for line, _ in written]
    for place, line in enumerate(good):
        if len(line) > longest:
            assert taken == good[:place]
            assert refused is not None
            assert refused.startswith(f"Line {place + 1} is longer than the {longest} bytes")
            break
    else:
        assert taken == good
        assert lines.is_unfinished == bool(rest)
        assert (refused is not None) == (len(rest) > longest + 1)
        if refused is None:
            assert room.held_bytes == len(rest)
        else:  # as soon as it was too long
            assert longest + 1 < room.held_bytes <= len(rest)
    lines.close()
    assert room.held_bytes == 0
