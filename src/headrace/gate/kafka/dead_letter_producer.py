"""Production of dead letters to Kafka: sent again for processing, or copied to another topic."""

import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import BrokerError, OptionError
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.client.option_values import client_options
from headrace.gate.kafka.client.tokens import with_tokens
from headrace.gate.kafka.producing import (
    CLIENT_LOG,
    ProducedRecord,
    flush,
    not_taken,
    producer_settings,
    send,
)

if TYPE_CHECKING:
    from headrace.gate.ledger.records import DeadLetter

ORIGIN: Final = "headrace.dead-letter."
"""Prefix of the headers with a dead letter's origin: ``topic``, ``partition``, ``offset``."""

WHY: Final = "headrace.error."
"""Prefix of the headers with a dead letter's error: ``class`` and ``message``."""

TIMEOUT_MS: Final = 30_000
"""Time for the brokers to store a record (ms): long enough for a leader election."""

_LOG: Final = logging.getLogger("headrace.kafka")

_Headers = tuple[tuple[str, bytes | None], ...]


def resent_record(
    letter: "DeadLetter", *, topic: str | None = None, mended: "DeadLetter | None" = None
) -> ProducedRecord:
    """Return the record that sends a dead letter again, with ``mended``'s content if it is set.

    The record goes to its original partition if topic and key are unchanged.
    """
    content = letter if mended is None else mended
    back = topic in {None, letter.topic} and content.key == letter.key
    return ProducedRecord(
        topic=letter.topic if topic is None else topic,
        key=content.key,
        value=content.value,
        headers=(*_without_ours(content), *_origin(letter)),
        partition=letter.partition if back else None,
    )


def dead_letter_record(letter: "DeadLetter", topic: str) -> ProducedRecord:
    """Return the copy of a dead letter for a topic of dead letters. Headers hold the error."""
    why = (
        (f"{WHY}class", letter.error.error_class.encode()),
        (f"{WHY}message", letter.error.message.encode()),
    )
    headers = (*_without_ours(letter), *_origin(letter), *why)
    return ProducedRecord(topic, letter.key, letter.value, headers)


class DeadLetterProducer:
    """Idempotent producer of dead letters. All in-sync replicas must acknowledge a record.

    Args:
        options: Options with the connection in ``kafka.*``, such as the stream's options. Names
            are those of Java's client.
        timeout_ms: Time for the brokers to store a record (ms).
    """

    def __init__(self, options: Mapping[str, str], *, timeout_ms: int = TIMEOUT_MS) -> None:
        client = client_config(client_options(options))
        self._servers = client["bootstrap.servers"]
        self._reasons: deque[str] = deque(maxlen=1)
        settings = {
            **producer_settings(client, timeout_ms, self._reasons.append),
            "batch.num.messages": 1,  # A too large record is refused with its whole batch.
        }
        self._producer = Producer(with_tokens(settings), logger=CLIENT_LOG)

    def send(self, record: ProducedRecord) -> Future[str]:
        """Queue a record. Return a future with the record's place, such as ``orders-0 at 17``.

        `flush` completes the future. The future raises `BrokerError` if the record is refused.
        """
        sent: Future[str] = Future()
        try:
            send(self._producer, record, partial(self._delivered, sent, record.topic))
        except KafkaException as error:
            sent.set_exception(self._refusal(record.topic, str(error)))
        return sent

    def flush(self) -> None:
        """Wait until every queued record has been stored or refused."""
        flush(self._producer)

    def _delivered(
        self, sent: Future[str], topic: str, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            sent.set_result(f"{topic}-{message.partition()} at {message.offset()}")
        else:
            sent.set_exception(self._refusal(topic, error.str()))

    def _refusal(self, topic: str, reason: str) -> BrokerError:
        where = f"Topic {topic!r} at {self._servers} (kafka.bootstrap.servers)"
        return not_taken(where, "a dead letter", reason, self._reasons)


class DeadLetterTopic:
    """Topic that receives copies of dead letters. A failed copy is logged, and raises nothing.

    The producer connects at the first dead letter, with the stream's ``kafka.*`` options.
    """

    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._options = options
        self._topic = topic
        self._producer: DeadLetterProducer | None = None
        self._sent: list[Future[str]] = []

    def send(self, letter: "DeadLetter") -> None:
        """Queue a copy of a dead letter. `flush` waits until it is stored or refused."""
        if letter.topic == self._topic:
            _LOG.warning(
                "The dead letter of %s-%d at %d is in the ledger only, because the topic for dead"
                " letters is the topic that the gate reads; name another topic.",
                letter.topic,
                letter.partition,
                letter.offset,
            )
            return
        try:
            self._producer = self._producer or DeadLetterProducer(self._options)
        except OptionError as error:
            _LOG.warning("Dead letters are not copied to the topic %r: %s", self._topic, error)
            return
        self._sent.append(self._producer.send(dead_letter_record(letter, self._topic)))

    def flush(self) -> None:
        """Wait until every queued copy has been stored or refused; log the refused ones."""
        if self._producer is not None:
            self._producer.flush()
        for sent in self._sent:
            if (error := sent.exception()) is not None:
                _LOG.warning("A dead letter is in the ledger only: %s", error)
        self._sent.clear()


def _origin(letter: "DeadLetter") -> _Headers:
    return (
        (f"{ORIGIN}topic", letter.topic.encode()),
        (f"{ORIGIN}partition", str(letter.partition).encode()),
        (f"{ORIGIN}offset", str(letter.offset).encode()),
    )


def _without_ours(letter: "DeadLetter") -> _Headers:
    return tuple(
        header for header in letter.headers or () if not header[0].startswith((ORIGIN, WHY))
    )
