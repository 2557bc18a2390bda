"""Topics on the session's broker."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.services.waiting import wait_until

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Topic:
    """A topic that a test has for itself."""

    name: str
    partitions: int
    bootstrap_servers: str
    producer: Producer

    def produce(
        self,
        *values: bytes | None,
        key: bytes | None = None,
        partition: int = 0,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> None:
        """Append one record for each value, in order, and return when the broker has them all.

        A ``timestamp_ms`` of 0 means now.
        """
        failures = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            while True:
                try:
                    self.producer.produce(
                        self.name,
                        value,
                        key,
                        partition,
                        on_delivery=delivered,
                        timestamp=timestamp_ms,
                        headers=list(headers),
                    )
                except BufferError:
                    self.producer.poll(0.1)
                else:
                    break
        unsent = self.producer.flush(30)
        assert not failures, failures
        assert unsent == 0, f"{unsent} records did not reach {self.bootstrap_servers} in 30 s"


def records_in(topic: Topic) -> list[Message]:
    """All records of a topic, those of each partition in order."""
    settings = {"bootstrap.servers": topic.bootstrap_servers, "group.id": "t", "log_level": 0}
    consumer = Consumer(settings)
    places = [TopicPartition(topic.name, number, 0) for number in range(topic.partitions)]
    count = sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in places)
    consumer.assign(places)
    found: list[Message] = []
    for _ in range(count):
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None
        found.append(message)
    consumer.close()
    return found


class TopicFactory(Protocol):
    """The ``topic`` fixture: every call makes a fresh topic."""

    def __call__(
        self, partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "topic"
    ) -> Topic: ...


class Topics:
    """Makes topics of fresh names on one broker.

    Args:
        first: the number of the first one, where another process makes topics there, too.
    """

    def __init__(self, bootstrap_servers: str, first: int = 0) -> None:
        self.bootstrap_servers = bootstrap_servers
        # Its own log would only say that the broker has gone, when the run ends.
        client: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
        }
        self.admin = AdminClient(client)
        # A record that is sent again must not come after a later one: each record's place is known.
        self.producer = Producer({**client, "linger.ms": 1, "enable.idempotence": True})
        self._numbers = itertools.count(first)

    def create(
        self, partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "topic"
    ) -> Topic:
        """A new topic ``prefix-N``, whose partitions all have their leader."""
        name = f"{prefix}-{next(self._numbers)}"
        new = NewTopic(name, partitions, 1, config=dict(config or {}))
        self.admin.create_topics([new])[name].result(30)
        wait_until(lambda: leaders(self.admin, name) == partitions)
        return Topic(name, partitions, self.bootstrap_servers, self.producer)


def leaders(client: AdminClient | Producer, name: str) -> int:
    """Count the partitions of a topic that have a leader, as this client learns by asking."""
    found = client.list_topics(name, timeout=60).topics[name].partitions
    return sum(partition.leader >= 0 for partition in found.values())
