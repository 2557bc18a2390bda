"""Where reads of Kafka begin and end."""

import json

import pytest
from tests.services.kafka import Topic, TopicFactory

from headrace.control import OffsetRange, TopicPartition
from headrace.errors import OptionError, SourceError
from headrace.kafka.log import KafkaLog
from headrace.kafka.options import parse_options
from headrace.source.bounds import AtOffsets, AtTime, AtTimes, Bound, Edge
from headrace.source.locate import bounded_ranges, locate, starting_positions

EARLIEST = Bound("startingOffsets", Edge.EARLIEST)
LATEST = Bound("endingOffsets", Edge.LATEST)


@pytest.fixture(scope="module")
def timed(topic: TopicFactory) -> Topic:
    """Partition 0 has offsets 0 and 1, of 1000 and 2000 ms; partition 1 has none."""
    made = topic(2, {"retention.ms": "-1"})
    made.produce(b"x", timestamp_ms=1_000)
    made.produce(b"x", timestamp_ms=2_000)
    return made


def log_of(topic: Topic, option: str = "subscribe", value: str = "") -> KafkaLog:
    given = {"kafka.bootstrap.servers": topic.bootstrap_servers, option: value or topic.name}
    return KafkaLog(parse_options(given, streaming=True))


def test_a_bound_is_an_offset_in_each_partition(timed: Topic) -> None:
    log = log_of(timed)
    first, second = partitions = log.partitions(log.topics())
    for at, expected in (
        (Edge.EARLIEST, {first: 0, second: 0}),
        (Edge.LATEST, {first: 2, second: 0}),
        (AtOffsets({first: -1, second: -2}), {first: 2, second: 0}),
        (AtOffsets({first: -2, second: 7}), {first: 0, second: 7}),
        (AtTime(1_001), {first: 1, second: 0}),
        (AtTime(2_001), {first: 2, second: 0}),
        (AtTimes({first: 0, second: 0}), {first: 0, second: 0}),
    ):
        assert locate(log, Bound("startingOffsets", at), partitions) == expected


def test_a_bound_by_partition_has_one_value_for_each_and_no_other(timed: Topic) -> None:
    log = log_of(timed)
    partitions = log.partitions(log.topics())
    strange = [TopicPartition(timed.name, number) for number in range(2, 7)]
    named = ", ".join(map(str, strange[:3]))
    for given, said in (
        ({partitions[0]: 0}, f"leaves out {partitions[1]}"),
        (dict.fromkeys([*partitions, *strange], 0), f"names {named} and 2 more"),
    ):
        for at in (AtOffsets(given), AtTimes(given)):
            with pytest.raises(OptionError) as raised:
                locate(log, Bound("endingOffsets", at), partitions)
            assert str(raised.value) == (
                f"endingOffsets {said}; it must have a value for each partition that is read, and"
                " no other (-1 is the latest offset, -2 the earliest)."
            )


def test_a_starting_time_without_a_record_after_it_is_refused_or_means_the_end(
    timed: Topic,
) -> None:
    log = log_of(timed, "assign", json.dumps({timed.name: [0]}))
    (partition,) = partitions = log.partitions(log.topics())
    starting = Bound("startingTimestamp", AtTime(5_000))
    assert starting_positions(log, starting, "latest", partitions) == {partition: 2}
    with pytest.raises(OptionError) as raised:
        starting_positions(log, starting, "error", partitions)
    assert str(raised.value) == (
        f"startingTimestamp is 5000, and {partition} has no record at or after that time; choose an"
        " earlier one, or set startingOffsetsByTimestampStrategy to latest."
    )


def test_a_bounded_read_leaves_empty_ranges_out(timed: Topic) -> None:
    log = log_of(timed)
    assert bounded_ranges(log, EARLIEST, LATEST, "error") == [OffsetRange(timed.name, 0, 0, 2)]


def test_a_bounded_read_of_a_topic_that_is_not_there_is_refused(timed: Topic) -> None:
    log = log_of(timed, "subscribe", f"no-such-topic, {timed.name},nor-this")
    with pytest.raises(SourceError) as raised:
        bounded_ranges(log, EARLIEST, LATEST, "error")
    assert str(raised.value) == (
        "Kafka has no 'no-such-topic' and no 'nor-this' (subscribe); make it, or correct the name."
    )


def test_a_pattern_that_matches_nothing_yet_is_no_mistake(timed: Topic) -> None:
    log = log_of(timed, "subscribePattern", "^nothing-of-this-name")
    assert log.topics(must_exist=True) == {}
    assert bounded_ranges(log, EARLIEST, LATEST, "error") == []
