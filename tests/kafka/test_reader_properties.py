import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kafka.reads import Transactions, reader_config, rows
from tests.services.kafka import Topic, TopicFactory

from headrace.control.ranges import OffsetRange
from headrace.kafka.range_reader import read_ranges

# Each partition gets these, one after the other: (records, how they are written).
WRITES = [
    (3, "plain"),
    (4, "aborted"),
    (2, "committed"),
    (1, "aborted"),
    (5, "plain"),
    (2, "aborted"),
]
PARTITIONS = 3


def there(partition: int) -> list[int]:
    """The offsets that a reader of committed records is given."""
    found: list[int] = []
    offset = 0
    for count, kind in WRITES[partition:]:
        if kind != "aborted":
            found += range(offset, offset + count)
        offset += count + (kind != "plain")
    return found


def end(partition: int) -> int:
    return sum(count + (kind != "plain") for count, kind in WRITES[partition:])


@pytest.fixture(scope="module")
def gaps(topic: TopicFactory) -> Topic:
    made = topic(PARTITIONS)
    transactions = Transactions(made)
    for partition in range(PARTITIONS):
        for count, kind in WRITES[partition:]:
            if kind == "plain":
                made.produce(*[b"plain"] * count, partition=partition)
            else:
                transactions.write(count, partition, commit=kind == "committed")
    return made


@st.composite
def disjoint(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """``(partition, start, until)``: ranges of which no two share an offset, in any order."""
    found = []
    for partition in range(PARTITIONS):
        marks = draw(st.sets(st.integers(0, end(partition)), max_size=6))
        cuts = sorted(marks)
        found += [(partition, *pair) for pair in zip(cuts[::2], cuts[1::2], strict=False)]
        found += [(partition, *pair) for pair in zip(cuts[1::2], cuts[2::2], strict=False)]
    return draw(st.permutations(found))


@settings(max_examples=60)
@given(wanted=disjoint(), batch_bytes=st.sampled_from([1, 60, 1_000_000]))
def test_any_ranges_give_exactly_their_records_once_and_in_order(
    gaps: Topic, wanted: list[tuple[int, int, int]], batch_bytes: int
) -> None:
    config = reader_config(
        gaps.bootstrap_servers,
        columns=["partition", "offset"],
        batch_bytes=batch_bytes,
        isolation_level="read_committed",
    )
    ranges = [OffsetRange(gaps.name, *each) for each in wanted]
    found = rows(read_ranges(config, ranges))
    for partition in range(PARTITIONS):
        asked = {o for p, start, until in wanted if p == partition for o in range(start, until)}
        seen = [row["offset"] for row in found if row["partition"] == partition]
        assert seen == [offset for offset in there(partition) if offset in asked]
