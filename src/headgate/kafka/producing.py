"""The task side of writing: Arrow record batches in, Kafka records out."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headgate.errors import BrokerError
from headgate.kafka.attempts import HEADER

CLIENT_LOG: Final = logging.getLogger("headgate.kafka.producer")
"""What a producer's client says."""
# Each failed connection is a line, and each setting that only a consumer uses; what is wrong is
# told once, by our own error.
CLIENT_LOG.addHandler(logging.NullHandler())
CLIENT_LOG.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))

TIMEOUT_MS: Final = 120_000
"""How long the brokers have to take a record, as Java's producer gives them."""

_A_MOMENT_S: Final = 0.5


def produce(
    client: Mapping[str, Any], topic: str, tag: str, batches: Iterable[pa.RecordBatch]
) -> int:
    """Produce records, none of them twice; all are taken by every replica in sync when it returns.

    Args:
        client: librdkafka's settings, as `client_config` makes them.
        topic: Where to; a record goes to the partition to which Java's client takes its key.
        tag: What each record's header says.
        batches: With the columns key and value (binary) and headers.

    Returns:
        How many records there were.

    Raises:
        BrokerError: The brokers did not take one of them; others may be in the topic.
    """
    failures: list[str] = []
    reasons: list[str] = []

    def send(key: Any, value: Any, headers: Any) -> None:
        while True:
            try:
                producer.produce(topic, value, key, headers=headers, on_delivery=delivered)
            except BufferError:
                producer.poll(_A_MOMENT_S)
            else:
                producer.poll(0)
                return

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error.str())

    def heard(error: KafkaError) -> None:
        # "All brokers down" only follows the error that says why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            reasons[:] = [error.str()]

    producer = Producer(_settings(client) | {"error_cb": heard}, logger=CLIENT_LOG)
    count = 0
    try:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("key", "value", "headers"))
            for key, value, headers in zip(*columns, strict=True):
                send(key, value, _headers(tag, headers))
            count += batch.num_rows
            if failures:
                break
        while producer.flush(_A_MOMENT_S):
            pass  # Not in one wait, in which no signal would be heard.
    except KafkaException as error:
        failures.append(str(error))
    if failures:
        because = f"{failures[0]} ({reasons[0]})" if reasons else failures[0]
        raise BrokerError(
            f"Topic {topic!r} at {client['bootstrap.servers']} did not take {len(failures)}"
            f" records: {because}; check that the topic exists, that its brokers run and that this"
            " user may write to it."
        )
    return count


def _settings(client: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **client,
        "enable.idempotence": True,
        "message.timeout.ms": TIMEOUT_MS,
        "partitioner": "murmur2_random",  # Java's
        "message.max.bytes": 1_000_000_000,  # What the topic takes is the broker's to say.
        "linger.ms": 5,
        "compression.type": client.get("compression.type", "lz4"),
    }


def _headers(tag: str, headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    # Of a record that comes from another channel, the header says how it came there.
    own = [(each["key"], each["value"]) for each in headers or () if each["key"] != HEADER]
    return [(HEADER, tag.encode()), *own]
