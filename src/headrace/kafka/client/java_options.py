"""What becomes of every option of Kafka's Java clients (4.1; 3.9 has fewer, and one of its own).

Where librdkafka allows less than Java, its range is the one that stands here. How the names of both
clients relate is in Java's ``ConsumerConfig`` and librdkafka's ``CONFIGURATION.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.kafka.client.option_values import (
    BOOLEAN,
    INT,
    LONG,
    NUMBER,
    TEXT,
    ValueType,
    integer,
    one_of,
)


@dataclass(frozen=True, slots=True)
class Translated:
    """Passed on to librdkafka.

    Attributes:
        value: how its value is read.
        to: librdkafka's name, where it is another one.
        note: for the documentation.
    """

    value: ValueType
    to: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Combined:
    """Translated together with others, where its subject is: TLS, SASL, fetches, waits."""

    to: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Checked and accepted; `because` says why it changes nothing of what is read."""

    value: ValueType
    because: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Refused; `instead` says why, and what to use."""

    instead: str


Treatment = Translated | Combined | NoEffect | Unsupported

_GROUP: Final = "partitions are assigned by Spark, and no consumer group is joined"
_METRICS: Final = "it is about the metrics of the Java client; a batch's figures are in the ledger"
_VALIDATION: Final = "it is about how a broker or Java checks a token; librdkafka leaves it to both"
_OAUTH_TRIES: Final = "librdkafka has fixed ones: 20 s for a try, 4 tries 5 s apart"
_OAUTH_RENEWAL: Final = "librdkafka renews a token after four fifths of its life"
_TICKET_RENEWAL: Final = "librdkafka renews after kafka.sasl.kerberos.min.time.before.relogin"
_JAVA_ONLY: Final = "it names a class to run in Java, and there is no Java here"
_CLAIM: Final = "sasl.oauthbearer.assertion.claim"
_OPENSSL: Final = "TLS is OpenSSL's here, not Java's"
_MOST: Final = 2**31 - 1
_BINARY: Final = "keys and values are strings or binary: cast the columns"
_NO_TRANSACTION: Final = (
    "a task that runs again produces again, in no transaction; a flow's channel is read once"
)

CONSUMER_OPTIONS: Final[Mapping[str, Treatment]] = {
    # Fetching.
    "check.crcs": Translated(BOOLEAN, note="default true, as in Java"),
    "exclude.internal.topics": NoEffect(
        BOOLEAN, "a pattern is matched against the broker's list of topics, by the planner"
    ),
    "fetch.max.bytes": Combined(
        ("fetch.max.bytes", "message.max.bytes"), "from 1000 to 2147483135"
    ),
    "fetch.max.wait.ms": Translated(integer(0, 300_000), "fetch.wait.max.ms"),
    "fetch.min.bytes": Translated(integer(1, 100_000_000)),
    "isolation.level": Translated(
        one_of("read_uncommitted", "read_committed"), note="default read_uncommitted, as in Java"
    ),
    "max.partition.fetch.bytes": Translated(integer(1, 1_000_000_000)),
    "max.poll.records": NoEffect(INT, "a task takes what was fetched, bounded in bytes"),
    "share.acknowledgement.mode": NoEffect(TEXT, "it is for share groups, and none is joined"),
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
    "auto.commit.interval.ms": NoEffect(INT, "nothing is committed on a timer"),
    "enable.auto.commit": Unsupported(
        "leave it out: the query's checkpoint keeps the offsets, and headrace.commit.group commits"
        " those of processed batches"
    ),
    "group.id": Translated(
        TEXT, note="the name fetches go by; for commits use headrace.commit.group"
    ),
    "group.instance.id": NoEffect(TEXT, _GROUP),
    "group.protocol": NoEffect(one_of("classic", "consumer"), _GROUP),
    "group.remote.assignor": NoEffect(TEXT, _GROUP),
    "heartbeat.interval.ms": NoEffect(INT, _GROUP),
    "internal.leave.group.on.close": NoEffect(BOOLEAN, _GROUP),
    "internal.throw.on.fetch.stable.offset.unsupported": NoEffect(BOOLEAN, _GROUP),
    "max.poll.interval.ms": NoEffect(INT, _GROUP),
    "partition.assignment.strategy": NoEffect(TEXT, _GROUP),
    "session.timeout.ms": NoEffect(INT, _GROUP),
    # Connections.
    "allow.auto.create.topics": Translated(
        BOOLEAN, note="default false: a source reads topics that exist"
    ),
    "bootstrap.servers": Combined(("bootstrap.servers",), "required: host:port,host:port"),
    "client.dns.lookup": Translated(
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
    ),
    "client.id": Translated(TEXT),
    "client.rack": Translated(TEXT),
    "connections.max.idle.ms": Translated(
        integer(0, _MOST, minus_one=0), note="-1 becomes 0: never"
    ),
    "default.api.timeout.ms": NoEffect(
        INT, "questions to a broker end by fetchOffset.numRetries and request.timeout.ms"
    ),
    "metadata.max.age.ms": Translated(integer(1, 3_600_000), "topic.metadata.refresh.interval.ms"),
    "metadata.recovery.rebootstrap.trigger.ms": Translated(integer(0, _MOST)),
    "metadata.recovery.strategy": Translated(one_of("none", "rebootstrap")),
    "receive.buffer.bytes": Translated(
        integer(0, 100_000_000, minus_one=0),
        "socket.receive.buffer.bytes",
        note="-1 becomes 0: the system's",
    ),
    "reconnect.backoff.max.ms": Combined(("reconnect.backoff.max.ms",), "from 0 to 3600000"),
    "reconnect.backoff.ms": Combined(
        ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
        "from 0 to 3600000; without a maximum of its own it is the maximum too, as in Java",
    ),
    "request.timeout.ms": Translated(integer(10, 300_000), "socket.timeout.ms"),
    "retry.backoff.max.ms": Combined(("retry.backoff.max.ms",), "from 1 to 300000"),
    "retry.backoff.ms": Combined(
        ("retry.backoff.ms",), "from 1 to 300000; never above the maximum, as in Java"
    ),
    "send.buffer.bytes": Translated(
        integer(0, 100_000_000, minus_one=0),
        "socket.send.buffer.bytes",
        note="-1 becomes 0: the system's",
    ),
    "socket.connection.setup.timeout.max.ms": NoEffect(
        LONG, "librdkafka waits equally long at every try: socket.connection.setup.timeout.ms"
    ),
    "socket.connection.setup.timeout.ms": Translated(integer(1000, _MOST)),
    # Metrics.
    "auto.include.jmx.reporter": NoEffect(BOOLEAN, _METRICS),
    "enable.metrics.push": Translated(BOOLEAN),
    "metric.reporters": NoEffect(TEXT, _METRICS),
    "metrics.num.samples": NoEffect(INT, _METRICS),
    "metrics.recording.level": NoEffect(one_of("INFO", "DEBUG", "TRACE"), _METRICS),
    "metrics.sample.window.ms": NoEffect(LONG, _METRICS),
    # SASL.
    "sasl.client.callback.handler.class": Unsupported(
        f"{_JAVA_ONLY}; for AWS MSK use kafka.sasl.mechanism=SCRAM-SHA-512 or a client certificate"
    ),
    "sasl.jaas.config": Combined(
        (
            *("sasl.username", "sasl.password"),
            *("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
            *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"),
            *("sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name"),
        ),
        "what its login module says",
    ),
    "sasl.kerberos.kinit.cmd": Combined(
        ("sasl.kerberos.kinit.cmd",), "the path of kinit, made a command with the keytab"
    ),
    "sasl.kerberos.min.time.before.relogin": Combined(
        ("sasl.kerberos.min.time.before.relogin",), "in ms, from 0 to 86400000"
    ),
    "sasl.kerberos.service.name": Combined(("sasl.kerberos.service.name",)),
    "sasl.kerberos.ticket.renew.jitter": NoEffect(NUMBER, _TICKET_RENEWAL),
    "sasl.kerberos.ticket.renew.window.factor": NoEffect(NUMBER, _TICKET_RENEWAL),
    "sasl.login.callback.handler.class": Combined(
        ("sasl.oauthbearer.method",),
        "only Kafka's own OAuthBearerLoginCallbackHandler, for what it does is built in",
    ),
    "sasl.login.class": Unsupported(
        f"{_JAVA_ONLY}; use one of the mechanisms of kafka.sasl.mechanism"
    ),
    "sasl.login.connect.timeout.ms": NoEffect(INT, _OAUTH_TRIES),
    "sasl.login.read.timeout.ms": NoEffect(INT, _OAUTH_TRIES),
    "sasl.login.refresh.buffer.seconds": NoEffect(INT, _OAUTH_RENEWAL),
    "sasl.login.refresh.min.period.seconds": NoEffect(INT, _OAUTH_RENEWAL),
    "sasl.login.refresh.window.factor": NoEffect(NUMBER, _OAUTH_RENEWAL),
    "sasl.login.refresh.window.jitter": NoEffect(NUMBER, _OAUTH_RENEWAL),
    "sasl.login.retry.backoff.max.ms": NoEffect(LONG, _OAUTH_TRIES),
    "sasl.login.retry.backoff.ms": NoEffect(LONG, _OAUTH_TRIES),
    "sasl.mechanism": Combined(
        ("sasl.mechanism",), "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
    ),
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
    "sasl.oauthbearer.clock.skew.seconds": NoEffect(INT, _VALIDATION),
    "sasl.oauthbearer.expected.audience": NoEffect(TEXT, _VALIDATION),
    "sasl.oauthbearer.expected.issuer": NoEffect(TEXT, _VALIDATION),
    "sasl.oauthbearer.header.urlencode": Combined((), "only false: librdkafka encodes nothing"),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": NoEffect(LONG, _VALIDATION),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": NoEffect(LONG, _VALIDATION),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": NoEffect(LONG, _VALIDATION),
    "sasl.oauthbearer.jwks.endpoint.url": NoEffect(TEXT, _VALIDATION),
    "sasl.oauthbearer.jwt.retriever.class": Combined(
        ("sasl.oauthbearer.grant.type",),
        "only Kafka's DefaultJwtRetriever, ClientCredentialsJwtRetriever and JwtBearerJwtRetriever",
    ),
    "sasl.oauthbearer.jwt.validator.class": NoEffect(TEXT, _VALIDATION),
    "sasl.oauthbearer.scope": Combined(("sasl.oauthbearer.scope",)),
    "sasl.oauthbearer.scope.claim.name": NoEffect(TEXT, _VALIDATION),
    "sasl.oauthbearer.sub.claim.name": Translated(TEXT),
    "sasl.oauthbearer.token.endpoint.url": Combined(
        ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.method")
    ),
    # TLS.
    "security.protocol": Translated(one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    "security.providers": Unsupported(
        f"{_OPENSSL}; use kafka.ssl.providers for OpenSSL's providers"
    ),
    "ssl.cipher.suites": Translated(
        TEXT, note="with one of TLS 1.2 at least; those of TLS 1.3 are always on"
    ),
    "ssl.enabled.protocols": Combined(
        (), "with TLSv1.2 in it: librdkafka takes the newest of TLS 1.2 and 1.3 that a broker has"
    ),
    "ssl.endpoint.identification.algorithm": Combined(
        ("ssl.endpoint.identification.algorithm",), "https; empty becomes none"
    ),
    "ssl.engine.factory.class": Unsupported(f"{_JAVA_ONLY}; give certificates as PEM"),
    "ssl.key.password": Combined(("ssl.key.password",)),
    "ssl.keymanager.algorithm": NoEffect(TEXT, _OPENSSL),
    "ssl.keystore.certificate.chain": Combined(("ssl.certificate.pem",)),
    "ssl.keystore.key": Combined(("ssl.key.pem",)),
    "ssl.keystore.location": Combined(
        ("ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"),
        "the first two for PEM, the last for PKCS12",
    ),
    "ssl.keystore.password": Combined(("ssl.keystore.password",), "of a PKCS12 store"),
    "ssl.keystore.type": Combined((), "PEM or PKCS12; JKS is refused: convert it"),
    "ssl.protocol": NoEffect(
        one_of("TLS", "TLSv1.2", "TLSv1.3"), "librdkafka takes the newest that a broker has"
    ),
    "ssl.provider": Unsupported(f"{_OPENSSL}; use kafka.ssl.providers for OpenSSL's providers"),
    "ssl.secure.random.implementation": NoEffect(TEXT, _OPENSSL),
    "ssl.trustmanager.algorithm": NoEffect(one_of("PKIX", "SunX509"), _OPENSSL),
    "ssl.truststore.certificates": Combined(("ssl.ca.pem",)),
    "ssl.truststore.location": Combined(("ssl.ca.location",)),
    "ssl.truststore.password": Combined((), "must be left out: PEM certificates have no password"),
    "ssl.truststore.type": Combined((), "PEM; JKS and PKCS12 are refused: convert them"),
}
"""Every option of the Java consumer, by name, and what becomes of it."""

PRODUCER_OPTIONS: Final[Mapping[str, Treatment]] = {
    "acks": Translated(one_of("all", "-1", "0", "1"), note="default all, as in Java"),
    "batch.size": Translated(integer(1, _MOST)),
    "buffer.memory": NoEffect(
        LONG, "librdkafka counts otherwise: kafka.queue.buffering.max.kbytes"
    ),
    "compression.type": Translated(one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "delivery.timeout.ms": Translated(integer(1, _MOST), "message.timeout.ms"),
    "enable.idempotence": Translated(BOOLEAN, note="default true, as in Java"),
    "key.serializer": Unsupported(_BINARY),
    "linger.ms": Translated(integer(0, 900_000)),
    "max.block.ms": NoEffect(LONG, "kafka.delivery.timeout.ms counts from the beginning"),
    "max.in.flight.requests.per.connection": Translated(integer(1, 1_000_000)),
    "max.request.size": Translated(integer(1000, 1_000_000_000), "message.max.bytes"),
    "metadata.max.idle.ms": NoEffect(LONG, "a task ends before"),
    "partitioner.adaptive.partitioning.enable": NoEffect(BOOLEAN, "librdkafka does without"),
    "partitioner.availability.timeout.ms": NoEffect(LONG, "librdkafka does without"),
    "partitioner.class": Unsupported("there is no Java here; use the column partition"),
    "partitioner.ignore.keys": Unsupported("leave the column key out, or use the column partition"),
    "retries": Translated(integer(0, _MOST), "message.send.max.retries"),
    "transaction.timeout.ms": NoEffect(INT, "there is no transaction"),
    "transaction.two.phase.commit.enable": Unsupported(_NO_TRANSACTION),
    "transactional.id": Unsupported(_NO_TRANSACTION),
    "value.serializer": Unsupported(_BINARY),
}
"""By Java's name, without ``kafka.``."""
