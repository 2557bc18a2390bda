"""What librdkafka itself says of options: the names it knows, the values it takes."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException

from headrace.errors import OptionError
from headrace.kafka.client_options import JAVA_OPTIONS
from headrace.kafka.client_values import Combined, Translated, Value
from headrace.kafka.redaction import is_secret, shown

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


def check_own(name: str, value: str) -> None:
    """Check an option that Java does not have: librdkafka must have it, and let users set it.

    Raises:
        OptionError: Nobody knows the name, or it is not for users of a source to set.
    """
    if name in _ALIASES:
        raise OptionError(f"kafka.{name} is librdkafka's; use Java's kafka.{_ALIASES[name]}.")
    if name in _PRODUCER:
        raise OptionError(f"kafka.{name} is an option of producers; leave it out when reading.")
    if name in _CONTROLLED or name.endswith("_cb"):
        raise OptionError(
            f"kafka.{name} is for Headrace itself to set, or cannot be given as a text; leave it"
            " out."
        )
    refusal = _refusal(name, value)
    if refusal == _unknown(name):
        close = difflib.get_close_matches(name, [*JAVA_OPTIONS, *_ALIASES.values()], n=1)
        hint = f"did you mean kafka.{close[0]}?" if close else "check its spelling."
        raise OptionError(
            f"kafka.{name} is unknown, to Kafka's Java consumer and to librdkafka; {hint}"
        )
    if refusal is not None:
        reason = _without_secrets(refusal, {name: value})
        raise OptionError(f"librdkafka refuses {shown(name, value)} ({reason}); correct it.")


def check_client(config: Mapping[str, Value], options: Mapping[str, str]) -> None:
    """Have librdkafka make a client of a configuration; it knows no broker, so it never connects.

    Args:
        config: librdkafka's options.
        options: the user's, of which they were made; errors speak of these.

    Raises:
        OptionError: librdkafka refuses.
    """
    quiet = {"bootstrap.servers", "debug", "log_level"}
    unconnected = {name: value for name, value in config.items() if name not in quiet}
    try:
        Consumer({"group.id": "headrace", **unconnected, "log_level": 0}).close()
    except (KafkaException, ValueError) as error:
        # Not raised from it, for its text may hold a secret.
        reason = _text(error)
    else:
        return
    if "No provider for SASL mechanism GSSAPI" in reason:
        raise OptionError(
            f"{shown('sasl.mechanism', 'GSSAPI')} needs a librdkafka with Kerberos, which the"
            " confluent-kafka installed here has not; install one of your own with `pip install"
            " --no-binary confluent-kafka confluent-kafka` where librdkafka with libsasl2 is."
        )
    culprits = [name for name, value in unconnected.items() if _refusal(name, value)]
    culprits = culprits or [
        name for name in unconnected if re.search(rf"\b{re.escape(name)}\b", reason)
    ]
    java = dict.fromkeys(option for name in culprits for option in origins(name, options))
    named = " and ".join(shown(option, options[option]) for option in java)
    raise OptionError(
        f"librdkafka refuses {named or 'what the kafka options say together'}"
        f" ({_without_secrets(reason, {**options, **unconnected})}); correct it."
    )


def origins(name: str, options: Mapping[str, str]) -> list[str]:
    """Find the user's options that became this one of librdkafka's."""
    made = [
        option
        for option in options
        if isinstance(fate := JAVA_OPTIONS.get(option), Translated | Combined)
        and name in (fate.to if isinstance(fate, Combined) else (fate.to,))
    ]
    return made or [name] * (name in options)


def _refusal(name: str, value: Value) -> str | None:
    """What librdkafka has against one option, taken alone."""
    # It reads them in order, and stops at a name that it does not know, before it makes a client.
    stop = f"{name}.stop"
    try:
        Consumer({"group.id": "headrace", name: value, stop: ""})
    except (KafkaException, ValueError) as error:
        text = _text(error)
        return None if text == _unknown(stop) else text
    raise AssertionError("unreachable: librdkafka knows no option of ours")


def _unknown(name: str) -> str:
    return f'No such configuration property: "{name}"'


def _text(error: Exception) -> str:
    cause = error.args[0]
    text = cause.str() if isinstance(error, KafkaException) else str(cause)
    return " ".join(text.split()).removeprefix("Failed to create consumer: ")


def _without_secrets(reason: str, values: Mapping[str, Value]) -> str:
    secrets = [str(value) for name, value in values.items() if is_secret(name)]
    if any(secret and secret in reason for secret in secrets):
        return "its reason is not shown, for it holds a secret"
    return reason
