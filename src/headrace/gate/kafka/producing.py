"""Production of records into Kafka's topics with an idempotent producer."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.errors import BrokerError
from headrace.gate.kafka.client.tokens import with_tokens

_OF_TOPIC: Final = "max.message.bytes"
_OF_PRODUCER: Final = "message.max.bytes"
_ASKED_S: Final = 10.0


def too_large(
    client: Mapping[str, Any], topic: str | None, where: str, sizes: Sequence[int]
) -> BrokerError:
    """Return the error for records that exceed the size limit of their topic or producer.

    If one record is too large, the topic refuses all records of the producer's batch. It also
    refuses a batch that is too large, even if each record would fit. ``topic`` is None if the
    producer itself refused the records. ``where`` describes the topic and its brokers for the
    message. ``sizes`` has the size of each refused record (bytes).
    """
    if topic is None:
        name, limit_bytes = "kafka.max.request.size", client[_OF_PRODUCER]
    else:
        name, limit_bytes = f"its {_OF_TOPIC}", _limit(client, topic)
    largest_bytes, fits = max(sizes), False
    if limit_bytes is None:
        limit = f"{name} cannot be looked up by this user"
        which = ", which is too large" if len(sizes) == 1 else ", at least one of them too large"
    else:
        number = sum(size >= limit_bytes for size in sizes)
        limit, fits = f"{name} is {limit_bytes}", number == 0
        which = f", {number} of them too large"
        if fits or number == len(sizes):
            which = ", which is too large" if len(sizes) == 1 else ", which are too large"
    advice = f"set kafka.batch.size to {limit_bytes} at most" if fits else "make records smaller"
    return BrokerError(
        f"{where} did not take {_records(len(sizes))}{which}; {limit}, and the largest of these"
        f" records has {largest_bytes} bytes: {advice}, or raise the limit."
    )


def _records(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _limit(client: Mapping[str, Any], topic: str) -> int | None:
    """Return a topic's maximum message size (bytes); None if this user may not read the setting."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        admin = AdminClient({**with_tokens(client), "log_level": 0}, logger=CLIENT_LOG)
        settings = admin.describe_configs([resource], request_timeout=_ASKED_S)[resource].result()
        return int(settings[_OF_TOPIC].value)
    except (KafkaException, KeyError, ValueError):
        return None


CLIENT_LOG: Final = logging.getLogger("headrace.kafka.producer")
"""Logger for the messages of librdkafka's producer."""
# The client logs a line for each failed connection, and for each setting that only a consumer uses;
# Headrace's own error describes the cause once.
CLIENT_LOG.addHandler(logging.NullHandler())
CLIENT_LOG.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))

TIMEOUT_MS: Final = 120_000
"""Time in which the brokers must store a record (ms), as in Java's producer."""

_A_MOMENT_S: Final = 0.5
_BY_KEY: Final = -1
"""Partition number that makes librdkafka choose the partition by the record's key."""


class ProducedRecord(NamedTuple):
    """Record to produce. If ``partition`` is None, the key decides, as in Java's client."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None = None


def produce_all(client: Mapping[str, Any], records: Iterable[ProducedRecord]) -> int:
    """Produce records in order and wait until all are acknowledged. Return their number.

    Producer settings in ``client`` override the defaults, such as the idempotent producer.

    Raises:
        BrokerError: The brokers refused a record; other records may be in their topics.
    """
    failures = _Failures()
    reasons: deque[str] = deque(maxlen=1)
    settings = {**producer_settings(client, TIMEOUT_MS, reasons.append), "linger.ms": 5, **client}
    producer = Producer(with_tokens(settings), logger=CLIENT_LOG)
    count = 0
    record = None
    try:
        for record in records:
            send(producer, record, failures.delivered)
            count += 1
            if failures.count:
                break
        flush(producer)
    except KafkaException as error:
        failures.refused(record, error.args[0])
    if failures.count:
        raise failures.error(settings, reasons)
    return count


class _Failures:
    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._topic = ""
        self._why: KafkaError | None = None
        self._by_client = False

    @property
    def count(self) -> int:
        return len(self._sizes)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            size = len(message.key() or b"") + len(message.value() or b"")
            self._add(str(message.topic()), error, size)

    def refused(self, record: ProducedRecord | None, error: KafkaError) -> None:
        """Add a record that the client itself has refused, or a fatal error of the client."""
        self._by_client = self.count == 0
        if record is None:
            self._add("", error, 0)
        else:
            self._add(record.topic, error, len(record.key or b"") + len(record.value or b""))

    def error(self, client: Mapping[str, Any], heard: Sequence[str]) -> BrokerError:
        assert self._why is not None  # noqa: S101  (set with the first failure)
        where = f"Topic {self._topic!r} at {client['bootstrap.servers']}"
        if self._why.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return not_taken(where, _records(self.count), self._why.str(), heard)
        topic = None if self._by_client else self._topic
        return too_large(client, topic, where, self._sizes)

    def _add(self, topic: str, error: KafkaError, size_bytes: int) -> None:
        if not self.count:
            self._topic, self._why = topic, error
        self._sizes.append(size_bytes)


def send(producer: Producer, record: ProducedRecord, delivered: Callable[..., None]) -> None:
    """Wait for space in the producer's queue, and queue a record for sending.

    The client later calls ``delivered`` with the error or None, and with the message.
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
    """Return librdkafka's settings for an idempotent producer.

    ``on_error`` is called with a text each time that the brokers cannot be reached.
    """

    def failed(error: KafkaError) -> None:
        # "All brokers down" only follows the error with the reason.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            on_error(error.str())

    return {
        **client,
        "enable.idempotence": True,
        "message.timeout.ms": timeout_ms,
        "partitioner": "murmur2_random",  # Java's
        "message.max.bytes": 1_000_000_000,  # The broker enforces the topic's limit.
        "error_cb": failed,
    }


def flush(producer: Producer) -> None:
    """Wait until every queued record has been stored or refused."""
    while producer.flush(_A_MOMENT_S):
        pass  # Wait in steps, because no signal is handled during a wait.


def not_taken(where: str, what: str, why: str, reasons: Sequence[str]) -> BrokerError:
    """Return the error for a topic that did not accept records, with the last of ``reasons``."""
    because = f"{why} ({reasons[-1]})" if reasons else why
    return BrokerError(
        f"{where} did not take {what}: {because}; check that the topic exists, that its brokers run"
        " and that this user may write to it."
    )
