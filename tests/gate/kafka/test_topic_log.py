"""Topics as a log to plan by: bounds, sizes of records, commits to a group."""

import pytest
from confluent_kafka import Consumer
from tests.services.groups import committed
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.topic_log import GroupOffsets, KafkaLog
from headrace.gate.source.read_bounds import (
    AtOffsets,
    AtTimes,
    Edge,
    ReadBound,
    bounded_ranges,
    resolve_offsets,
)

EARLIEST = ReadBound("startingOffsets", Edge.EARLIEST)
LATEST = ReadBound("endingOffsets", Edge.LATEST)


def log_of(topic: Topic, option: str = "subscribe", value: str = "") -> KafkaLog:
    given = {"kafka.bootstrap.servers": topic.bootstrap_servers, option: value or topic.name}
    return KafkaLog(parse_options(given, streaming=True))


def test_a_bound_by_partition_has_one_value_for_each_and_no_other(topic: TopicFactory) -> None:
    orders = topic(2)
    log = log_of(orders)
    partitions = log.partitions(log.topics())
    strange = [TopicPartition(orders.name, number) for number in range(2, 7)]
    named = ", ".join(map(str, strange[:3]))
    for given, said in (
        ({partitions[0]: 0}, f"leaves out {partitions[1]}"),
        (dict.fromkeys([*partitions, *strange], 0), f"names {named} and 2 more"),
    ):
        for at in (AtOffsets(given), AtTimes(given)):
            with pytest.raises(OptionError) as raised:
                resolve_offsets(log, ReadBound("endingOffsets", at), partitions)
            assert str(raised.value) == (
                f"endingOffsets {said}; it must have a value for each partition that is read, and"
                " for no other partition (-1 is the latest offset, -2 the earliest)."
            )


def test_a_pattern_that_matches_nothing_yet_is_no_mistake(topic: TopicFactory) -> None:
    log = log_of(topic(), "subscribePattern", "^nothing-of-this-name")
    assert log.topics(must_exist=True) == {}
    assert bounded_ranges(log, EARLIEST, LATEST, "error") == []


def test_sizes_are_of_key_and_value_and_of_each_topic_for_itself(topic: TopicFactory) -> None:
    large, small, empty = topic(), topic(), topic()
    large.produce(*[b"x" * 1_000] * 5, key=b"k" * 24)
    small.produce(b"12345678", None, key=b"ab")
    log = log_of(large)
    ends = {TopicPartition(large.name, 0): 5, TopicPartition(small.name, 0): 2}
    nowhere = {TopicPartition(empty.name, 0): 0}
    starts = dict.fromkeys([*ends, *nowhere], 0)
    assert log.sizes(starts, ends | nowhere) == {large.name: 1_024, small.name: 6}


def test_the_records_that_come_next_are_measured_and_the_last_sizes_kept(
    topic: TopicFactory,
) -> None:
    orders = topic()
    orders.produce(*[b"x" * 10] * 100, *[b"x" * 500] * 100)
    log = log_of(orders)
    place = TopicPartition(orders.name, 0)
    for position, expected in ((0, 10), (100, 500), (200, 500)):
        assert log.sizes({place: position}, {place: 200}) == {orders.name: expected}


def test_the_partitions_furthest_behind_make_up_the_sample(topic: TopicFactory) -> None:
    orders = topic(4)
    for partition in range(3):
        orders.produce(*[b"x" * 100] * 50, partition=partition)
    orders.produce(b"x" * 10_000, partition=3)
    ends = {TopicPartition(orders.name, number): 50 if number < 3 else 1 for number in range(4)}
    measured = log_of(orders).sizes(dict.fromkeys(ends, 0), ends)
    assert measured == {orders.name: 100}


def group_of(topic: Topic) -> GroupOffsets:
    """A group that waits for a busy broker longer than a query would."""
    client = {"bootstrap.servers": topic.bootstrap_servers}
    return GroupOffsets(client, f"of-{topic.name}", wait_s=60)


def test_positions_are_committed_when_commit_returns(topic: TopicFactory) -> None:
    orders = topic(2)
    group = group_of(orders)
    near, far = TopicPartition(orders.name, 0), TopicPartition(orders.name, 1)
    for positions, expected in (
        ({near: 3}, [3, -1001]),
        ({near: 3, far: 0}, [3, 0]),
        ({near: 5, far: 0}, [5, 0]),
    ):
        group.commit(positions)
        assert committed(orders, f"of-{orders.name}") == expected
    group.close()


def test_a_group_whose_members_commit_themselves_is_left_alone_with_a_warning(
    topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic()
    config = {"bootstrap.servers": orders.bootstrap_servers, "group.id": f"of-{orders.name}"}
    member = Consumer(config)
    member.subscribe([orders.name])
    wait_until(lambda: member.poll(0.1) or member.assignment())
    group = group_of(orders)
    place = TopicPartition(orders.name, 0)
    group.commit({place: 7})
    assert committed(orders, config["group.id"]) == [-1001]
    warning = (
        f"The offsets of processed batches were not committed to the group {config['group.id']}: "
    )
    assert [message.startswith(warning) for message in caplog.messages].count(True) == 1
    member.close()
    group.commit({place: 7})
    assert committed(orders, config["group.id"]) == [7], "what failed is tried again"
    group.close()
