import pytest

from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.source.read_bounds import (
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    ReadBound,
    ending_bound,
    starting_bound,
    starting_positions,
)
from headrace.testing import MemoryLog

FIRST = TopicPartition("orders", 0)


def starting(given: dict[str, str], *, streaming: bool = True) -> ReadBound:
    return starting_bound(given, Edge.LATEST if streaming else Edge.EARLIEST, streaming=streaming)


def test_a_stream_begins_at_the_latest_offsets_and_a_bounded_read_at_the_earliest() -> None:
    assert starting({}).at is Edge.LATEST
    assert starting({}, streaming=False).at is Edge.EARLIEST
    assert ending_bound({}).at is Edge.LATEST


@pytest.mark.parametrize("text", ["earliest", " Earliest "])
def test_a_word_is_read_in_any_case(text: str) -> None:
    assert starting({"startingOffsets": text}).at is Edge.EARLIEST


def test_offsets_by_partition_may_name_the_edges() -> None:
    bound = starting({"startingOffsets": '{"orders": {"0": -2, "1": -1, "2": 7}}'})
    assert isinstance(bound.at, AtOffsets)
    assert sorted(bound.at.positions.values()) == [-2, -1, 7]


def test_the_most_specific_option_counts() -> None:
    given = {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"orders": {"0": 2000}}',
        "startingOffsets": "earliest",
    }
    assert starting(given) == ReadBound("startingTimestamp", AtTime(1000))
    del given["startingTimestamp"]
    assert starting(given) == ReadBound("startingOffsetsByTimestamp", AtTimes({FIRST: 2000}))


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "newest"},
        {"startingOffsets": ""},
        {"startingOffsets": '{"orders": {"0": -3}}'},
        {"startingTimestamp": "-1"},
        {"startingTimestamp": str(2**63)},
        {"startingOffsetsByTimestamp": '{"orders": {"0": 9223372036854775808}}'},
        {"startingOffsets": '{"orders": {"0": 9223372036854775808}}'},
        {"startingTimestamp": "yesterday"},
        {"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'},
        {"startingOffsetsByTimestamp": "5"},
    ],
)
def test_a_start_of_another_form_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"^{next(iter(given))} is "):
        starting(given)


@pytest.mark.parametrize("text", ["latest", '{"orders": {"0": -1}}'])
def test_a_bounded_read_does_not_begin_at_the_latest_offset(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets is .* leaves nothing to read"):
        starting({"startingOffsets": text}, streaming=False)


@pytest.mark.parametrize("text", ["earliest", '{"orders": {"0": -2}}'])
def test_a_bounded_read_does_not_end_at_the_earliest_offset(text: str) -> None:
    with pytest.raises(OptionError, match=r"endingOffsets is .* leaves nothing to read"):
        ending_bound({"endingOffsets": text})


def test_a_time_after_the_last_record_is_the_end_or_is_refused_by_the_strategy() -> None:
    log = MemoryLog("a", "b")
    (partition,) = log.partitions(log.topics())
    later = ReadBound("startingTimestamp", AtTime(log.clock() + 1))
    assert starting_positions(log, later, "latest", [partition]) == {partition: 2}
    with pytest.raises(OptionError, match="records-0 has no record at or after that time"):
        starting_positions(log, later, "error", [partition])
    now = ReadBound("startingTimestamp", AtTime(log.clock()))
    assert starting_positions(log, now, "error", [partition]) == {partition: 0}
