"""What a task asks of the cluster where its fetches fall silent."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from headrace.control.ranges import TopicPartition
from headrace.kafka.consumers import ClientConfig, warm_consumer

_TIMEOUT_S: Final = 5.0
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


@dataclass(frozen=True, slots=True)
class Log:
    """The offsets ``earliest`` (included) to ``latest`` (excluded) that a partition's log holds."""

    earliest: int
    latest: int


def find_log(client: ClientConfig, tp: TopicPartition) -> Log | None:
    """What the partition's log holds; None where no broker can tell."""
    # With read_committed a client takes the last stable offset for the end: that is where an open
    # transaction begins, and what follows is not lost.
    with warm_consumer({**client, "isolation.level": "read_uncommitted"}) as consumer:
        try:
            return Log(*consumer.kafka.get_watermark_offsets(Position(*tp), timeout=_TIMEOUT_S))
        except KafkaException:
            return None


def find_missing(
    kafka: Consumer, partitions: Iterable[TopicPartition]
) -> set[TopicPartition] | None:
    """Those that do not exist, as far as one broker knows; None where no broker answers."""
    wanted = set(partitions)
    missing = set()
    for topic in {tp.topic for tp in wanted}:
        try:
            described = kafka.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        except KafkaException:
            return None
        if described.error is None or described.error.code() in _GONE:
            missing |= {
                tp
                for tp in wanted
                if tp.topic == topic and tp.partition not in described.partitions
            }
    return missing
