"""Treatment of every option of Kafka's Java clients (4.1; 3.9 has fewer, and one of its own).

If librdkafka allows less than Java, its range is listed here. Java's ``ConsumerConfig`` and
librdkafka's ``CONFIGURATION.md`` relate the names of both clients. Why an option has no effect
stands beside it in ``docs/kafka-client-options.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.kafka.client.option_values import (
    BOOLEAN,
    INT,
    LONG,
    NOT_BLANK,
    NUMBER,
    TEXT,
    ValueType,
    integer,
    one_of,
)


@dataclass(frozen=True, slots=True)
class Translated:
    """Passed on to librdkafka, under the name ``to`` where that is another one."""

    value: ValueType
    to: str = ""


@dataclass(frozen=True, slots=True)
class Combined:
    """Translated together with others, where its subject is: TLS, SASL, fetches, waits."""

    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Checked and accepted, for it does not change the records that are read or written."""

    value: ValueType


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Refused; `instead` gives the reason and the alternative."""

    instead: str


Treatment = Translated | Combined | NoEffect | Unsupported

_JAVA_ONLY: Final = "it names a class to run in Java, and there is no Java here"
FOR_MSK: Final = "for AWS MSK use kafka.sasl.mechanism=SCRAM-SHA-512 or a client certificate"
"""Alternative to MSK's IAM, whose signatures are made in Java."""

_CLAIM: Final = "sasl.oauthbearer.assertion.claim"
_OPENSSL: Final = "TLS is OpenSSL's here, not Java's"
_MOST: Final = 2**31 - 1
_BINARY: Final = "keys and values are strings or binary: cast the columns"
_NO_TRANSACTION: Final = (
    "a task that runs again produces again, in no transaction; a flow's channel is read once"
)

CONSUMER_OPTIONS: Final[Mapping[str, Treatment]] = {
    # Fetching.
    "check.crcs": Translated(BOOLEAN),
    "exclude.internal.topics": NoEffect(BOOLEAN),
    "fetch.max.bytes": Combined(("fetch.max.bytes", "message.max.bytes")),
    "fetch.max.wait.ms": Translated(integer(0, 300_000), "fetch.wait.max.ms"),
    "fetch.min.bytes": Translated(integer(1, 100_000_000)),
    "isolation.level": Translated(one_of("read_uncommitted", "read_committed")),
    "max.partition.fetch.bytes": Translated(integer(1, 1_000_000_000)),
    "max.poll.records": NoEffect(INT),
    "share.acknowledgement.mode": NoEffect(TEXT),
    "auto.offset.reset": Unsupported(
        "use startingOffsets, and failOnDataLoss for offsets that are gone"
    ),
    "key.deserializer": Unsupported(
        "keys are binary: cast the column or use from_json and the like"
    ),
    "value.deserializer": Unsupported(
        "values are binary: cast the column or use from_json and the like"
    ),
    "interceptor.classes": Unsupported(f"{_JAVA_ONLY}; transform the DataFrame"),
    # Consumer groups.
    "auto.commit.interval.ms": NoEffect(INT),
    "enable.auto.commit": Unsupported(
        "leave it out: the query's checkpoint keeps the offsets, and headrace.commit.group commits"
        " those of processed batches"
    ),
    # A consumer without a name for its group aborts the process.
    "group.id": Translated(NOT_BLANK),
    "group.instance.id": NoEffect(TEXT),
    "group.protocol": NoEffect(one_of("classic", "consumer")),
    "group.remote.assignor": NoEffect(TEXT),
    "heartbeat.interval.ms": NoEffect(INT),
    "internal.leave.group.on.close": NoEffect(BOOLEAN),
    "internal.throw.on.fetch.stable.offset.unsupported": NoEffect(BOOLEAN),
    "max.poll.interval.ms": NoEffect(INT),
    "partition.assignment.strategy": NoEffect(TEXT),
    "session.timeout.ms": NoEffect(INT),
    # Connections.
    "allow.auto.create.topics": Translated(BOOLEAN),
    "bootstrap.servers": Combined(("bootstrap.servers",)),
    "client.dns.lookup": Translated(
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
    ),
    "client.id": Translated(TEXT),
    "client.rack": Translated(TEXT),
    "connections.max.idle.ms": Translated(integer(0, _MOST, minus_one=0)),
    "default.api.timeout.ms": NoEffect(INT),
    "metadata.max.age.ms": Translated(integer(1, 3_600_000), "topic.metadata.refresh.interval.ms"),
    "metadata.recovery.rebootstrap.trigger.ms": Translated(integer(0, _MOST)),
    "metadata.recovery.strategy": Translated(one_of("none", "rebootstrap")),
    "receive.buffer.bytes": Translated(
        integer(0, 100_000_000, minus_one=0), "socket.receive.buffer.bytes"
    ),
    "reconnect.backoff.max.ms": Combined(("reconnect.backoff.max.ms",)),
    "reconnect.backoff.ms": Combined(("reconnect.backoff.ms", "reconnect.backoff.max.ms")),
    "request.timeout.ms": Translated(integer(10, 300_000), "socket.timeout.ms"),
    "retry.backoff.max.ms": Combined(("retry.backoff.max.ms",)),
    "retry.backoff.ms": Combined(("retry.backoff.ms",)),
    "send.buffer.bytes": Translated(
        integer(0, 100_000_000, minus_one=0), "socket.send.buffer.bytes"
    ),
    "socket.connection.setup.timeout.max.ms": NoEffect(LONG),
    "socket.connection.setup.timeout.ms": Translated(integer(1000, _MOST)),
    # Metrics.
    "auto.include.jmx.reporter": NoEffect(BOOLEAN),
    "enable.metrics.push": Translated(BOOLEAN),
    "metric.reporters": NoEffect(TEXT),
    "metrics.num.samples": NoEffect(INT),
    "metrics.recording.level": NoEffect(one_of("INFO", "DEBUG", "TRACE")),
    "metrics.sample.window.ms": NoEffect(LONG),
    # SASL.
    "sasl.client.callback.handler.class": Unsupported(f"{_JAVA_ONLY}; {FOR_MSK}"),
    "sasl.jaas.config": Combined(
        (
            *("sasl.username", "sasl.password"),
            *("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
            *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"),
            *("sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name"),
        )
    ),
    "sasl.kerberos.kinit.cmd": Combined(("sasl.kerberos.kinit.cmd",)),
    "sasl.kerberos.min.time.before.relogin": Combined(("sasl.kerberos.min.time.before.relogin",)),
    "sasl.kerberos.service.name": Combined(("sasl.kerberos.service.name",)),
    "sasl.kerberos.ticket.renew.jitter": NoEffect(NUMBER),
    "sasl.kerberos.ticket.renew.window.factor": NoEffect(NUMBER),
    "sasl.login.callback.handler.class": Combined(("sasl.oauthbearer.method",)),
    "sasl.login.class": Unsupported(
        f"{_JAVA_ONLY}; use one of the mechanisms of kafka.sasl.mechanism"
    ),
    "sasl.login.connect.timeout.ms": NoEffect(INT),
    "sasl.login.read.timeout.ms": NoEffect(INT),
    "sasl.login.refresh.buffer.seconds": NoEffect(INT),
    "sasl.login.refresh.min.period.seconds": NoEffect(INT),
    "sasl.login.refresh.window.factor": NoEffect(NUMBER),
    "sasl.login.refresh.window.jitter": NoEffect(NUMBER),
    "sasl.login.retry.backoff.max.ms": NoEffect(LONG),
    "sasl.login.retry.backoff.ms": NoEffect(LONG),
    "sasl.mechanism": Combined(("sasl.mechanism",)),
    # OAUTHBEARER.
    "sasl.oauthbearer.assertion.algorithm": Translated(one_of("RS256", "ES256")),
    f"{_CLAIM}.aud": Translated(TEXT),
    f"{_CLAIM}.exp.seconds": Translated(integer(1, 86_400)),
    f"{_CLAIM}.iss": Translated(TEXT),
    f"{_CLAIM}.jti.include": Translated(BOOLEAN),
    f"{_CLAIM}.nbf.seconds": Translated(integer(0, 3600)),
    f"{_CLAIM}.sub": Translated(TEXT),
    "sasl.oauthbearer.assertion.file": Translated(TEXT),
    "sasl.oauthbearer.assertion.private.key.file": Translated(TEXT),
    "sasl.oauthbearer.assertion.private.key.passphrase": Translated(TEXT),
    "sasl.oauthbearer.assertion.template.file": Translated(
        TEXT, "sasl.oauthbearer.assertion.jwt.template.file"
    ),
    "sasl.oauthbearer.client.credentials.client.id": Combined(("sasl.oauthbearer.client.id",)),
    "sasl.oauthbearer.client.credentials.client.secret": Combined(
        ("sasl.oauthbearer.client.secret",)
    ),
    "sasl.oauthbearer.clock.skew.seconds": NoEffect(INT),
    "sasl.oauthbearer.expected.audience": NoEffect(TEXT),
    "sasl.oauthbearer.expected.issuer": NoEffect(TEXT),
    "sasl.oauthbearer.header.urlencode": Combined(()),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": NoEffect(LONG),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": NoEffect(LONG),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": NoEffect(LONG),
    "sasl.oauthbearer.jwks.endpoint.url": NoEffect(TEXT),
    "sasl.oauthbearer.jwt.retriever.class": Combined(("sasl.oauthbearer.grant.type",)),
    "sasl.oauthbearer.jwt.validator.class": NoEffect(TEXT),
    "sasl.oauthbearer.scope": Combined(("sasl.oauthbearer.scope",)),
    "sasl.oauthbearer.scope.claim.name": NoEffect(TEXT),
    "sasl.oauthbearer.sub.claim.name": Translated(TEXT),
    "sasl.oauthbearer.token.endpoint.url": Combined(
        ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.method")
    ),
    # TLS.
    "security.protocol": Translated(one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    "security.providers": Unsupported(
        f"{_OPENSSL}; use kafka.ssl.providers for OpenSSL's providers"
    ),
    "ssl.cipher.suites": Translated(TEXT),
    "ssl.enabled.protocols": Combined(()),
    "ssl.endpoint.identification.algorithm": Combined(("ssl.endpoint.identification.algorithm",)),
    "ssl.engine.factory.class": Unsupported(f"{_JAVA_ONLY}; give certificates as PEM"),
    "ssl.key.password": Combined(("ssl.key.password",)),
    "ssl.keymanager.algorithm": NoEffect(TEXT),
    "ssl.keystore.certificate.chain": Combined(("ssl.certificate.pem",)),
    "ssl.keystore.key": Combined(("ssl.key.pem",)),
    "ssl.keystore.location": Combined(
        ("ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")
    ),
    "ssl.keystore.password": Combined(("ssl.keystore.password",)),
    "ssl.keystore.type": Combined(()),
    "ssl.protocol": NoEffect(one_of("TLS", "TLSv1.2", "TLSv1.3")),
    "ssl.provider": Unsupported(f"{_OPENSSL}; use kafka.ssl.providers for OpenSSL's providers"),
    "ssl.secure.random.implementation": NoEffect(TEXT),
    "ssl.trustmanager.algorithm": NoEffect(one_of("PKIX", "SunX509")),
    "ssl.truststore.certificates": Combined(("ssl.ca.pem",)),
    "ssl.truststore.location": Combined(("ssl.ca.location",)),
    "ssl.truststore.password": Combined(()),
    "ssl.truststore.type": Combined(()),
}
"""Every option of the Java consumer, by name, and its treatment."""

PRODUCER_OPTIONS: Final[Mapping[str, Treatment]] = {
    "acks": Translated(one_of("all", "-1", "0", "1")),
    "batch.size": Translated(integer(1, _MOST)),
    "buffer.memory": NoEffect(LONG),
    "compression.type": Translated(one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "delivery.timeout.ms": Translated(integer(1, _MOST), "message.timeout.ms"),
    "enable.idempotence": Translated(BOOLEAN),
    "key.serializer": Unsupported(_BINARY),
    "linger.ms": Translated(integer(0, 900_000)),
    "max.block.ms": NoEffect(LONG),
    "max.in.flight.requests.per.connection": Translated(integer(1, 1_000_000)),
    "max.request.size": Translated(integer(1000, 1_000_000_000), "message.max.bytes"),
    "metadata.max.idle.ms": NoEffect(LONG),
    "partitioner.adaptive.partitioning.enable": NoEffect(BOOLEAN),
    "partitioner.availability.timeout.ms": NoEffect(LONG),
    "partitioner.class": Unsupported("there is no Java here; use the column partition"),
    "partitioner.ignore.keys": Unsupported("leave the column key out, or use the column partition"),
    "retries": Translated(integer(0, _MOST), "message.send.max.retries"),
    "transaction.timeout.ms": NoEffect(INT),
    "transaction.two.phase.commit.enable": Unsupported(_NO_TRANSACTION),
    "transactional.id": Unsupported(_NO_TRANSACTION),
    "value.serializer": Unsupported(_BINARY),
}
"""By Java's name, without ``kafka.``."""
