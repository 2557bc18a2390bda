"""Changes of topics while a query reads them."""

from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.services.kafka import Topic, leaders
from tests.services.waiting import wait_until


def add_partitions(admin: AdminClient, topic: Topic, count: int) -> None:
    """Give a topic more partitions, so that it has ``count``."""
    admin.create_partitions([NewPartitions(topic.name, count)])[topic.name].result(30)
    # Asked through both clients, which learn of the new partitions in this way.
    wait_until(lambda: leaders(admin, topic.name) == count)
    wait_until(lambda: leaders(topic.producer, topic.name) == count)


def delete_records(admin: AdminClient, topic: Topic, before: int, partition: int = 0) -> None:
    """Have a partition's log begin at an offset, as retention does."""
    position = TopicPartition(topic.name, partition, before)
    for deleted in admin.delete_records([position]).values():
        assert deleted.result(30).low_watermark == before


def delete_topic(admin: AdminClient, topic: Topic) -> None:
    """Delete a topic and wait until it is gone."""
    admin.delete_topics([topic.name])[topic.name].result(30)
    wait_until(lambda: topic.name not in admin.list_topics(timeout=60).topics)


def create_again(admin: AdminClient, topic: Topic) -> None:
    """Delete a topic and make one of the same name."""
    delete_topic(admin, topic)
    create_deleted(admin, topic)


def create_deleted(admin: AdminClient, topic: Topic) -> None:
    """Make a topic of the name of one that was deleted."""
    new = NewTopic(topic.name, topic.partitions, 1)
    wait_until(lambda: _succeeds(lambda: admin.create_topics([new])[topic.name].result(30)))
    wait_until(lambda: leaders(topic.producer, topic.name) == topic.partitions)


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except KafkaException:  # for a moment the old one is still in the way
        return False
    return True
