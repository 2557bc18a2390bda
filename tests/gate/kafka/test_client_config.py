"""Java's options become librdkafka's; errors name the user's option and no secret."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.kafka.client.config import CONSUMER_OPTIONS, Treatment, client_config
from headrace.gate.kafka.client.option_values import REDACTED, describe, is_secret, redact

SERVERS = {"bootstrap.servers": "kafka:9092"}
DEFAULTS = {**SERVERS, "isolation.level": "read_uncommitted", "check.crcs": True}


def refusal(options: Mapping[str, str]) -> str:
    with pytest.raises(OptionError) as refused:
        client_config({**SERVERS, **options})
    return str(refused.value)


def test_what_is_read_by_default_is_what_java_reads() -> None:
    assert client_config(SERVERS) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("fetch.max.wait.ms", "100", {"fetch.wait.max.ms": 100}),
        ("Fetch.Max.Wait.MS", " 100 ", {"fetch.wait.max.ms": 100}),
        ("fetch.min.bytes", "1024", {"fetch.min.bytes": 1024}),
        ("fetch.max.bytes", "1000", {"fetch.max.bytes": 1000, "message.max.bytes": 1000}),
        (
            "fetch.max.bytes",
            "104857600",
            {"fetch.max.bytes": 104857600, "message.max.bytes": 1_000_000},
        ),
        ("max.partition.fetch.bytes", "2097152", {"max.partition.fetch.bytes": 2097152}),
        ("receive.buffer.bytes", "-1", {"socket.receive.buffer.bytes": 0}),
        ("send.buffer.bytes", "65536", {"socket.send.buffer.bytes": 65536}),
        ("request.timeout.ms", "40000", {"socket.timeout.ms": 40000}),
        ("connections.max.idle.ms", "-1", {"connections.max.idle.ms": 0}),
        ("metadata.max.age.ms", "60000", {"topic.metadata.refresh.interval.ms": 60000}),
        ("isolation.level", "READ_COMMITTED", {"isolation.level": "read_committed"}),
        ("check.crcs", "False", {"check.crcs": False}),
        ("security.protocol", "SSL", {"security.protocol": "ssl"}),
        ("client.id", "orders", {"client.id": "orders"}),
        ("group.id", "orders", {"group.id": "orders"}),
        ("allow.auto.create.topics", "true", {"allow.auto.create.topics": True}),
        ("metadata.recovery.strategy", "NONE", {"metadata.recovery.strategy": "none"}),
        ("max.poll.records", "5", {}),
        ("session.timeout.ms", "1", {}),
        ("queued.max.messages.kbytes", "1024", {"queued.max.messages.kbytes": "1024"}),
    ],
)
def test_an_option_is_translated(name: str, value: str, expected: dict[str, object]) -> None:
    config = client_config({**SERVERS, name: value})
    assert config == {**DEFAULTS, **expected}
    Consumer({**{"group.id": "x"}, **config, "bootstrap.servers": ""}).close()


@pytest.mark.parametrize(
    ("given", "wait", "most"),
    [
        # A wait alone is constant in Java, whatever the default of the maximum.
        ({"reconnect.backoff.ms": "20000"}, 20000, 20000),
        ({"reconnect.backoff.max.ms": "50"}, 50, 50),
        ({"reconnect.backoff.ms": "10", "reconnect.backoff.max.ms": "500"}, 10, 500),
        ({"retry.backoff.ms": "200"}, 200, 1000),
        ({"retry.backoff.ms": "5000"}, 1000, 1000),
        ({"retry.backoff.ms": "5000", "retry.backoff.max.ms": "2000"}, 2000, 2000),
    ],
)
def test_a_wait_between_tries_is_never_above_its_maximum(
    given: dict[str, str], wait: int, most: int
) -> None:
    kind = next(iter(given)).partition(".")[0]
    expected = {f"{kind}.backoff.ms": wait, f"{kind}.backoff.max.ms": most}
    assert client_config({**SERVERS, **given}) == {**DEFAULTS, **expected}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a:1", "a:1"),
        (" a:1 , b.example.com:65535,", "a:1,b.example.com:65535"),
        ("[::1]:9092", "[::1]:9092"),
        ("SASL_SSL://a:9092", "a:9092"),  # the protocol is in kafka.security.protocol
    ],
)
def test_the_brokers_addresses_are_taken_as_java_takes_them(written: str, expected: str) -> None:
    assert client_config({"bootstrap.servers": written})["bootstrap.servers"] == expected


@pytest.mark.parametrize("options", [{}, {"bootstrap.servers": " "}, {"bootstrap.servers": ",,"}])
def test_the_brokers_addresses_are_required(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"^kafka\.bootstrap\.servers is missing; .*host:port"):
        client_config(options)


@pytest.mark.parametrize("address", ["kafka", "kafka:", ":9092", "kafka:0", "kafka:65536", "a b:1"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    message = refusal({"bootstrap.servers": f"good:9092,{address}"})
    assert message == (
        f"kafka.bootstrap.servers has {address!r}, which is not an address; write"
        " host:port,host:port with ports from 1 to 65535."
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("auto.offset.reset", "startingOffsets"),
        ("enable.auto.commit", "headrace.commit.group"),
        ("key.deserializer", "cast"),
        ("value.deserializer", "cast"),
        ("interceptor.classes", "transform the DataFrame"),
        ("ssl.engine.factory.class", "PEM"),
        ("acks", "producers; leave it out"),
        ("value.serializer", "producers; leave it out"),
        ("enable.auto.offset.store", "is set by Headrace itself"),
        ("enable.partition.eof", "is set by Headrace itself"),
        ("plugin.library.paths", "is set by Headrace itself"),
        ("stats_cb", "is set by Headrace itself"),
        ("metadata.broker.list", "kafka.bootstrap.servers"),
        ("sasl.mechanisms", "kafka.sasl.mechanism"),
    ],
)
def test_what_cannot_be_set_is_refused_with_what_to_use(name: str, instead: str) -> None:
    message = refusal({name: "anything"})
    assert message.startswith(f"kafka.{name}")
    assert instead in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("request.timeout.m", "did you mean kafka.request.timeout.ms?"),
        ("boostrap.server", "did you mean kafka.bootstrap.servers?"),
        ("colour", "check its spelling."),
        ("headrace.stop", "check its spelling."),
    ],
)
def test_a_name_that_nobody_knows_is_refused_with_the_nearest(name: str, hint: str) -> None:
    assert refusal({name: "1"}) == (
        f"kafka.{name} is unknown, to Kafka's Java consumer and to librdkafka; {hint}"
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("queued.max.messages.kbytes", "-100", "1..2097151"), ("log_level", "9", "0..7")],
)
def test_a_value_of_librdkafkas_own_option_is_checked_by_librdkafka(
    name: str, value: str, allowed: str
) -> None:
    message = refusal({name: value})
    assert message.startswith(f"librdkafka refuses kafka.{name}='{value}' (")
    assert allowed in message


def test_what_only_librdkafka_knows_to_be_wrong_names_the_users_option() -> None:
    message = refusal({"security.protocol": "SSL", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"})
    assert message.startswith("librdkafka refuses kafka.ssl.cipher.suites='TLS_AES_256_GCM_SHA384'")


def test_the_same_in_both_clients_names_is_a_contradiction() -> None:
    message = refusal({"fetch.max.wait.ms": "1", "fetch.wait.max.ms": "2"})
    assert message == (
        "kafka.fetch.wait.max.ms and kafka.fetch.max.wait.ms are both given; leave one of them out."
    )


def test_debugging_is_for_the_query_and_silent_in_the_check(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert client_config({**SERVERS, "debug": "all"})["debug"] == "all"
    assert capfd.readouterr() == ("", "")


SECRET_OPTIONS = [
    *("sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.key", "ssl.key.pem"),
    *("ssl.keystore.password", "ssl.keystore.certificate.chain", "ssl.truststore.password"),
    *("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.assertion.private.key.passphrase", "password", "sasl.password.typo"),
]


@given(
    st.sampled_from(SECRET_OPTIONS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    st.sampled_from(["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]),
    st.sampled_from(["PEM", "PKCS12", "JKS"]),
    st.sampled_from(["SSL", "SASL_SSL", "SASL_PLAINTEXT", "PLAINTEXT"]),
)
def test_no_error_shows_a_secret(
    option: str, text: str, mechanism: str, store: str, protocol: str
) -> None:
    secret = f"hunter2{text}hunter2"
    others = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "ssl.keystore.type": store,
        "ssl.keystore.location": "/nowhere/store",
        "ssl.truststore.type": store,
    }
    try:
        client_config({**SERVERS, **others, option: secret})
    except OptionError as error:
        assert "hunter2" not in str(error)
        assert error.__cause__ is None
        assert error.__context__ is None


@pytest.mark.parametrize("value", ["", "1.0", "1_0", "٣", "1e3", "0x10", "9" * 5000])
def test_a_whole_number_is_written_in_digits(value: str) -> None:
    assert "must be a whole number from 0 to 300000." in refusal({"fetch.max.wait.ms": value})


HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "kafka-client-options.md"

# "name default" of ConsumerConfig.configDef() in kafka-clients 4.1.0, and the one that only 3.9.2
# has; "-" stands for no default.
JAVA_DEFAULTS = dict(
    line.split(" ", 1) for line in (HERE / "java_consumer_options.txt").read_text().splitlines()
)


def test_every_option_of_the_java_consumer_is_treated_and_no_other() -> None:
    assert sorted(CONSUMER_OPTIONS) == sorted(JAVA_DEFAULTS)


@pytest.mark.parametrize("name", sorted(set(JAVA_DEFAULTS) - {"bootstrap.servers"}))
def test_javas_default_is_accepted_wherever_the_option_is(name: str) -> None:
    default = JAVA_DEFAULTS[name]
    if CONSUMER_OPTIONS[name].refusal:
        with pytest.raises(OptionError, match=rf"^kafka\.{re.escape(name)}=.* cannot be used: "):
            client_config({**SERVERS, name: default})
    elif default != "-":
        client_config({**SERVERS, name: "" if default == "''" else default})


@pytest.mark.parametrize(
    "name",
    sorted(name for name, treatment in CONSUMER_OPTIONS.items() if treatment.value),
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_allowed(name: str) -> None:
    treatment = CONSUMER_OPTIONS[name]
    assert treatment.value is not None
    if treatment.value.allowed.startswith("a text"):
        client_config({**SERVERS, name: "wrong"})
        return
    with pytest.raises(OptionError) as refused:
        client_config({**SERVERS, name: "wrong"})
    assert str(refused.value).startswith(f"kafka.{name}=")
    assert str(refused.value).endswith(f"is not valid; it must be {treatment.value.allowed}.")


def test_the_least_and_the_most_that_the_table_allows_are_taken_and_nothing_beyond() -> None:
    for name, treatment in CONSUMER_OPTIONS.items():
        allowed = treatment.value.allowed if treatment.value else ""
        limits = re.match(r"a whole number from (\d+) to (\d+)", allowed)
        if limits is None or not treatment.to:
            continue
        for limit, beyond in ((int(limits[1]), -2), (int(limits[2]), int(limits[2]) + 1)):
            assert client_config({**SERVERS, name: str(limit)})[treatment.to[0]] == limit
            with pytest.raises(OptionError, match=f"kafka.{name}="):
                client_config({**SERVERS, name: str(beyond)})


def row(name: str, treatment: Treatment) -> str:
    """A pattern of the option's line in the page's table."""
    if treatment.refusal:
        text = re.escape(f"refused: {treatment.refusal}")
    elif treatment.to:
        text = "becomes " + ", ".join(f"`{n}`" for n in treatment.to) + r"( \(.+\))?"
    else:
        text = "accepted, no effect: .+" if treatment.value else "checked: .+"
    return rf"\| `kafka\.{name}` \| {text} \|"


def test_the_page_says_of_every_option_what_becomes_of_it() -> None:
    lines = PAGE.read_text().splitlines()
    table = lines.index("| option | what becomes of it |") + 2
    rows = list(itertools.takewhile(bool, lines[table:]))
    for line, (name, treatment) in zip(rows, sorted(CONSUMER_OPTIONS.items()), strict=True):
        assert re.fullmatch(row(name, treatment), line)


SECRETS = [
    "sasl.jaas.config",
    "sasl.password",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "fs.s3a.access.key",
    "accessKey",
]


@pytest.mark.parametrize("option", SECRETS)
def test_secrets_are_known_with_and_without_prefix_in_any_case(option: str) -> None:
    assert is_secret(option)
    assert is_secret(f"kafka.{option}")
    assert is_secret(f"KAFKA.{option.upper()}")


@pytest.mark.parametrize(
    "option",
    [
        *("subscribe", "startingOffsets", "kafka.bootstrap.servers", "kafka.client.id"),
        *("kafka.sasl.mechanism", "kafka.sasl.username", "kafka.ssl.keystore.location"),
        *("kafka.ssl.truststore.certificates", "kafka.ssl.keystore.type"),
        "kafka.ssl.keymanager.algorithm",
    ],
)
def test_what_helps_to_find_a_mistake_is_shown(option: str) -> None:
    assert not is_secret(option)
    assert redact({option: "value"}) == {option: "value"}


def test_of_a_ledgers_url_only_the_password_is_hidden() -> None:
    url = "postgresql+psycopg://app:hunter2@db/orders"
    for name in ("headrace.ledger", "headrace.LEDGER"):
        assert is_secret(name)
        assert redact({name: url}) == {name: "postgresql+psycopg://app:***@db/orders"}


def test_of_what_is_no_ledgers_url_nothing_is_shown() -> None:
    assert redact({"headrace.ledger": "hunter2 at db"}) == {"headrace.ledger": "***(redacted)"}


@given(st.sampled_from(SECRETS), st.text(min_size=6).filter(lambda text: text not in REDACTED))
def test_a_secrets_value_is_not_shown(option: str, value: str) -> None:
    assert value not in redact({option: value})[option]
    assert describe(option, value) == f"kafka.{option}=***(redacted)"


def test_a_long_value_is_cut() -> None:
    assert describe("client.id", "a" * 5000) == f"kafka.client.id='{'a' * 80}...'"
