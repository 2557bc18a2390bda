"""Kafka's Java options, as users of Spark's native source write them, in librdkafka's names."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.errors import OptionError
from headrace.kafka.client_check import check_client, check_own, origins
from headrace.kafka.client_options import JAVA_OPTIONS
from headrace.kafka.client_sasl import sasl_config
from headrace.kafka.client_tls import tls_config
from headrace.kafka.client_values import Fate, NoEffect, Refused, Translated, Value, whole
from headrace.kafka.redaction import is_secret, redact, shown

__all__ = ["client_config", "is_secret", "redact"]

_JAVA_DEFAULTS: Final[Mapping[str, Value]] = {
    # Where librdkafka's differ in what is read.
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
}

_SERVER: Final = re.compile(
    r"(?:[\w.%-]*://)?(?P<address>(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]+):(?P<port>\d{1,5}))"
)


def translate(fate: Fate, name: str, value: str, config: dict[str, Value]) -> None:
    """Put what becomes of one of Java's options into librdkafka's configuration.

    Raises:
        OptionError: It is refused, or its value is not valid.
    """
    if isinstance(fate, Refused):
        raise OptionError(f"{shown(name, value)} cannot be used: {fate.instead}.")
    if isinstance(fate, NoEffect):
        fate.kind.read(name, value)
    elif isinstance(fate, Translated):
        config[fate.to] = fate.kind.read(name, value)


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
        if fate is None:
            check_own(name, value)
            own[name] = value
        else:
            translate(fate, name, value, config)
    config |= _fetch_size(options) | _backoffs(options)
    # As in Java, what a protocol does not use is not looked at.
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol.endswith("ssl"):
        config |= tls_config(options)
    if protocol.startswith("sasl"):
        config |= sasl_config(options)
    for name in own:
        if name in config:
            java = " and ".join(f"kafka.{option}" for option in origins(name, options))
            raise OptionError(f"kafka.{name} and {java} are both given; leave one out.")
    config |= own
    check_client(config, options)
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
