"""The settings of an MQTT receiver, and the records that are made of messages."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headrace.journal.receivers.mqtt.mqtt_message import (
    MESSAGE_ID,
    MOST_PROPERTIES,
    MqttMessage,
    message_of,
)
from headrace.journal.receivers.mqtt.mqtt_receiver import records_of
from headrace.journal.records import Records


def message(*ids: str) -> MqttMessage:
    properties: Sequence[tuple[str, str]] = [(MESSAGE_ID, each) for each in ids]
    return MqttMessage(1, 1, "sensors/1", b"21.5", properties)


@pytest.mark.parametrize("message_id", ["m", "x" * 200, "\N{SNOWMAN}" * 200])
def test_a_message_id_of_1_to_200_characters_is_the_record_s(message_id: str) -> None:
    assert not message(message_id).has_unfit_id
    assert _ids(message(message_id), message()) == [message_id, None]


@pytest.mark.parametrize("message_id", ["", "x" * 201, "x" * 65_535, "m\x001"])
def test_a_message_whose_id_is_empty_or_longer_is_a_record_without_one(message_id: str) -> None:
    assert message(message_id).has_unfit_id
    assert _ids(message(message_id), message("m")) == [None, "m"]
    # The publisher's id stays visible in the headers.
    assert message(message_id).headers == [(MESSAGE_ID, message_id.encode())]


def test_of_two_message_ids_that_differ_none_counts() -> None:
    """Which of them tells it from other messages is not known, and one of them may be all's."""
    assert message("device 7", "m").has_unfit_id
    assert _ids(message("m", "device 7"), message("m", "m")) == [None, "m"]


def test_a_message_without_an_id_has_no_unfit_one() -> None:
    assert not message().has_unfit_id
    assert message().message_id is None


def _ids(*messages: MqttMessage) -> list[str | None]:
    ids: list[str | None] = records_of(messages, 0).batch.column("id").to_pylist()
    return ids


def test_a_record_has_what_the_message_had() -> None:
    properties = (("headrace-message-id", "7"), ("unit", "°C"), ("unit", "C"))
    found = records_of(
        [
            MqttMessage(1, 1, "sensors/ä", b"21.5", properties, "text/plain"),
            MqttMessage(2, 0, "sensors/b", b""),
        ],
        1_000,
    )
    named = [(name, value.encode()) for name, value in properties]
    assert found == Records.of(
        [b"21.5", b""],
        keys=["sensors/ä".encode(), b"sensors/b"],
        headers=[[*named, ("content-type", b"text/plain")], None],
        ids=["7", None],
        timestamp_ms=1_000,
    )


def packet(payload: bytes, *names: str, qos: int = 1) -> bytes:
    """PUBLISH as paho-mqtt writes it, without its first byte and its length."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answers"
    properties.MessageExpiryInterval = 60
    properties.UserProperty = [(name, "1") for name in names]
    number = b"\0\7" if qos else b""
    packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
    return b"\0\1t" + number + packed + payload


@pytest.mark.parametrize("qos", [0, 1])
def test_a_packet_is_read_as_it_was_written(qos: int) -> None:
    read = message_of(qos << 1, packet(b"21.5", "a", "ä", "a", qos=qos))
    properties = [("a", "1"), ("ä", "1"), ("a", "1")]
    assert read == MqttMessage(7 * qos, qos, "t", b"21.5", properties, "text/plain")


def test_of_many_user_properties_the_first_are_taken_and_the_payload_is_whole() -> None:
    named = (b"\x26\0\1a\0\1b" * MOST_PROPERTIES, b"\x26\0\1a\0\1b" * 3)
    length = bytes([len(b"".join(named)) & 127 | 128, len(b"".join(named)) >> 7])
    read = message_of(2, b"\0\1t\0\7" + length + b"".join(named) + b"payload")
    assert (len(read.properties), read.is_cut, read.payload) == (MOST_PROPERTIES, True, b"payload")
    assert read.size_bytes > 100 * MOST_PROPERTIES


@given(st.integers(0, 3), st.integers(0, 60), st.binary(max_size=8))
def test_a_damaged_packet_is_a_message_or_an_error(qos: int, size: int, more: bytes) -> None:
    with suppress(ValueError):
        message_of(qos << 1, packet(b"21.5", "a")[:size] + more)
