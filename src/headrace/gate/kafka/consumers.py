"""Cache of connected consumers in a worker process, and a task's requests about missing records.

A worker process opens one consumer per configuration and reuses it. Opening a consumer costs a
connection, a metadata request and several round trips: about 20 ms on one machine, and far more
with TLS. Assigning an open consumer to other offsets costs one fetch.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition as Position

from headrace.core.ranges import TopicPartition
from headrace.gate.kafka.client.tokens import with_tokens

_LOG: Final = logging.getLogger("headrace.kafka")

ClientConfig = Mapping[str, str | int | float | bool]
MakeConsumer = Callable[..., Consumer]
_Key = tuple[MakeConsumer, frozenset[tuple[str, str | int | float | bool]]]

KEEP_AT_MOST: Final = 8
"""Maximum number of idle consumers in a worker process. The worker runs one task at a time, so
there is at most one idle consumer for each configuration."""

# Settings that the reader needs, whatever the user sets.
_ALWAYS: Final[ClientConfig] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A missing offset must be an error that the reader sees, never a silent jump.
    "auto.offset.reset": "error",
    # Report the end of a log: a range that ends on a control record has no message at its end.
    "enable.partition.eof": True,
}
_DEFAULTS: Final[ClientConfig] = {
    # The default of 1000 ms stalls an assigned partition for a second once its queue was full.
    "fetch.queue.backoff.ms": 2,
    # The records to read exist already. At the end of a log the broker delays a fetch by this time,
    # and with it a consumer that is assigned other offsets: half a second by default.
    "fetch.wait.max.ms": 10,
    # Records fetched ahead of the reader, kB. The default of 64 MB for each task reads no faster.
    "queued.max.messages.kbytes": 16_384,
    "log.connection.close": False,
}
MISSING: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
"""Error codes that mean that a topic or partition does not exist."""

REFUSALS: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
"""Codes of permanent errors, for which a retry is useless."""


class WarmConsumer:
    """Connected consumer that is reused, with the last errors of its connections.

    Attributes:
        last_error: Error of the last failed connection. It is kept because librdkafka reports an
            error only once.
        refusal: Last error whose code is in ``REFUSALS``; reset to None when a reader receives
            records.
    """

    def __init__(self, config: ClientConfig, make: MakeConsumer = Consumer) -> None:
        self.last_error: KafkaError | None = None
        self.refusal: KafkaError | None = None
        self.kafka = make(
            {**_DEFAULTS, **with_tokens(config), **_ALWAYS, "error_cb": self.on_error}, logger=_LOG
        )

    def on_error(self, error: KafkaError) -> None:
        """Store an error of a connection; librdkafka calls this.

        The error about a missing right on the consumer group is ignored: the reader needs no group,
        because it assigns partitions itself and commits nothing.
        """
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return
        if error.code() in REFUSALS:
            self.refusal = error
        # "All brokers down" follows the error with the reason, so keep the first error.
        if self.last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_error = error


_idle: OrderedDict[_Key, WarmConsumer] = OrderedDict()


@contextmanager
def warm_consumer(config: ClientConfig, make: MakeConsumer = Consumer) -> Iterator[WarmConsumer]:
    """Lend a consumer of this kind and configuration, idle or new, without assigned partitions.

    After an exception the consumer is closed, because its state is unknown. Otherwise it is kept
    for the next use.
    """
    key = make, frozenset(config.items())
    consumer = _idle.pop(key, None) or WarmConsumer(config, make)
    consumer.last_error = consumer.refusal = None
    try:
        yield consumer
    except GeneratorExit:  # The reader was not read to its end, for example because of a limit.
        _keep(key, consumer)
        raise
    except BaseException:
        consumer.kafka.close()
        raise
    _keep(key, consumer)


def _keep(key: _Key, consumer: WarmConsumer) -> None:
    consumer.kafka.unassign()  # Otherwise the idle consumer would keep fetching.
    previous = _idle.pop(key, None)
    if previous is not None:
        previous.kafka.close()
    _idle[key] = consumer
    while len(_idle) > KEEP_AT_MOST:
        _, oldest = _idle.popitem(last=False)
        oldest.kafka.close()


def close_idle_consumers() -> None:
    """Close all idle consumers of this process. Tests call this before they use another broker."""
    while _idle:
        _, consumer = _idle.popitem()
        consumer.kafka.close()


def asking_consumer(
    client: ClientConfig, make: MakeConsumer = Consumer
) -> AbstractContextManager[WarmConsumer]:
    """Lend a consumer for questions about partitions, as `warm_consumer` does.

    With read_committed, the end of a partition is the last stable offset, the start of an open
    transaction. The records after it are not lost, so the consumer is told the end of the log.
    """
    return warm_consumer({**client, "isolation.level": "read_uncommitted"}, make)


def find_watermarks(
    client: ClientConfig, tp: TopicPartition, timeout_s: float, make: MakeConsumer = Consumer
) -> tuple[int, int] | None:
    """Return a partition's first offset and end offset; None if no broker answers in time."""
    with asking_consumer(client, make) as consumer:
        try:
            return consumer.kafka.get_watermark_offsets(Position(*tp), timeout=timeout_s)
        except KafkaException:
            return None


def find_missing(
    kafka: Consumer, partitions: Iterable[TopicPartition], timeout_s: float
) -> set[TopicPartition] | None:
    """Return the partitions that a broker says do not exist; None if no broker answers in time."""
    wanted = set(partitions)
    missing = set()
    for topic in {tp.topic for tp in wanted}:
        try:
            described = kafka.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException:
            return None
        if described.error is None or described.error.code() in MISSING:
            missing |= {
                tp
                for tp in wanted
                if tp.topic == topic and tp.partition not in described.partitions
            }
    return missing
