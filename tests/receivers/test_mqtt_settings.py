"""Settings of an MQTT receiver, and the record that is made of a message."""

from typing import Any

import pytest

from headrace.errors import OptionError
from headrace.journal.records import Records
from headrace.receivers import MqttSettings
from headrace.receivers.mqtt.mqtt_connection import MqttMessage
from headrace.receivers.mqtt.mqtt_receiver import records_of


def settings(**given: Any) -> MqttSettings:
    return MqttSettings(**{"url": "mqtt://b", "topics": ("#",), "client_id": "c"} | given)


def test_the_port_is_the_one_of_the_scheme_unless_it_is_named() -> None:
    for url, host, port, tls in (
        ("mqtt://broker", "broker", 1883, False),
        ("mqtts://broker/", "broker", 8883, True),
        ("mqtt://[::1]:1884", "::1", 1884, False),
    ):
        made = settings(url=url)
        assert (made.host, made.port, made.tls) == (host, port, tls)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://b"}, "must be mqtt://host or mqtts://host"),
        ({"url": "mqtt://"}, "must be mqtt://host"),
        ({"url": "mqtt://b:0"}, "must be mqtt://host"),
        ({"url": "mqtt://b:99999"}, "must be mqtt://host"),
        ({"url": "mqtt://b/sensors"}, "must be mqtt://host"),
        ({"topics": ()}, "No topic is given"),
        ({"topics": ("a", "")}, "No topic is given"),
        ({"client_id": ""}, "client_id is empty"),
        ({"key_file": "k"}, "key is given without its certificate"),
        ({"ca_file": "f"}, "without TLS; use mqtts"),
        ({"receive_maximum": 0}, "receive_maximum is 0; it must be 1 or more"),
        ({"receive_maximum": 65_536}, "receive_maximum is 65536; it must be 65535 or less"),
        ({"session_expiry_s": 0}, "session_expiry_s"),
        ({"keepalive_s": 0}, "keepalive_s"),
        ({"reconnect_s": 0.0}, "reconnect_s"),
    ],
)
def test_what_is_out_of_range_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        settings(**given)


def test_no_refusal_shows_a_password() -> None:
    for given in ({"url": "mqtt://ada:secret@b"}, {"password": "secret"}):
        with pytest.raises(OptionError) as caught:
            settings(**given)
        assert "secret" not in str(caught.value)


def test_a_record_has_what_the_message_had() -> None:
    properties = (("headrace-message-id", "7"), ("unit", "°C"), ("unit", "C"))
    made = records_of(
        [
            MqttMessage(1, 1, "sensors/ä", b"21.5", properties, "text/plain"),
            MqttMessage(2, 0, "sensors/b", b""),
        ],
        1_000,
    )
    named = [(name, value.encode()) for name, value in properties]
    assert made == Records.of(
        [b"21.5", b""],
        keys=["sensors/ä".encode(), b"sensors/b"],
        headers=[[*named, ("content-type", b"text/plain")], None],
        ids=["7", None],
        timestamp_ms=1_000,
    )
