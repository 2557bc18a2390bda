"""Topics full of records, the same for both sides; made once each."""

import itertools
import json
import random
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.errors import BrokerError

KEY: Final = b"customer"
DISTINCT: Final = 64
SEED: Final = 20
READY_S: Final = 60


def random_values(size: int) -> list[bytes]:
    """Some values of so many bytes, which do not compress."""
    source = random.Random(SEED)
    return [source.randbytes(size) for _ in range(DISTINCT)]


def order_values() -> list[bytes]:
    """Some orders as JSON, of about 200 bytes."""
    source = random.Random(SEED)
    return [
        json.dumps(
            {
                "order": f"{source.getrandbits(64):016x}",
                "customer": source.randrange(1_000_000),
                "shop": f"shop-{source.randrange(20)}",
                "placed_at": f"2026-01-{source.randrange(1, 29):02}T12:00:00.000Z",
                "items": source.randrange(1, 9),
                "amount": round(source.uniform(1, 500), 2),
                "currency": "EUR",
                "note": "leave it with the neighbours, please",
            }
        ).encode()
        for _ in range(DISTINCT)
    ]


class Topics:
    """Makes and fills topics of one broker."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        # Its own log would only say that the broker has gone, when the run ends.
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._made: dict[tuple[int, int, str], str] = {}
        self._numbers = itertools.count()

    def random(self, partitions: int, rows: int, value_bytes: int) -> str:
        """The name of a topic of so many records, with values of so many bytes."""
        return self.filled(partitions, rows, f"random-{value_bytes}", random_values(value_bytes))

    def orders(self, partitions: int, rows: int) -> str:
        """The name of a topic of so many orders."""
        return self.filled(partitions, rows, "orders", order_values())

    def empty(self, partitions: int, config: dict[str, str] | None = None) -> str:
        """The name of a topic of its own, without records."""
        name = f"bench-empty-{next(self._numbers)}"
        self._create(name, partitions, config)
        return name

    def filled(self, partitions: int, rows: int, kind: str, values: list[bytes]) -> str:
        """The name of a topic of so many records, of these values in turn."""
        key = (partitions, rows, kind)
        if key not in self._made:
            name = f"bench-{kind}-{next(self._numbers)}"
            self._create(name, partitions)
            self._fill(name, partitions, rows, values)
            self._made[key] = name
        return self._made[key]

    def _create(self, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, 1, config=config or {})
        self._admin.create_topics([topic])[name].result(READY_S)

    def _fill(self, name: str, partitions: int, rows: int, values: list[bytes]) -> None:
        """Append the values in turn, evenly to all partitions."""
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "log_level": 0,
            }
        )
        # A callback for every record would take longer than the record: one for the last of each.
        for number in range(rows):
            value, last = values[number % len(values)], number >= rows - partitions
            while True:
                try:
                    producer.produce(
                        name,
                        value,
                        KEY,
                        number % partitions,
                        on_delivery=delivered if last else None,
                    )
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
        left = producer.flush(READY_S)
        if left or refused:
            why = refused[0].str() if refused else f"{left} did not arrive within {READY_S} s"
            raise BrokerError(f"The topic {name} at {self.servers} could not be filled: {why}.")
