"""Records for tests."""

from typing import Final

from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal, Records

NOW_MS: Final = 1_700_000_000_000

_HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)
_ROWS = st.tuples(
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=4),
    st.none() | _HEADERS,
    st.none() | st.text(max_size=4),
)


@st.composite
def records(draw: st.DrawFn, least: int = 0) -> Records:
    """Some records, each column there or not."""
    rows = draw(st.lists(_ROWS, min_size=least, max_size=8))
    there = st.booleans()
    return Records.of(
        [row[0] for row in rows],
        keys=[row[1] for row in rows] if draw(there) else None,
        headers=[row[2] for row in rows] if draw(there) else None,
        ids=[row[3] for row in rows] if draw(there) else None,
        timestamp_ms=draw(st.integers(-1, 2**41)),
    )


def numbered(start: int, until: int) -> Records:
    """Records whose values are their numbers."""
    values = [b"%d" % number for number in range(start, until)]
    return Records.of(values, ids=[v.decode() for v in values], timestamp_ms=NOW_MS)


def values_of(journal: Journal, lane: int = 0) -> list[bytes]:
    """The values of everything in a lane."""
    offsets = OffsetRange(journal.name, lane, *journal.lane_bounds(lane))
    return [value for batch in journal.read(offsets) for value in batch.column("value").to_pylist()]
