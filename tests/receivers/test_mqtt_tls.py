"""MQTT over TLS, with a real broker: who is at the other end is checked on both sides."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kafka.client_certificates import CERTIFICATE, KEY
from tests.receivers.brokered import mqtt, publish, subscribe
from tests.receivers.serving import Journal, in_loop, receiving, until
from tests.services.mosquitto import Mosquitto

from headrace.errors import OptionError
from headrace.receivers import MqttReceiver


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The files of a certificate that has signed itself, and so is its own authority."""
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    return {
        "ca_file": f"{tmp_path}/certificate.pem",
        "certificate_file": f"{tmp_path}/certificate.pem",
        "key_file": f"{tmp_path}/key.pem",
    }


@pytest.fixture
def broker(tmp_path: Path, files: dict[str, str]) -> Iterator[Mosquitto]:
    """A broker that asks its clients over TLS for a certificate."""
    tls = [
        f"certfile {files['certificate_file']}",
        f"keyfile {files['key_file']}",
        f"cafile {files['ca_file']}",
        "require_certificate true",
    ]
    with Mosquitto(tmp_path, tls=tls) as running:
        yield running


def over_tls(broker: Mosquitto, host: str = "127.0.0.1", **files: Any) -> MqttReceiver:
    return mqtt(f"mqtts://{host}:{broker.tls_port}", **files)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@in_loop
async def test_what_comes_over_tls_is_stored_and_acknowledged(
    broker: Mosquitto, files: dict[str, str], host: str
) -> None:
    journal = Journal()
    receiver = over_tls(broker, host, **files)
    await subscribe(receiver)
    async with receiving(receiver, journal):
        await publish(broker.port, b"21.5", b"21.6")
        await until(lambda: len(journal.values) == 2)
    await publish(broker.port, b"21.7")
    again = Journal()
    async with receiving(over_tls(broker, host, **files), again):
        await until(lambda: again.values)
    assert journal.values == [b"21.5", b"21.6"]
    assert again.values == [b"21.7"], "the others were acknowledged"


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (["ca_file"], "certificate verify failed"),
        (["certificate_file", "key_file"], "Without the broker mqtts://127.0.0.1"),
    ],
    ids=["an unknown broker", "an unknown receiver"],
)
@in_loop
async def test_without_the_right_certificate_nothing_is_received_and_that_is_told(
    broker: Mosquitto,
    files: dict[str, str],
    missing: list[str],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    await subscribe(over_tls(broker, **files))
    await publish(broker.port, b"21.5")
    journal = Journal()
    shown = {name: file for name, file in files.items() if name not in missing}
    async with receiving(over_tls(broker, **shown), journal):
        await until(lambda: told in caplog.text)
    assert journal.values == []
    async with receiving(over_tls(broker, **files), journal):
        await until(lambda: journal.values)
    assert caplog.text.count("Connected to the broker") == 1


@in_loop
async def test_the_certificate_of_another_host_is_not_trusted(
    broker: Mosquitto, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    async with receiving(over_tls(broker, "127.0.0.2", **files), Journal()):
        await until(lambda: "IP address mismatch" in caplog.text)
    assert "Connected to the broker" not in caplog.text


def test_certificates_that_cannot_be_read_are_told_in_one_sentence(
    broker: Mosquitto, files: dict[str, str]
) -> None:
    async def work() -> None:
        for name in ("ca_file", "certificate_file"):
            receiver = over_tls(broker, **files | {name: "/none.pem"})
            with pytest.raises(OptionError, match=r"certificates for .* cannot be used: No such"):
                await subscribe(receiver)

    asyncio.run(work())
