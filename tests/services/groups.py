"""Offsets that a consumer group has committed."""

from confluent_kafka import Consumer, TopicPartition
from tests.services.kafka import Topic


def committed(topic: Topic, group: str) -> list[int]:
    """The group's offset of each partition; -1001 where it has none."""
    consumer = Consumer({"bootstrap.servers": topic.bootstrap_servers, "group.id": group})
    wanted = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    found = [position.offset for position in consumer.committed(wanted, timeout=60)]
    consumer.close()
    return found
