import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import SourceError
from headrace.gate.source.stream_offset import StreamOffset

# Kafka's own rule for the names of topics.
topics = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=20)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
positions = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=8)
names = st.text(min_size=1, max_size=20)
stream_offsets = st.builds(
    StreamOffset,
    positions=positions,
    gate=st.none() | names,
    checkpoint_id=st.text(max_size=32),
    topic_ids=st.dictionaries(topics, names, max_size=4),
    begins=positions,
    after=positions,
    first=st.booleans(),
    out_of_sight=positions,
)


def at(**offsets: int) -> dict[TopicPartition, int]:
    """``at(a0=5)`` is offset 5 of partition 0 of topic a."""
    return {TopicPartition(name[:-1], int(name[-1])): offset for name, offset in offsets.items()}


@given(stream_offsets)
def test_an_offset_comes_back_from_the_checkpoint_as_it_went(offset: StreamOffset) -> None:
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(stream_offsets, st.randoms())
def test_the_same_offset_is_always_the_same_text(offset: StreamOffset, random: Any) -> None:
    shuffled = list(offset.positions.items())
    random.shuffle(shuffled)
    same = StreamOffset(
        dict(shuffled),
        offset.gate,
        offset.checkpoint_id,
        dict(reversed([*offset.topic_ids.items()])),
        dict(reversed([*offset.begins.items()])),
        dict(reversed([*offset.after.items()])),
        offset.first,
        out_of_sight=dict(reversed([*offset.out_of_sight.items()])),
    )
    assert json.dumps(same.to_json()) == json.dumps(offset.to_json())


def test_what_the_native_connector_wrote_is_read() -> None:
    offset = StreamOffset.from_json({"orders": {"10": 7, "2": 0}, "returns": {"0": 12}})
    assert offset == StreamOffset(
        {
            TopicPartition("orders", 2): 0,
            TopicPartition("orders", 10): 7,
            TopicPartition("returns", 0): 12,
        }
    )


def test_what_the_native_connector_reads_is_written_where_there_is_no_gate() -> None:
    text = json.dumps(StreamOffset(at(b0=1, a1=3, a0=2)).to_json())
    assert text == '{"a": {"0": 2, "1": 3}, "b": {"0": 1}}'


def test_what_a_batch_must_know_stands_under_keys_that_no_topic_has() -> None:
    offset = StreamOffset(at(a0=2), "orders", "4f", {"a": "id"}, at(a0=1), first=True)
    assert offset.to_json() == {
        "a": {"0": 2},
        "@gate": "orders",
        "@checkpoint": "4f",
        "@ids": {"a": "id"},
        "@from": {"a": {"0": 1}},
        "@first": True,
    }


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        5,
        "a",
        ["a"],
        {"a": 5},
        {"a": None},
        {"a": ["0"]},
        {"a": {"0": "5"}},
        {"a": {"0": 5.0}},
        {"a": {"0": None}},
        {"a": {"0": True}},
        {"a": {"0": -1}},
        {"a": {"x": 5}},
        {"a": {"": 5}},
        {"a": {"-1": 5}},
        {"a": {"1_0": 5}},
        {"a": {" 1": 5}},
        {"a": {"٣": 5}},
        {"a": {"0": 5}, "@gate": 7},
        {"a": {"0": 5}, "@checkpoint": None},
        {"a": {"0": 5}, "@ids": ["a"]},
        {"a": {"0": 5}, "@ids": {"a": 7}},
        {"a": {"0": 5}, "@from": {"a": 7}},
        {"a": {"0": 5}, "@from": {"a": {"0": -2}}},
        {"sourceVersion": 1, "reservoirId": "x", "index": 0},
    ],
)
def test_an_offset_of_another_source_is_refused(garbage: Any) -> None:
    with pytest.raises(SourceError, match="not the offset of a Kafka source") as failed:
        StreamOffset.from_json(garbage)
    assert repr(garbage) in str(failed.value)


def test_a_batch_reads_from_where_the_last_one_ended() -> None:
    start, end = StreamOffset(at(a0=5, a1=7, b0=3)), StreamOffset(at(b0=4, a1=7, a0=9))
    assert end.ranges_from(start) == [OffsetRange("a", 0, 5, 9), OffsetRange("b", 0, 3, 4)]


def test_a_batch_reads_from_where_it_says_it_began() -> None:
    """After a loss, on a new partition, and for a restart whose start was asked for again."""
    start = StreamOffset(at(a0=5, a1=90), first=True)
    end = StreamOffset(at(a0=9, a1=12, a2=4), begins=at(a0=8, a1=10, a2=0))
    assert end.ranges_from(start) == [
        OffsetRange("a", 0, 8, 9),
        OffsetRange("a", 1, 10, 12),
        OffsetRange("a", 2, 0, 4),
    ]


def test_a_new_partition_of_which_the_native_connector_wrote_no_start_is_read_whole() -> None:
    assert StreamOffset(at(a0=5, a1=3)).ranges_from(StreamOffset(at(a0=5))) == [
        OffsetRange("a", 1, 0, 3)
    ]


def test_a_log_that_was_cut_is_no_range() -> None:
    assert StreamOffset(at(a0=5)).ranges_from(StreamOffset(at(a0=9))) == []


def test_the_next_offset_keeps_gate_and_run_and_is_no_first() -> None:
    first = StreamOffset(at(a0=5), "orders", "4f", {"a": "old"}, at(a0=5), first=True)
    assert first.moved(at(a0=7), {}, {"a": "new"}, at(a0=99), {}) == StreamOffset(
        at(a0=7), "orders", "4f", {"a": "new"}, after=at(a0=99), planned=2
    )


def test_what_was_read_before_an_offset_is_that_of_the_same_topic_alone() -> None:
    start = StreamOffset(at(a0=5, b0=3), topic_ids={"a": "x", "b": "y"}, after=at(a0=99, b0=98))
    assert start.after_of({"a": "x", "b": "new"}) == {(TopicPartition("a", 0), 5): 99}
