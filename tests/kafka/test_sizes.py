from tests.services.kafka import Topic, TopicFactory

from headrace.control import TopicPartition
from headrace.kafka.sizes import RecordSizes


def sizes_of(topic: Topic) -> RecordSizes:
    return RecordSizes(
        {"bootstrap.servers": topic.bootstrap_servers, "group.id": f"sizes-of-{topic.name}"}, 30_000
    )


def test_sizes_are_of_key_and_value_and_of_each_topic_for_itself(topic: TopicFactory) -> None:
    large, small, empty = topic(), topic(), topic()
    large.produce(*[b"x" * 1_000] * 5, key=b"k" * 24)
    small.produce(b"12345678", None, key=b"ab")
    sizes = sizes_of(large)
    ends = {TopicPartition(large.name, 0): 5, TopicPartition(small.name, 0): 2}
    nowhere = {TopicPartition(empty.name, 0): 0}
    starts = dict.fromkeys([*ends, *nowhere], 0)
    assert sizes.measure(starts, ends | nowhere) == {large.name: 1_024, small.name: 6}


def test_the_records_that_come_next_are_measured_and_the_last_sizes_kept(
    topic: TopicFactory,
) -> None:
    orders = topic()
    orders.produce(*[b"x" * 10] * 100, *[b"x" * 500] * 100)
    sizes = sizes_of(orders)
    place = TopicPartition(orders.name, 0)
    for position, expected in ((0, 10), (100, 500), (200, 500)):
        assert sizes.measure({place: position}, {place: 200}) == {orders.name: expected}


def test_the_partitions_furthest_behind_make_up_the_sample(topic: TopicFactory) -> None:
    orders = topic(4)
    for partition in range(3):
        orders.produce(*[b"x" * 100] * 50, partition=partition)
    orders.produce(b"x" * 10_000, partition=3)
    ends = {TopicPartition(orders.name, number): 50 if number < 3 else 1 for number in range(4)}
    measured = sizes_of(orders).measure(dict.fromkeys(ends, 0), ends)
    assert measured == {orders.name: 100}
