"""Which options are secrets, and that these are not shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka.redaction import REDACTED, is_secret, redact, shown

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
    assert shown(option, value) == f"kafka.{option}=***(redacted)"


def test_a_long_value_is_cut() -> None:
    assert shown("client.id", "a" * 5000) == f"kafka.client.id='{'a' * 80}...'"
