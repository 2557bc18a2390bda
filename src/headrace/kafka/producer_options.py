"""What becomes of the options of Kafka's Java producer, beyond those that its consumer has, too."""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException, Producer

from headrace.errors import OptionError
from headrace.kafka.client_config import client_config, translate
from headrace.kafka.client_values import (
    BOOLEAN,
    INT,
    LONG,
    Fate,
    NoEffect,
    Refused,
    Translated,
    Value,
    one_of,
    whole,
)
from headrace.kafka.redaction import is_secret, shown

_MOST: Final = 2**31 - 1
_BINARY: Final = "keys and values are strings or binary: cast the columns"
_NO_TRANSACTION: Final = (
    "a task that runs again produces again, in no transaction; a flow's channel is read once"
)

PRODUCER_OPTIONS: Final[Mapping[str, Fate]] = {
    "acks": Translated("acks", one_of("all", "-1", "0", "1"), "default all, as in Java"),
    "batch.size": Translated("batch.size", whole(1, _MOST)),
    "buffer.memory": NoEffect(
        LONG, "librdkafka counts otherwise: kafka.queue.buffering.max.kbytes"
    ),
    "compression.type": Translated(
        "compression.type", one_of("none", "gzip", "snappy", "lz4", "zstd")
    ),
    "delivery.timeout.ms": Translated("message.timeout.ms", whole(1, _MOST)),
    "enable.idempotence": Translated("enable.idempotence", BOOLEAN, "default true, as in Java"),
    "key.serializer": Refused(_BINARY),
    "linger.ms": Translated("linger.ms", whole(0, 900_000)),
    "max.block.ms": NoEffect(LONG, "kafka.delivery.timeout.ms counts from the beginning"),
    "max.in.flight.requests.per.connection": Translated(
        "max.in.flight.requests.per.connection", whole(1, 1_000_000)
    ),
    "max.request.size": Translated("message.max.bytes", whole(1000, 1_000_000_000)),
    "metadata.max.idle.ms": NoEffect(LONG, "a task ends before"),
    "partitioner.adaptive.partitioning.enable": NoEffect(BOOLEAN, "librdkafka does without"),
    "partitioner.availability.timeout.ms": NoEffect(LONG, "librdkafka does without"),
    "partitioner.class": Refused("there is no Java here; use the column partition"),
    "partitioner.ignore.keys": Refused("leave the column key out, or use the column partition"),
    "retries": Translated("message.send.max.retries", whole(0, _MOST)),
    "transaction.timeout.ms": NoEffect(INT, "there is no transaction"),
    "transaction.two.phase.commit.enable": Refused(_NO_TRANSACTION),
    "transactional.id": Refused(_NO_TRANSACTION),
    "value.serializer": Refused(_BINARY),
}
"""By Java's name, without ``kafka.``."""

# Of librdkafka's own, those that are for users to set.
_OWN: Final = frozenset(
    {
        *("compression.level", "partitioner", "queue.buffering.max.kbytes"),
        *("queue.buffering.max.messages", "sticky.partitioning.linger.ms"),
    }
)


def producer_config(kafka_options: Mapping[str, str]) -> dict[str, Value]:
    """The librdkafka configuration of a producer for options of the Java client.

    As in Java, options that only a consumer has are without effect. What comes out is accepted by
    librdkafka: a client was made of it, without a connection.

    Args:
        kafka_options: names without ``kafka.``, in any case, and their values.

    Raises:
        OptionError: An option is missing, unknown, not valid, refused, or contradicts another. Its
            text shows no secret.

    >>> producer_config({"bootstrap.servers": "kafka:9092", "delivery.timeout.ms": "5000"})[
    ...     "message.timeout.ms"
    ... ]
    5000
    """
    options = {name.lower(): value.strip() for name, value in kafka_options.items()}
    own = {name: value for name, value in options.items() if name in _OWN}
    java = {name: value for name, value in options.items() if name in PRODUCER_OPTIONS}
    # What a consumer fetches at most would be taken for the size of a message.
    others = own.keys() | java.keys() | {"fetch.max.bytes"}
    rest = {name: value for name, value in options.items() if name not in others}
    config: dict[str, Value] = {**client_config(rest), **own}
    for name, value in java.items():
        translate(PRODUCER_OPTIONS[name], name, value, config)
    # In Java, too, weaker acknowledgements are without idempotence where that is not asked for.
    weak = config.get("acks") in {"0", "1"}
    config.setdefault("enable.idempotence", not weak)
    _check(config, {**own, **java})
    return config


def _check(config: Mapping[str, Value], given: Mapping[str, str]) -> None:
    """Have librdkafka make a producer, which knows no broker and so never connects."""
    quiet = {"bootstrap.servers", "debug", "log_level"}
    unconnected = {name: value for name, value in config.items() if name not in quiet}
    try:
        Producer({**unconnected, "log_level": 0})
    except (KafkaException, ValueError) as error:
        reason = str(error.args[0].str() if isinstance(error, KafkaException) else error)
    else:
        return
    # Not raised from it, for its text may hold a secret.
    for name, value in config.items():
        if is_secret(name):
            reason = reason.replace(str(value), "***")
    named = " and ".join(shown(name, value) for name, value in given.items())
    raise OptionError(f"librdkafka refuses {named} ({reason}); correct it.")
