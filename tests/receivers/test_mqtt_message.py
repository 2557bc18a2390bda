"""The settings of an MQTT receiver, and the records that are made of messages."""

from collections.abc import Sequence

import pytest

from headrace.journal.records import Records
from headrace.receivers.mqtt.mqtt_connection import MESSAGE_ID, MqttMessage
from headrace.receivers.mqtt.mqtt_receiver import records_of


def message(*ids: str) -> MqttMessage:
    properties: Sequence[tuple[str, str]] = [(MESSAGE_ID, each) for each in ids]
    return MqttMessage(1, 1, "sensors/1", b"21.5", properties)


@pytest.mark.parametrize("given", ["m", "x" * 200, "\N{SNOWMAN}" * 200])
def test_a_message_id_of_1_to_200_characters_is_the_record_s(given: str) -> None:
    assert not message(given).has_unfit_id
    assert _ids(message(given), message()) == [given, None]


@pytest.mark.parametrize("given", ["", "x" * 201, "x" * 65_535, "m\x001"])
def test_a_message_whose_id_is_empty_or_longer_is_a_record_without_one(given: str) -> None:
    assert message(given).has_unfit_id
    assert _ids(message(given), message("m")) == [None, "m"]
    # What the publisher wrote stays to be seen.
    assert message(given).headers == [(MESSAGE_ID, given.encode())]


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
