"""Records into Kafka's topics, by a producer that produces nothing twice."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import BrokerError

CLIENT_LOG: Final = logging.getLogger("headrace.kafka.producer")
"""The logger of a producer's client."""
# Each failed connection is a line, and each setting that only a consumer uses; our own error says
# once what is wrong.
CLIENT_LOG.addHandler(logging.NullHandler())
CLIENT_LOG.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))

TIMEOUT_MS: Final = 120_000
"""How long the brokers have to take a record, as Java's producer gives them."""

_A_MOMENT_S: Final = 0.5
_BY_KEY: Final = -1
"""librdkafka's word for no partition in particular."""


class Record(NamedTuple):
    """What is produced; without a partition it goes where Java's client puts its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None = None


def produce_all(client: Mapping[str, Any], records: Iterable[Record]) -> int:
    """Produce records; all are acknowledged as the settings say when it returns.

    Args:
        client: librdkafka's settings, as `producer_config` or `client_config` makes them; what they
            say of a producer stands, and by default it produces nothing twice.
        records: In the order in which each partition has them.

    Returns:
        How many there were.

    Raises:
        BrokerError: The brokers did not take one of them; others may be in their topics.
    """
    failures: list[tuple[str, str]] = []
    reasons: deque[str] = deque(maxlen=1)

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append((str(message.topic()), error.str()))

    settings = {**producer_settings(client, TIMEOUT_MS, reasons.append), "linger.ms": 5, **client}
    producer = Producer(settings, logger=CLIENT_LOG)
    count = 0
    topic = ""
    try:
        for record in records:
            topic = record.topic
            send(producer, record, delivered)
            count += 1
            if failures:
                break
        flush(producer)
    except KafkaException as error:
        failures.append((topic, str(error)))
    if failures:
        topic, why = failures[0]
        where = f"Topic {topic!r} at {client['bootstrap.servers']}"
        raise not_taken(where, f"{len(failures)} records", why, reasons)
    return count


def send(producer: Producer, record: Record, delivered: Callable[..., None]) -> None:
    """Queue a record as soon as there is room for it; `delivered` is called with its outcome.

    Raises:
        KafkaException: the client does not take it.
    """
    partition = _BY_KEY if record.partition is None else record.partition
    while True:
        try:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                partition,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        except BufferError:
            producer.poll(_A_MOMENT_S)
        else:
            producer.poll(0)
            return


def producer_settings(
    client: Mapping[str, Any], timeout_ms: int, on_error: Callable[[str], None]
) -> dict[str, Any]:
    """Librdkafka's settings for a producer that produces nothing twice.

    Args:
        client: Those of the connection, as `client_config` makes them.
        timeout_ms: How long the brokers have to take a record (ms).
        on_error: Called with the reason each time that the brokers cannot be reached.
    """

    def failed(error: KafkaError) -> None:
        # "All brokers down" only follows the error that says why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            on_error(error.str())

    return {
        **client,
        "enable.idempotence": True,
        "message.timeout.ms": timeout_ms,
        "partitioner": "murmur2_random",  # Java's
        "message.max.bytes": 1_000_000_000,  # What the topic takes is the broker's to say.
        "error_cb": failed,
    }


def flush(producer: Producer) -> None:
    """Return when each record that was queued has been taken, or refused."""
    while producer.flush(_A_MOMENT_S):
        pass  # Not in one wait, in which no signal would be heard.


def not_taken(where: str, what: str, why: str, reasons: Sequence[str]) -> BrokerError:
    """The error that something was not taken by a topic.

    Args:
        where: The topic, and its brokers.
        what: What it did not take.
        why: The client's reason.
        reasons: What `producer_settings` has reported; the last one says more.
    """
    because = f"{why} ({reasons[-1]})" if reasons else why
    return BrokerError(
        f"{where} did not take {what}: {because}; check that the topic exists, that its brokers run"
        " and that this user may write to it."
    )
