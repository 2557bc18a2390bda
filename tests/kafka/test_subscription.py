import json
from collections.abc import Mapping

import pytest
from tests.services.kafka import Topic, TopicFactory

from headgate.control import OffsetRange, TopicPartition
from headgate.errors import OptionError, SourceError
from headgate.kafka.bounds import AtOffsets, AtTime, AtTimes, Bound, Edge
from headgate.kafka.lookup import Lookup
from headgate.kafka.subscription import (
    Cluster,
    bounded_ranges,
    parse_subscription,
    starting_positions,
)

EARLIEST = Bound("startingOffsets", Edge.EARLIEST)
LATEST = Bound("endingOffsets", Edge.LATEST)


def test_topics_are_named_with_commas_and_spaces_and_each_counts_once() -> None:
    assert parse_subscription({"subscribe": " b, a ,b,"}).topics == ("b", "a")


def test_partitions_are_named_by_topic() -> None:
    assigned = parse_subscription({"assign": '{"orders": [2, 0], "returns": [1]}'})
    assert assigned.partitions == (
        TopicPartition("orders", 2),
        TopicPartition("orders", 0),
        TopicPartition("returns", 1),
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            "Nothing says which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign.",
        ),
        (
            {"assign": "{}", "subscribe": "a"},
            "subscribe and assign say which topics to read; give exactly one of subscribe,"
            " subscribePattern and assign.",
        ),
        ({"subscribe": " ,"}, "subscribe is ' ,'; name one topic, or several with commas."),
        (
            {"subscribePattern": " "},
            "subscribePattern is empty; write a regular expression of topic names.",
        ),
        (
            {"subscribePattern": "a("},
            "subscribePattern is 'a('; it must be a regular expression, and this is not: missing ),"
            " unterminated subpattern at position 1.",
        ),
        (
            {"assign": '{"orders": []}'},
            "assign is '{\"orders\": []}'; it must be JSON with the partitions of each topic, such"
            ' as {"orders": [0, 1]}.',
        ),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(given: Mapping[str, str], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_subscription(given)
    assert str(raised.value) == told


@pytest.fixture(scope="module")
def timed(topic: TopicFactory) -> Topic:
    """Partition 0 has offsets 0 and 1, of 1000 and 2000 ms; partition 1 has none."""
    made = topic(2, {"retention.ms": "-1"})
    made.produce(b"x", timestamp_ms=1_000)
    made.produce(b"x", timestamp_ms=2_000)
    return made


def cluster_of(topic: Topic, option: str = "subscribe", value: str = "") -> Cluster:
    lookup = Lookup({"bootstrap.servers": topic.bootstrap_servers}, 3, 100)
    return Cluster(parse_subscription({option: value or topic.name}), lookup)


def test_a_bound_is_an_offset_in_each_partition(timed: Topic) -> None:
    cluster = cluster_of(timed)
    first, second = partitions = cluster.partitions(cluster.topics())
    for at, expected in (
        (Edge.EARLIEST, {first: 0, second: 0}),
        (Edge.LATEST, {first: 2, second: 0}),
        (AtOffsets({first: -1, second: -2}), {first: 2, second: 0}),
        (AtOffsets({first: -2, second: 7}), {first: 0, second: 7}),
        (AtTime(1_001), {first: 1, second: 0}),
        (AtTime(2_001), {first: 2, second: 0}),
        (AtTimes({first: 0, second: 0}), {first: 0, second: 0}),
    ):
        assert cluster.locate(Bound("startingOffsets", at), partitions) == expected


def test_a_bound_by_partition_has_one_value_for_each_and_no_other(timed: Topic) -> None:
    cluster = cluster_of(timed)
    partitions = cluster.partitions(cluster.topics())
    strange = [TopicPartition(timed.name, number) for number in range(2, 7)]
    named = ", ".join(map(str, strange[:3]))
    for given, said in (
        ({partitions[0]: 0}, f"leaves out {partitions[1]}"),
        (dict.fromkeys([*partitions, *strange], 0), f"names {named} and 2 more"),
    ):
        for at in (AtOffsets(given), AtTimes(given)):
            with pytest.raises(OptionError) as raised:
                cluster.locate(Bound("endingOffsets", at), partitions)
            assert str(raised.value) == (
                f"endingOffsets {said}; it must have a value for each partition that is read, and"
                " no other (-1 is the latest offset, -2 the earliest)."
            )


def test_a_starting_time_without_a_record_after_it_is_refused_or_means_the_end(
    timed: Topic,
) -> None:
    cluster = cluster_of(timed, "assign", json.dumps({timed.name: [0]}))
    (partition,) = partitions = cluster.partitions(cluster.topics())
    starting = Bound("startingTimestamp", AtTime(5_000))
    assert starting_positions(cluster, starting, "latest", partitions) == {partition: 2}
    with pytest.raises(OptionError) as raised:
        starting_positions(cluster, starting, "error", partitions)
    assert str(raised.value) == (
        f"startingTimestamp is 5000, and {partition} has no record at or after that time; choose an"
        " earlier one, or set startingOffsetsByTimestampStrategy to latest."
    )


def test_a_bounded_read_leaves_empty_ranges_out(timed: Topic) -> None:
    cluster = cluster_of(timed)
    assert bounded_ranges(cluster, EARLIEST, LATEST, "error") == [OffsetRange(timed.name, 0, 0, 2)]


def test_a_bounded_read_of_a_topic_that_is_not_there_is_refused(timed: Topic) -> None:
    cluster = cluster_of(timed, "subscribe", f"no-such-topic, {timed.name},nor-this")
    with pytest.raises(SourceError) as raised:
        bounded_ranges(cluster, EARLIEST, LATEST, "error")
    assert str(raised.value) == (
        "Kafka has no 'no-such-topic' and no 'nor-this' (subscribe); make it, or correct the name."
    )


def test_a_pattern_that_matches_nothing_yet_is_no_mistake(timed: Topic) -> None:
    cluster = cluster_of(timed, "subscribePattern", "^nothing-of-this-name")
    assert cluster.topics(must_exist=True) == {}
    assert bounded_ranges(cluster, EARLIEST, LATEST, "error") == []
