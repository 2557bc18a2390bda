"""Consumers kept warm: a worker process opens one for each configuration and uses it again.

Opening a consumer costs a connection, a metadata request and several round trips (some 20 ms on one
machine, far more with TLS); assigning a warm one to other offsets costs one fetch.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaError

_LOG: Final = logging.getLogger("headrace.kafka")

ClientConfig = Mapping[str, str | int | float | bool]

# A worker serves one task at a time, so this many different configurations (sources, fetch sizes).
_KEEP_AT_MOST: Final = 8

# What the reader relies on, whatever the user sets.
_ALWAYS: Final[ClientConfig] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # An offset that is gone is an error for the reader to see, never a silent jump.
    "auto.offset.reset": "error",
    # Tells where a log ends: a range that ends on a control record yields no message for its end.
    "enable.partition.eof": True,
}
_DEFAULTS: Final[ClientConfig] = {
    # librdkafka's 1000 ms stalls an assigned partition for a whole second once its queue was full.
    "fetch.queue.backoff.ms": 2,
    # What is read is there already. At the end of a log the broker keeps a fetch waiting this long,
    # and a consumer that is assigned other offsets waits with it: half a second by default.
    "fetch.wait.max.ms": 10,
    # What is fetched ahead of the reader, kB. The default of 64 MB for each task reads no faster.
    "queued.max.messages.kbytes": 16_384,
    "log.connection.close": False,
}


REFUSALS: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
"""Errors that trying again does not mend."""


class WarmConsumer:
    """A consumer, and what its connections reported.

    Attributes:
        last_error: why a broker could not be reached; librdkafka does not repeat itself.
        refusal: the last of ``REFUSALS``; whoever hears of the broker again sets it to None.
    """

    def __init__(self, config: ClientConfig) -> None:
        self.last_error: KafkaError | None = None
        self.refusal: KafkaError | None = None
        self.kafka = Consumer(
            {**_DEFAULTS, **config, **_ALWAYS, "error_cb": self._on_error}, logger=_LOG
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self.refusal = error
        # "All brokers down" follows the error that says why; the first is worth keeping.
        if self.last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_error = error


_idle: OrderedDict[frozenset[tuple[str, str | int | float | bool]], WarmConsumer] = OrderedDict()


@contextmanager
def warm_consumer(config: ClientConfig) -> Iterator[WarmConsumer]:
    """Lend a consumer of this configuration, with nothing assigned: an idle one, or a new one.

    After an exception it is closed, for its state is unknown then; otherwise it is kept for this
    process's next borrower.
    """
    key = frozenset(config.items())
    consumer = _idle.pop(key, None) or WarmConsumer(config)
    consumer.last_error = consumer.refusal = None
    try:
        yield consumer
    except GeneratorExit:  # a reader that was not read to its end, by a limit for instance
        _keep(key, consumer)
        raise
    except BaseException:
        consumer.kafka.close()
        raise
    _keep(key, consumer)


def _keep(key: frozenset[tuple[str, str | int | float | bool]], consumer: WarmConsumer) -> None:
    consumer.kafka.unassign()  # or it would go on fetching for nobody
    taken = _idle.pop(key, None)
    if taken is not None:
        taken.kafka.close()
    _idle[key] = consumer
    while len(_idle) > _KEEP_AT_MOST:
        _, oldest = _idle.popitem(last=False)
        oldest.kafka.close()


def close_idle_consumers() -> None:
    """Close what is kept in this process; tests call it between brokers."""
    while _idle:
        _, consumer = _idle.popitem()
        consumer.kafka.close()
