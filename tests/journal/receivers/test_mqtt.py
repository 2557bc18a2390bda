"""Records from a real MQTT 5 broker: durable before PUBACK, and sent again if they are not."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.kafka.client_certificates import CERTIFICATE, KEY
from tests.journal.receivers.brokered import mqtt, publish, subscribe, wired
from tests.journal.receivers.serving import Journal, in_loop, receiving, until
from tests.services.mosquitto import Mosquitto

from headrace.errors import JournalError, OptionError, ReceiverError
from headrace.journal.receivers import Intake, IntakeSettings, MqttReceiver

pytestmark = pytest.mark.integration  # on Mosquitto


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as running:
        yield running


@in_loop
async def test_a_message_is_acknowledged_when_it_is_durable(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    journal.going.clear()
    async with wired(broker.port, journal.values) as (between, receiver):
        async with receiving(receiver, journal):
            for number in range(3):  # an early PUBACK would come before the next message
                await publish(broker.port, b"%d" % number)
                await until(lambda most=number + 1: len(between.delivered) == most)
            assert between.acknowledged == []
            journal.going.set()
            await until(lambda: len(between.acknowledged) == 3)
        assert between.acknowledged == between.delivered
        assert between.too_early == 0
    assert journal.values == [b"0", b"1", b"2"]
    assert journal.keys == [b"sensors/1"] * 3


@in_loop
async def test_what_could_not_be_stored_is_not_acknowledged_and_comes_again(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    journal = Journal()
    journal.failures += [JournalError("The disk is full; make room.")] * 2
    async with wired(broker.port, journal.values) as (between, receiver):
        async with receiving(receiver, journal):
            await publish(broker.port, b"21.5")
            await until(lambda: between.acknowledged)
        assert len(between.delivered) == 3
        assert between.again[-2:] == between.delivered[1:]
        assert len(between.acknowledged) == 1
        assert between.too_early == 0
    assert journal.values == [b"21.5"]
    assert "a block was not stored, so the broker must send its messages again" in caplog.text


@in_loop
async def test_a_slow_journal_has_the_broker_hold_back_at_the_receive_maximum(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    journal.going.clear()
    payloads = [b"%d" % number for number in range(50)]
    async with wired(broker.port, journal.values, receive_maximum=7) as (between, receiver):
        async with receiving(receiver, journal):
            await publish(broker.port, *payloads)
            await until(lambda: len(between.delivered) == 7)
            await publish(broker.port, b"last")  # the broker had time to send more
            assert len(between.delivered) == 7
            journal.going.set()
            await until(lambda: len(between.acknowledged) == 51)
        assert between.too_early == 0
    assert journal.values == [*payloads, b"last"]


@in_loop
async def test_more_messages_without_acknowledgement_than_the_maximum_are_not_held_in_memory(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    journal.going.clear()
    settings = IntakeSettings(block_interval_ms=1)
    async with receiving(mqtt(broker.url, receive_maximum=2), journal, settings) as intake:
        while not intake.statistics.reserved_bytes:  # until it has subscribed
            await publish(broker.port, b"first", qos=0)
        await publish(broker.port, *[b"more"] * 50, qos=0)
        assert intake.statistics.reserved_bytes < 1_000
        journal.going.set()
        await until(lambda: journal.values.count(b"more") == 50)


@in_loop
async def test_a_message_id_has_what_is_sent_twice_stored_once(broker: Mosquitto) -> None:
    journal = Journal()
    async with (
        wired(broker.port, journal.values) as (between, receiver),
        receiving(receiver, journal) as intake,
    ):
        await publish(broker.port, b"21.5", named=True)
        await publish(broker.port, b"21.5", named=True)
        await publish(broker.port, b"21.5")
        await until(lambda: len(between.acknowledged) == 3)
        assert intake.statistics.duplicate_records == 1
    assert journal.values == [b"21.5", b"21.5"]


@in_loop
async def test_messages_with_an_empty_or_too_long_id_are_all_stored_and_one_line_is_logged(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    unfit = [b"", b"", b"x" * 201, b"x" * 201]
    journal = Journal()
    async with (
        wired(broker.port, journal.values) as (between, receiver),
        receiving(receiver, journal) as intake,
    ):
        for payload in unfit:
            await publish(broker.port, payload, named=True)
        await until(lambda: len(between.acknowledged) == len(unfit))
        assert intake.statistics.duplicate_records == 0
    assert journal.values == unfit
    assert caplog.text.count("or an empty one, or one of more than 200 characters") == 1


@in_loop
async def test_a_lost_connection_is_logged_once_and_unacknowledged_messages_come_again(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    journal = Journal()
    journal.going.clear()
    async with wired(broker.port, journal.values) as (between, receiver):
        async with receiving(receiver, journal) as intake:
            await publish(broker.port, b"a", named=True)
            await until(lambda: intake.statistics.reserved_bytes)
            await until(lambda: "Connected to the broker" in caplog.text)
            between.cut()
            journal.going.set()
            await until(lambda: between.acknowledged)
            await publish(broker.port, b"b")
            await until(lambda: len(between.acknowledged) == 2)
        assert set(between.again) == {between.delivered[0]}
    assert journal.values == [b"a", b"b"]
    assert caplog.text.count("is unreachable") == 1
    assert caplog.text.count("Connected to the broker") == 2


@pytest.mark.parametrize(
    "packet",
    [b"\x30\x06\x00\x02\xff\xfe\x00x", b"\x30\x0a\x00\x01a\x05\x03\x00\x02\xff\xfex"],
    ids=["topic", "content type"],
)
@in_loop
async def test_a_message_whose_text_is_no_utf_8_is_a_lost_connection_and_health_says_so(
    packet: bytes, broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the thread that reads, without a word to anybody."""
    caplog.set_level(logging.INFO, "headrace.receivers")
    journal = Journal()
    async with (
        wired(broker.port, journal.values) as (between, receiver),
        receiving(receiver, journal) as intake,
    ):
        await until(lambda: "Connected to the broker" in caplog.text)
        assert await intake.health.trouble() is None
        between.say(packet)
        await until(lambda: intake.health.no_broker)
        assert "is unreachable: " in caplog.text
        await until(lambda: caplog.text.count("Connected to the broker") == 2)
        assert await intake.health.trouble() is None
        await publish(broker.port, b"21.5")
        await until(lambda: journal.values == [b"21.5"])


@pytest.mark.parametrize("end", ["stop", "kill"])
@in_loop
async def test_a_broker_that_is_unreachable_is_waited_for_and_keeps_its_messages(
    end: str, broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    journal = Journal()
    receiver = mqtt(broker.url)
    await subscribe(receiver)
    async with receiving(receiver, journal):
        await publish(broker.port, b"before")
        await until(lambda: journal.values == [b"before"])
        # A kept session's messages come before the answer to its subscription.
        await until(lambda: "Connected to the broker" in caplog.text)
        await asyncio.to_thread(getattr(broker, end))
        await until(lambda: "is unreachable" in caplog.text)
        await asyncio.to_thread(broker.start)
        await until(lambda: caplog.text.count("Connected to the broker") == 2)
        await publish(broker.port, b"after")
        await until(lambda: b"after" in journal.values)
    assert "lost this receiver's session" not in caplog.text
    assert caplog.text.count("is unreachable") == 1


@in_loop
async def test_a_lost_session_is_subscribed_to_again_and_logged(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    journal = Journal()
    async with receiving(mqtt(broker.url), journal):
        await until(lambda: "Connected to the broker" in caplog.text)
        await asyncio.to_thread(broker.forget)
        await until(lambda: caplog.text.count("Connected to the broker") == 2)
        await publish(broker.port, b"after")
        await until(lambda: journal.values == [b"after"])
    assert "has lost this receiver's session" in caplog.text


@in_loop
async def test_a_clean_stop_stores_what_is_buffered_and_leaves_the_rest_to_the_broker(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    journal.going.clear()
    async with wired(broker.port, journal.values, receive_maximum=1) as (between, receiver):
        async with Intake(journal.append, IntakeSettings(block_interval_ms=1)) as intake:
            running = asyncio.create_task(receiver.receive(intake))
            await publish(broker.port, b"a", b"b")
            await until(lambda: journal.begun)
            running.cancel()
            asyncio.get_running_loop().call_soon(journal.going.set)
            await asyncio.wait([running])
            assert running.cancelled()
        assert journal.values == [b"a"]
        async with receiving(receiver, journal):
            await until(lambda: len(between.acknowledged) == 2)
        assert journal.values == [b"a", b"b"]
        assert between.too_early == 0


@in_loop
async def test_a_session_that_another_client_has_taken_over_ends_the_receiver(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    async with (
        wired(broker.port, journal.values) as (between, receiver),
        Intake(journal.append) as intake,
    ):
        running = asyncio.create_task(receiver.receive(intake))
        await publish(broker.port, b"hello")
        await until(lambda: journal.values)
        between.say(b"\xe0\x01\x8e")  # DISCONNECT, which not every broker sends then
        with pytest.raises(ReceiverError, match="client id 'receiver'; give each"):
            await running


@in_loop
async def test_a_message_that_fits_no_buffer_ends_the_receiver_and_stays_with_the_broker(
    broker: Mosquitto,
) -> None:
    journal = Journal()
    receiver = mqtt(broker.url)
    await subscribe(receiver)
    await publish(broker.port, b"0" * 5_000)
    async with Intake(journal.append, IntakeSettings(1, 1_000, 16_000)) as small:
        with pytest.raises(ReceiverError, match="a message may have 2000 bytes"):
            await receiver.receive(small)
    async with receiving(receiver, journal):
        await until(lambda: journal.values)
    assert journal.values == [b"0" * 5_000]


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
def tls_broker(tmp_path: Path, files: dict[str, str]) -> Iterator[Mosquitto]:
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
    tls_broker: Mosquitto, files: dict[str, str], host: str
) -> None:
    journal = Journal()
    receiver = over_tls(tls_broker, host, **files)
    await subscribe(receiver)
    async with receiving(receiver, journal):
        await publish(tls_broker.port, b"21.5", b"21.6")
        await until(lambda: len(journal.values) == 2)
    await publish(tls_broker.port, b"21.7")
    again = Journal()
    async with receiving(over_tls(tls_broker, host, **files), again):
        await until(lambda: again.values)
    assert journal.values == [b"21.5", b"21.6"]
    assert again.values == [b"21.7"], "the others were acknowledged"


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (["ca_file"], "certificate verify failed"),
        (["certificate_file", "key_file"], "is unreachable: "),
    ],
    ids=["an unknown broker", "an unknown receiver"],
)
@in_loop
async def test_without_the_right_certificate_nothing_is_received_and_it_is_logged(
    tls_broker: Mosquitto,
    files: dict[str, str],
    missing: list[str],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    await subscribe(over_tls(tls_broker, **files))
    await publish(tls_broker.port, b"21.5")
    journal = Journal()
    shown = {name: file for name, file in files.items() if name not in missing}
    async with receiving(over_tls(tls_broker, **shown), journal):
        await until(lambda: told in caplog.text)
    assert journal.values == []
    connected = "Connected to the broker"
    async with receiving(over_tls(tls_broker, **files), journal):
        await until(lambda: journal.values and connected in caplog.text)
    assert caplog.text.count(connected) == 1


@in_loop
async def test_the_certificate_of_another_host_is_not_trusted(
    tls_broker: Mosquitto, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.receivers")
    async with receiving(over_tls(tls_broker, "127.0.0.2", **files), Journal()):
        await until(lambda: "IP address mismatch" in caplog.text)
    assert "Connected to the broker" not in caplog.text


def test_certificates_that_cannot_be_read_are_an_error_in_one_sentence(
    tls_broker: Mosquitto, files: dict[str, str]
) -> None:
    async def work() -> None:
        for name in ("ca_file", "certificate_file"):
            receiver = over_tls(tls_broker, **files | {name: "/none.pem"})
            with pytest.raises(OptionError, match=r"certificates for .* cannot be used: No such"):
                await subscribe(receiver)

    asyncio.run(work())
