"""A real broker with passwords and certificates lets those in whom Java's options let in."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.gate.kafka.client_certificates import CERTIFICATE, ENCRYPTED_KEY, KEY, PASSWORD
from tests.gate.kafka.test_client_sasl import quoted
from tests.services.waiting import wait_until

from headrace.gate.kafka.client.config import client_config
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars
from headrace.operate.local.servers import HOST, free_ports

pytestmark = pytest.mark.nightly

MODULES = "org.apache.kafka.common.security"
SECRET = "a \"quoted\" \\ and 'single' passwörd;"  # noqa: S105


class Listeners:
    """One broker with a listener for each way in."""

    def __init__(self, java: Java) -> None:
        plain, controller, passwords, certificates = free_ports(4)
        ports = {"PLAINTEXT": plain, "PASSWORDS": passwords, "CERTIFICATES": certificates}
        addresses = {name: f"{HOST}:{port}" for name, port in ports.items()}
        advertised = ",".join(f"{name}://{address}" for name, address in addresses.items())
        self.passwords = addresses["PASSWORDS"]
        self.certificates = addresses["CERTIFICATES"]
        settings = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"{advertised},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "PASSWORDS:SASL_PLAINTEXT,CERTIFICATES:SSL",
            **{f"listener.name.passwords.{name}": value for name, value in PASSWORDS.items()},
            **{f"listener.name.certificates.{name}": value for name, value in CERTIFICATES.items()},
        }
        self.broker = KafkaBroker(
            java,
            kafka_server_jars(java),
            settings={name: in_properties(value) for name, value in settings.items()},
        )
        self.broker.bootstrap_servers = addresses["PLAINTEXT"]


PASSWORDS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required"
    f" user_app={quoted(SECRET)};",
    "scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
}
CERTIFICATES = {
    "ssl.client.auth": "required",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.certificate.chain": CERTIFICATE,
    "ssl.keystore.key": KEY,
    "ssl.truststore.type": "PEM",
    "ssl.truststore.certificates": CERTIFICATE,
}


def in_properties(value: str) -> str:
    """A value as a properties file writes it."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in escaped)


@pytest.fixture(scope="module")
def listeners(java: Java) -> Iterator[Listeners]:
    made = Listeners(java)
    with made.broker as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("app", info, SECRET.encode())
            admin.alter_user_scram_credentials([change])["app"].result()
        yield made


def brokers(options: Mapping[str, str]) -> int:
    """Return the number of brokers that a client of these options is told of."""
    admin = AdminClient({**client_config(options), "log_level": 0})
    return len(admin.list_topics(timeout=20).brokers)


def login(mechanism: str, password: str) -> dict[str, str]:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{MODULES}.{module} required username="app"'
        f" password={quoted(password)};",
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_in_a_login_module_lets_in(listeners: Listeners, mechanism: str) -> None:
    assert brokers({"bootstrap.servers": listeners.passwords, **login(mechanism, SECRET)}) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_does_not(listeners: Listeners, mechanism: str) -> None:
    codes: list[int] = []
    config: dict[str, Any] = {
        **client_config({"bootstrap.servers": listeners.passwords, **login(mechanism, "wrong")}),
        "error_cb": lambda error: codes.append(error.code()),
        "group.id": "wrong",
        "log_level": 0,
    }
    consumer = Consumer(config)
    wait_until(lambda: consumer.poll(0.05) or codes)
    consumer.close()
    assert codes[0] == KafkaError._AUTHENTICATION


@pytest.mark.parametrize(
    ("key", "password"), [(KEY, {}), (ENCRYPTED_KEY, {"ssl.key.password": PASSWORD})]
)
def test_certificates_in_the_options_let_in(
    listeners: Listeners, key: str, password: dict[str, str]
) -> None:
    options = {
        "bootstrap.servers": listeners.certificates,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": CERTIFICATE.replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.keystore.key": key,
        **password,
    }
    assert brokers(options) == 1
