"""Translation of the options of Kafka's Java clients, as Spark's users write them, for librdkafka.

librdkafka itself checks each translated configuration: it creates a client without a connection.
"""

import difflib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer

from headrace.errors import OptionError
from headrace.gate.kafka.client.option_values import (
    Value,
    ValueType,
    describe,
    integer,
    is_secret,
    value_type,
)
from headrace.gate.kafka.client.security import sasl_config, tls_config
from headrace.gate.kafka.client.tokens import OPTION as TOKEN, check_tokens

_Client = type[Consumer] | type[Producer]


class Treatment(NamedTuple):
    """Translation of one option of the Java client, from a line of ``java_options.txt``.

    Attributes:
        value: Type of the value. None if the option is refused, or translated elsewhere together
            with other options.
        to: Names of librdkafka's options that get the value; empty if the option has no effect, or
            is refused.
        refusal: Reason for the refusal and an alternative, for the error; empty if not refused.
    """

    value: ValueType | None
    to: tuple[str, ...]
    refusal: str


def _table(client: str) -> dict[str, Treatment]:
    table = {}
    for line in files(__package__).joinpath("java_options.txt").read_text("utf-8").splitlines():
        if not line.startswith(f"{client} |"):
            continue
        _, name, value, becomes = (field.strip() for field in line.split("|"))
        if value == "refused":
            table[name] = Treatment(None, (), becomes)
        else:
            to = tuple(becomes.split(", ")) if becomes else ()
            table[name] = Treatment(None if value == "elsewhere" else value_type(value), to, "")
    return table


CONSUMER_OPTIONS: Final[Mapping[str, Treatment]] = _table("consumer")
"""Translation of each option of the Java consumer, by name."""

PRODUCER_OPTIONS: Final[Mapping[str, Treatment]] = _table("producer")
"""Translation of each option that only the Java producer has, by name."""

_JAVA_DEFAULTS: Final[Mapping[str, Value]] = {
    # Java's defaults that matter for reading and differ from librdkafka's.
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
}

_SERVER: Final = re.compile(
    r"(?:[\w.%-]*://)?(?P<address>(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]+):(?P<port>\d{1,5}))"
)

# librdkafka's own options that a source sets itself, or whose values are not text.
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
# librdkafka's own options of producers that users of a sink may set; `_PRODUCER` has all of them.
_PRODUCER_OWN: Final = frozenset(
    {
        *("compression.level", "partitioner", "queue.buffering.max.kbytes"),
        *("queue.buffering.max.messages", "sticky.partitioning.linger.ms"),
    }
)
_PRODUCER: Final = frozenset(
    {
        *(*PRODUCER_OPTIONS, *_PRODUCER_OWN, "request.required.acks", "batch.num.messages"),
        *("compression.codec", "compression.gzip.level", "compression.lz4.level"),
        *("compression.zstd.level", "delivery.report.only.error", "enable.gapless.guarantee"),
        *("message.timeout.ms", "message.send.max.retries", "msg_order_cmp"),
        *("produce.offset.report", "queue.buffering.backpressure.threshold"),
        *("queue.buffering.max.ms", "queuing.strategy"),
    }
)


def client_config(kafka_options: Mapping[str, str]) -> dict[str, Value]:
    """Return the librdkafka consumer configuration for options of the Java client.

    The names have no ``kafka.`` prefix, and may be in any case. Options that only librdkafka has
    are passed on unchanged.

    OptionError is raised if an option is missing, unknown, invalid or refused, or contradicts
    another option. The message shows no secret.

    >>> client_config({"bootstrap.servers": "kafka:9092", "fetch.max.wait.ms": "100"})
    {'isolation.level': 'read_uncommitted', 'check.crcs': True, 'bootstrap.servers': 'kafka:9092', \
'fetch.wait.max.ms': 100}
    """
    options = {name.lower(): value.strip() for name, value in kafka_options.items()}
    config = {**_JAVA_DEFAULTS, "bootstrap.servers": _servers(options)}
    known_names = {*CONSUMER_OPTIONS, TOKEN}
    own = {name: value for name, value in options.items() if name not in known_names}
    for name, value in options.items():
        if name in own:
            _check_own(name, value)
        elif name != TOKEN:
            config |= _translate(CONSUMER_OPTIONS[name], name, value)
    config |= _fetch_size(options) | _backoffs(options)
    # As in Java, options that the protocol does not use are ignored.
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol.endswith("ssl"):
        config |= tls_config(options)
    if protocol.startswith("sasl"):
        config |= sasl_config(options)
    if TOKEN in options:
        _check_token(options)
    for name in filter(config.__contains__, own):
        java = " and ".join(f"kafka.{option}" for option in _origins(name, options))
        raise OptionError(f"kafka.{name} and {java} are both given; leave one of them out.")
    config |= own
    _check_client(Consumer, config, options)
    return config


def producer_config(kafka_options: Mapping[str, str]) -> dict[str, Value]:
    """Return the librdkafka producer configuration for options of the Java client.

    As in Java, options that only a consumer has are ignored.

    OptionError is raised if an option is missing, unknown, invalid or refused, or contradicts
    another option. The message shows no secret.

    >>> producer_config({"bootstrap.servers": "kafka:9092", "delivery.timeout.ms": "5000"})[
    ...     "message.timeout.ms"
    ... ]
    5000
    """
    options = {name.lower(): value.strip() for name, value in kafka_options.items()}
    own = {name: value for name, value in options.items() if name in _PRODUCER_OWN}
    java = {name: value for name, value in options.items() if name in PRODUCER_OPTIONS}
    # librdkafka would use the consumer's largest fetch as the size of a message.
    producer_names = own.keys() | java.keys() | {"fetch.max.bytes"}
    rest = {name: value for name, value in options.items() if name not in producer_names}
    config: dict[str, Value] = {**client_config(rest), **own}
    for name, value in java.items():
        config |= _translate(PRODUCER_OPTIONS[name], name, value)
    # As in Java, weaker acknowledgements imply no idempotence, unless the user requests it.
    config.setdefault("enable.idempotence", config.get("acks") not in {"0", "1"})
    _check_client(Producer, config, options)
    return config


def _check_token(options: Mapping[str, str]) -> None:
    protocol, mechanism = options.get("security.protocol", ""), options.get("sasl.mechanism", "")
    if not protocol.lower().startswith("sasl") or mechanism.upper() != "OAUTHBEARER":
        raise OptionError(
            f"kafka.{TOKEN} needs kafka.security.protocol=SASL_SSL and"
            " kafka.sasl.mechanism=OAUTHBEARER; set both."
        )
    check_tokens(options[TOKEN])


def _translate(treatment: Treatment, name: str, value: str) -> dict[str, Value]:
    if treatment.refusal:
        raise OptionError(f"{describe(name, value)} cannot be used: {treatment.refusal}.")
    if treatment.value is None:
        return {}
    parsed = treatment.value.read(name, value)
    return dict.fromkeys(treatment.to, parsed)


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
    size = int(integer(1000, 2**31 - 513).read(name, options[name]))
    # librdkafka requires fetches to be at least as large as this producer's limit.
    return {name: size, "message.max.bytes": min(size, 1_000_000)}


def _backoffs(options: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings for waits between retries. As in Java, the maximum limits all waits."""
    config: dict[str, Value] = {}
    for kind, allowed in (("reconnect", integer(0, 3_600_000)), ("retry", integer(1, 300_000))):
        wait, most = names = (f"{kind}.backoff.ms", f"{kind}.backoff.max.ms")
        given_waits = {
            name: int(allowed.read(name, options[name])) for name in names if name in options
        }
        if not given_waits:
            continue
        if kind == "reconnect":
            given_waits.setdefault(most, given_waits.get(wait, 0))
        most_ms = given_waits.get(most, 1000)
        config |= {most: most_ms, wait: min(given_waits.get(wait, 100), most_ms)}
    return config


def _check_own(name: str, value: str) -> None:
    """Check an option that only librdkafka has. Raise `OptionError` if users cannot set it."""
    if name in _ALIASES:
        raise OptionError(
            f"kafka.{name} is librdkafka's name of an option; use Java's name,"
            f" kafka.{_ALIASES[name]}."
        )
    if name in _PRODUCER:
        raise OptionError(f"kafka.{name} is an option of producers; leave it out when reading.")
    if name in _CONTROLLED or name.endswith("_cb"):
        raise OptionError(
            f"kafka.{name} is set by Headrace itself, or cannot be given as text; leave it out."
        )
    refusal = _refusal_of(Consumer, name, value)
    if refusal == _unknown(name):
        close = difflib.get_close_matches(name, [*CONSUMER_OPTIONS, *_ALIASES.values()], n=1)
        hint = f"did you mean kafka.{close[0]}?" if close else "check its spelling."
        raise OptionError(
            f"kafka.{name} is unknown, to Kafka's Java consumer and to librdkafka; {hint}"
        )
    if refusal is not None:
        reason = _without_secrets(refusal, {name: value})
        shown = describe(name, value)
        raise OptionError(f"librdkafka refuses {shown} ({reason}); correct it.")


def _check_client(client: _Client, config: Mapping[str, Value], options: Mapping[str, str]) -> None:
    """Let librdkafka check a configuration: create a client that never connects.

    ``options`` are the user's options, from which ``config`` was translated. `OptionError` names
    these options, not librdkafka's.
    """
    quiet = {"bootstrap.servers", "debug", "log_level"}
    unconnected = {name: value for name, value in config.items() if name not in quiet}
    reason = _refusal(client, unconnected)
    if reason is None:
        return
    if "No provider for SASL mechanism GSSAPI" in reason:
        raise OptionError(
            f"{describe('sasl.mechanism', 'GSSAPI')} needs a librdkafka with Kerberos, which the"
            " installed confluent-kafka does not have; install librdkafka with libsasl2, and then"
            " `pip install --no-binary confluent-kafka confluent-kafka`."
        )
    wrong = [name for name, value in unconnected.items() if _refusal_of(client, name, value)]
    wrong = wrong or [name for name in unconnected if re.search(rf"\b{re.escape(name)}\b", reason)]
    java = dict.fromkeys(option for name in wrong for option in _origins(name, options))
    named = " and ".join(describe(option, options[option]) for option in java)
    raise OptionError(
        f"librdkafka refuses {named or 'the combination of the kafka options'}"
        f" ({_without_secrets(reason, {**options, **unconnected})}); correct it."
    )


def _origins(name: str, options: Mapping[str, str]) -> list[str]:
    tables = (CONSUMER_OPTIONS, PRODUCER_OPTIONS)
    made = [o for o in options if any(o in table and name in table[o].to for table in tables)]
    return made or [name] * (name in options)


def _refusal_of(client: _Client, name: str, value: Value) -> str | None:
    # librdkafka reads options in order, and stops at an unknown name before it creates a client.
    stop = f"{name}.stop"
    text = _refusal(client, {name: value, stop: ""})
    return None if text == _unknown(stop) else text


def _refusal(client: _Client, config: Mapping[str, Value]) -> str | None:
    settings = {**config} if client is Producer else {"group.id": "headrace", **config}
    settings.pop(TOKEN, None)
    settings.setdefault("log_level", 0)  # Last, because only a created client uses it.
    try:
        made = client(settings)
    except (KafkaException, ValueError) as error:
        # Return a text, because the error itself may contain a secret.
        cause = error.args[0]
        text = cause.str() if isinstance(error, KafkaException) else str(cause)
        return re.sub("^Failed to create (consumer|producer): ", "", " ".join(text.split()))
    if isinstance(made, Consumer):
        made.close()
    return None


def _unknown(name: str) -> str:
    return f'No such configuration property: "{name}"'


def _without_secrets(reason: str, values: Mapping[str, Value]) -> str:
    secrets = [str(value) for name, value in values.items() if is_secret(name)]
    if any(secret and secret in reason for secret in secrets):
        return "its reason is not shown, for it holds a secret"
    return reason
