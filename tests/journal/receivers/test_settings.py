"""Settings of receivers: what is out of range is refused when they are made, in one sentence."""

from typing import Any

import pytest

from headrace.errors import OptionError
from headrace.journal.receivers import (
    Hosting,
    HttpSettings,
    IntakeSettings,
    MqttSettings,
    ReceiverLimits,
    TcpSettings,
)


def mqtt(**raw: Any) -> MqttSettings:
    return MqttSettings(**{"url": "mqtt://b", "topics": ("#",), "client_id": "c"} | raw)


NOT_POSITIVE = (0, -1, float("nan"), float("inf"))


@pytest.mark.parametrize(
    ("make", "wrong", "words"),
    [
        (IntakeSettings, {"block_interval_ms": 0}, "block_interval_ms is 0 ms"),
        (IntakeSettings, {"block_bytes": 0}, "block_bytes is 0"),
        (
            IntakeSettings,
            {"block_bytes": 6, "max_memory_bytes": 23},
            "is 23, less than four blocks of 6",
        ),
        (Hosting, {"journal": "events", "gate": "orders"}, "'orders' is set without a ledger"),
        *[
            (ReceiverLimits, {name: value}, f"{name} is .*; it must be a finite number above 0")
            for name in ("max_rate", "max_bytes_rate", "initial_rate")
            for value in NOT_POSITIVE
        ],
        *[
            (kind, {name: value}, f"^{name} is ")
            for kind, name, value in (
                (TcpSettings, "port", 65_536),
                (TcpSettings, "port", -1),
                (TcpSettings, "id_field", ""),
                (TcpSettings, "max_line_bytes", 0),
                (TcpSettings, "line_s", 0.0),
                (TcpSettings, "max_connections", 0),
                (HttpSettings, "port", 65_536),
                (HttpSettings, "wait_s", -1),
                (HttpSettings, "max_header_bytes", 0),
                (HttpSettings, "header_s", 0),
                (HttpSettings, "max_body_bytes", 0),
                (HttpSettings, "max_decompressed_bytes", 0),
                (HttpSettings, "max_records", 0),
                (HttpSettings, "body_s", float("nan")),
                (HttpSettings, "max_connections", 0),
                (mqtt, "session_expiry_s", 0),
                (mqtt, "keepalive_s", 0),
                (mqtt, "reconnect_s", 0.0),
            )
        ],
        *[
            (mqtt, {"url": url}, "must be mqtt://host or mqtts://host")
            for url in ("http://b", "mqtt://", "mqtt://b:0", "mqtt://b:99999", "mqtt://b/sensors")
        ],
        (mqtt, {"topics": ()}, "No topic is set"),
        *[
            (mqtt, {"topics": ("a", topic)}, "must be a topic filter of MQTT")
            for topic in ("", "s/#/x", "s#", "s/+x", "+#", "a\0b", "é" * 40_000)
        ],
        (mqtt, {"client_id": ""}, "client_id is empty"),
        (mqtt, {"key_file": "k"}, "key file is set without its certificate"),
        (mqtt, {"ca_file": "f"}, "without TLS; use mqtts"),
        (
            mqtt,
            {"receive_maximum": 0},
            "receive_maximum is 0; it must be a whole .* 1 to 65535",
        ),
        (
            mqtt,
            {"receive_maximum": 65_536},
            "receive_maximum is 65536; it must be a whole number from 1 to 65535",
        ),
    ],
)
def test_what_is_out_of_range_is_refused(make: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make(**wrong)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (mqtt, {"url": "mqtt://ada:secret@b"}),
        (mqtt, {"password": "secret"}),
        (TcpSettings, {"token": "a secret"}),
        (HttpSettings, {"token": "a secret"}),
    ],
)
def test_no_error_and_no_repr_shows_a_secret(make: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        make(**wrong)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(mqtt(username="ada", password="secret"))  # noqa: S106


def test_the_port_is_the_one_of_the_scheme_unless_it_is_named() -> None:
    for url, host, port, tls in (
        ("mqtt://broker", "broker", 1883, False),
        ("mqtts://broker/", "broker", 8883, True),
        ("mqtt://[::1]:1884", "::1", 1884, False),
    ):
        found = mqtt(url=url)
        assert (found.host, found.port, found.tls) == (host, port, tls)
