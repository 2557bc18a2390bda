"""Kafka's Java options, as users of Spark's native source write them, in librdkafka's names."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException

from headgate.errors import OptionError
from headgate.kafka.client_options import JAVA_OPTIONS
from headgate.kafka.client_sasl import sasl_config
from headgate.kafka.client_tls import tls_config
from headgate.kafka.client_values import Combined, NoEffect, Refused, Translated, Value, whole
from headgate.kafka.redaction import is_secret, redact, shown

__all__ = ["client_config", "is_secret", "redact"]

_JAVA_DEFAULTS: Final[Mapping[str, Value]] = {
    # Where librdkafka's differ in what is read.
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
}

_SERVER: Final = re.compile(
    r"(?:[\w.%-]*://)?(?P<address>(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]+):(?P<port>\d{1,5}))"
)

# librdkafka's own options that the reader sets, or that cannot be set by a text.
_CONTROLLED: Final = frozenset(
    {
        *("auto.commit.enable", "enable.auto.offset.store", "enable.partition.eof"),
        *("offset.store.method", "offset.store.path", "offset.store.sync.interval.ms"),
        *("group.protocol.type", "consume.callback.max.messages", "enabled_events", "log.queue"),
        *("plugin.library.paths", "interceptors", "logger", "on_commit", "on_delivery"),
        *("opaque", "default_topic_conf", "default.topic.config", "ssl_engine_callback_data"),
        *("ssl_ca", "ssl_certificate", "ssl_key"),
    }
)
_ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
_PRODUCER: Final = frozenset(
    {
        *("acks", "request.required.acks", "batch.size", "batch.num.messages", "buffer.memory"),
        *("compression.type", "compression.codec", "compression.level", "compression.gzip.level"),
        *("compression.lz4.level", "compression.zstd.level", "delivery.report.only.error"),
        *("delivery.timeout.ms", "message.timeout.ms", "enable.gapless.guarantee"),
        *("enable.idempotence", "key.serializer", "value.serializer", "linger.ms", "max.block.ms"),
        *("max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms"),
        *("message.send.max.retries", "retries", "msg_order_cmp", "partitioner"),
        *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        *("partitioner.class", "partitioner.ignore.keys", "produce.offset.report"),
        *("queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes"),
        *("queue.buffering.max.messages", "queue.buffering.max.ms", "queuing.strategy"),
        *("sticky.partitioning.linger.ms", "transaction.timeout.ms", "transactional.id"),
        "transaction.two.phase.commit.enable",
    }
)

# After the options that are tried: librdkafka reads them in order, and stops here before it makes
# a client.
_STOP: Final = "headgate.stop"


def client_config(kafka_options: Mapping[str, str]) -> dict[str, Value]:
    """The librdkafka consumer configuration for options of the Java client.

    A name that librdkafka knows and Java does not is passed on as it is. What comes out is accepted
    by librdkafka: a client was made of it, without a connection.

    Args:
        kafka_options: names without ``kafka.``, in any case, and their values.

    Raises:
        OptionError: An option is missing, unknown, not valid, refused, or contradicts another. Its
            text shows no secret.

    >>> client_config({"bootstrap.servers": "kafka:9092", "fetch.max.wait.ms": "100"})
    {'isolation.level': 'read_uncommitted', 'check.crcs': True, 'bootstrap.servers': 'kafka:9092', \
'fetch.wait.max.ms': 100}
    """
    options = {name.lower(): value.strip() for name, value in kafka_options.items()}
    config = {**_JAVA_DEFAULTS, "bootstrap.servers": _servers(options)}
    own: dict[str, Value] = {}
    for name, value in options.items():
        fate = JAVA_OPTIONS.get(name)
        if isinstance(fate, Refused):
            raise OptionError(f"{shown(name, value)} cannot be used: {fate.instead}.")
        if isinstance(fate, NoEffect):
            fate.kind.read(name, value)
        elif isinstance(fate, Translated):
            config[fate.to] = fate.kind.read(name, value)
        elif fate is None:
            own[name] = _own(name, value)
    config |= _fetch_size(options) | _backoffs(options) | tls_config(options) | sasl_config(options)
    for name in own.keys() & config.keys():
        raise OptionError(
            f"kafka.{name} and Java's option for the same are both given; give one of them."
        )
    config |= own
    _try(config, options)
    return config


def _servers(options: Mapping[str, str]) -> str:
    addresses = [s.strip() for s in options.get("bootstrap.servers", "").split(",") if s.strip()]
    if not addresses:
        raise OptionError(
            "kafka.bootstrap.servers is missing; give the brokers' addresses as"
            " host:port,host:port."
        )
    servers = []
    for address in addresses:
        match = _SERVER.fullmatch(address)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise OptionError(
                f"kafka.bootstrap.servers has {address!r}, which is not an address; write"
                " host:port,host:port with ports from 1 to 65535."
            )
        servers.append(match["address"])
    return ",".join(servers)


def _fetch_size(options: Mapping[str, str]) -> dict[str, Value]:
    name = "fetch.max.bytes"
    if name not in options:
        return {}
    size = int(whole(1000, 2**31 - 513).read(name, options[name]))
    # A producer's limit, which librdkafka holds to be the least that is fetched.
    return {name: size, "message.max.bytes": min(size, 1_000_000)}


def _backoffs(options: Mapping[str, str]) -> dict[str, Value]:
    """The waits between tries, of which Java takes the maximum where it is below the wait."""
    config: dict[str, Value] = {}
    for kind, allowed in (("reconnect", whole(0, 3_600_000)), ("retry", whole(1, 300_000))):
        names = (f"{kind}.backoff.ms", f"{kind}.backoff.max.ms")
        given = {name: int(allowed.read(name, options[name])) for name in names if name in options}
        if not given:
            continue
        wait, most = names
        if kind == "reconnect" and most not in given:
            given[most] = given[wait]
        most_ms = given.get(most, 1000)
        config |= {most: most_ms, wait: min(given.get(wait, 100), most_ms)}
    return config


def _own(name: str, value: str) -> str:
    """The value of an option that Java does not have, if librdkafka does."""
    if name in _ALIASES:
        raise OptionError(f"kafka.{name} is librdkafka's; use Java's kafka.{_ALIASES[name]}.")
    if name in _PRODUCER:
        raise OptionError(f"kafka.{name} is an option of producers; leave it out when reading.")
    if name in _CONTROLLED or name.endswith("_cb"):
        raise OptionError(f"kafka.{name} is set by Headgate itself; leave it out.")
    error = _refusal({name: value})
    if error is not None and "No such configuration property" in error:
        close = difflib.get_close_matches(name, [*JAVA_OPTIONS, *_ALIASES.values()], n=1)
        hint = f"did you mean kafka.{close[0]}?" if close else "check its spelling."
        raise OptionError(
            f"kafka.{name} is unknown, to Kafka's Java consumer and to librdkafka; {hint}"
        )
    return value


def _try(config: Mapping[str, Value], options: Mapping[str, str]) -> None:
    """Have librdkafka make a client of it, which never connects, for it knows no broker."""
    unconnected = {name: v for name, v in config.items() if name != "bootstrap.servers"}
    try:
        Consumer({"group.id": "headgate", **unconnected, "log_level": 0}).close()
    except (KafkaException, ValueError) as error:
        reason = _text(error)
    else:
        return
    culprits = [name for name, value in unconnected.items() if _refusal({name: value})]
    culprits = culprits or [name for name in unconnected if re.search(rf"\b{name}\b", reason)]
    java = dict.fromkeys(o for name in culprits for o in _origins(name, options))
    secrets = [
        v for n, v in {**options, **unconnected}.items() if is_secret(n) and str(v) in reason
    ]
    named = " and ".join(shown(o, options[o]) for o in java) or "The kafka.* options together"
    because = "the reason holds a secret" if secrets else reason
    raise OptionError(f"{named} cannot be used by librdkafka ({because}); correct the value.")


def _origins(name: str, options: Mapping[str, str]) -> list[str]:
    """The options of the user that made this one of librdkafka's."""
    made = [
        option
        for option in options
        if isinstance(fate := JAVA_OPTIONS.get(option), Translated | Combined)
        and name in (fate.to if isinstance(fate, Combined) else (fate.to,))
    ]
    return made or [name] * (name in options)


def _refusal(config: Mapping[str, Value]) -> str | None:
    """What librdkafka has against these names and values, each taken alone."""
    try:
        Consumer({**config, _STOP: ""})
    except (KafkaException, ValueError) as error:
        text = _text(error)
        return None if _STOP in text else text
    raise AssertionError("unreachable: librdkafka knows no option of ours")


def _text(error: Exception) -> str:
    cause = error.args[0]
    text = cause.str() if isinstance(error, KafkaException) else str(cause)
    return " ".join(text.split()).removeprefix("Failed to create consumer: ")
