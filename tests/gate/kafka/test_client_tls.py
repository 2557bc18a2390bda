"""TLS, from Java's stores to librdkafka's options."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from tests.gate.kafka.client_certificates import CERTIFICATE, ENCRYPTED_KEY, KEY, PASSWORD, PKCS12

from headrace.errors import OptionError
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.client.security import pem

SERVERS = {"bootstrap.servers": "kafka:9092", "security.protocol": "SSL"}
TRUST = {"ssl.truststore.type": "PEM"}
KEYS = {"ssl.keystore.type": "PEM"}


OPENED = {"ssl.keystore.password": "hunter2"}


def key_store(location: str, form: str = "PEM") -> dict[str, str]:
    return {"ssl.keystore.type": form, "ssl.keystore.location": location}


def trust_store(location: str) -> dict[str, str]:
    return {**TRUST, "ssl.truststore.location": location}


def tls(options: Mapping[str, str]) -> dict[str, object]:
    """Return client_config's settings of TLS for these; assert that librdkafka accepts all."""
    config = client_config({**SERVERS, **options})
    Consumer({**config, "group.id": "x", "bootstrap.servers": ""}).close()
    return {name: value for name, value in config.items() if name.startswith("ssl.")}


def refusal(options: Mapping[str, str]) -> str:
    with pytest.raises(OptionError) as refused:
        client_config({**SERVERS, **options})
    assert "hunter2" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with the forms a store comes in."""
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    (tmp_path / "client.pem").write_text(KEY + CERTIFICATE)
    (tmp_path / "encrypted.pem").write_text(ENCRYPTED_KEY + CERTIFICATE)
    (tmp_path / "client.p12").write_bytes(PKCS12)
    return tmp_path


INLINE = {**KEYS, "ssl.keystore.certificate.chain": CERTIFICATE}
IDENTIFICATION = "ssl.endpoint.identification.algorithm"
SUITES = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_AES_256_GCM_SHA384"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (trust_store("STORE/ca.pem"), {"ssl.ca.location": "STORE/ca.pem"}),
        ({**TRUST, "ssl.truststore.certificates": CERTIFICATE}, {"ssl.ca.pem": CERTIFICATE}),
        # Certificates on one line, as properties files and --conf have them, and Java reads them.
        (
            {**TRUST, "ssl.truststore.certificates": CERTIFICATE.replace("\n", " ")},
            {"ssl.ca.pem": CERTIFICATE},
        ),
        (
            key_store("STORE/client.pem"),
            {
                "ssl.certificate.location": "STORE/client.pem",
                "ssl.key.location": "STORE/client.pem",
            },
        ),
        (
            key_store("STORE/encrypted.pem") | {"ssl.key.password": PASSWORD},
            {
                "ssl.certificate.location": "STORE/encrypted.pem",
                "ssl.key.location": "STORE/encrypted.pem",
                "ssl.key.password": PASSWORD,
            },
        ),
        (
            {**INLINE, "ssl.keystore.key": KEY},
            {"ssl.certificate.pem": CERTIFICATE, "ssl.key.pem": KEY},
        ),
        (
            {**INLINE, "ssl.keystore.key": ENCRYPTED_KEY, "ssl.key.password": PASSWORD},
            {
                "ssl.certificate.pem": CERTIFICATE,
                "ssl.key.pem": ENCRYPTED_KEY,
                "ssl.key.password": PASSWORD,
            },
        ),
        (
            key_store("STORE/client.p12", "pkcs12") | {"ssl.keystore.password": PASSWORD},
            {"ssl.keystore.location": "STORE/client.p12", "ssl.keystore.password": PASSWORD},
        ),
        ({IDENTIFICATION: ""}, {IDENTIFICATION: "none"}),
        ({IDENTIFICATION: "HTTPS"}, {IDENTIFICATION: "https"}),
        ({"ssl.cipher.suites": SUITES}, {"ssl.cipher.suites": SUITES}),  # in Java's names
        # The defaults of librdkafka.
        ({"ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}, {}),
        ({"ssl.enabled.protocols": "TLSv1.2"}, {}),
        ({"ssl.protocol": "TLSv1.3"}, {}),
        # The types of no stores.
        ({"ssl.keystore.type": "JKS", "ssl.truststore.type": "JKS"}, {}),
    ],
)
def test_stores_and_settings_are_translated(
    store: Path, options: dict[str, str], expected: dict[str, str]
) -> None:
    def placed(values: dict[str, str]) -> dict[str, str]:
        return {name: value.replace("STORE", str(store)) for name, value in values.items()}

    assert tls(placed(options)) == placed(expected)


def test_several_certificates_on_one_line_are_each_broken_into_lines() -> None:
    one_line = CERTIFICATE.replace("\n", " ")
    assert pem(one_line + one_line) == CERTIFICATE + " " + CERTIFICATE + " "


def test_the_headers_of_an_old_encrypted_key_are_left_alone() -> None:
    key = "-----BEGIN RSA KEY-----\nProc-Type: 4,ENCRYPTED\n\nTUlJ\n-----END RSA KEY-----\n"
    assert pem(key) == key


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"ssl.truststore.location": "/t.jks"}, "keytool -list -rfc"),
        ({"ssl.truststore.location": "/t", "ssl.truststore.type": "PKCS12"}, "keytool -list -rfc"),
        ({"ssl.truststore.certificates": CERTIFICATE}, "kafka.ssl.truststore.type=PEM"),
        (
            trust_store("/t") | {"ssl.truststore.password": "hunter2"},
            "kafka.ssl.truststore.password",
        ),
        (
            trust_store("/t") | {"ssl.truststore.certificates": "c"},
            "kafka.ssl.truststore.certificates and kafka.ssl.truststore.location are both given",
        ),
        (
            trust_store("/nowhere/ca.pem"),
            "librdkafka refuses kafka.ssl.truststore.location='/nowhere/ca.pem' (",
        ),
        (
            {**TRUST, "ssl.truststore.certificates": "no certificate"},
            "librdkafka refuses kafka.ssl.truststore.certificates='no certificate' (",
        ),
        ({"ssl.keystore.location": "/k.jks"}, "keytool -importkeystore"),
        (key_store("/k", "PKCS12"), "password, which is missing"),
        (
            key_store("/nowhere/k", "PKCS12") | OPENED,
            "librdkafka refuses kafka.ssl.keystore.location='/nowhere/k' (",
        ),
        (
            key_store("/k", "PKCS12") | OPENED | {"ssl.key.password": "hunter22"},
            "kafka.ssl.key.password differs",
        ),
        (key_store("/k") | OPENED, "kafka.ssl.key.password"),
        (
            key_store("/k") | {"ssl.keystore.key": "hunter2"},
            "kafka.ssl.keystore.key and kafka.ssl.keystore.location are both given",
        ),
        ({**KEYS, "ssl.keystore.key": "hunter2"}, "kafka.ssl.keystore.key is given without"),
        (
            {**INLINE, "ssl.keystore.key": ENCRYPTED_KEY, "ssl.key.password": "hunter2"},
            "librdkafka refuses kafka.ssl.keystore.key=***(redacted) (",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "https, or empty"),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "must include TLSv1.2"),
        ({"ssl.protocol": "SSLv3"}, "TLS or TLSv1.2 or TLSv1.3"),
        ({"ssl.provider": "BCFIPS"}, "kafka.ssl.providers"),
        ({"security.providers": "a.B"}, "kafka.ssl.providers"),
        ({"ssl.trustmanager.algorithm": "Lenient"}, "PKIX or SunX509"),
    ],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, str], what: str) -> None:
    assert what in refusal(options)


def test_without_a_protocol_that_has_it_tls_is_not_looked_at() -> None:
    config = client_config(
        {**SERVERS, "security.protocol": "PLAINTEXT", "ssl.keystore.type": "JKS"}
    )
    assert not any(name.startswith("ssl.") for name in config)
