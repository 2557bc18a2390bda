"""Messages of an MQTT 5 broker, and the parser of PUBLISH packets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.journal.receivers.id_window import is_message_id
from headrace.journal.records import Headers

MESSAGE_ID: Final = "headrace-message-id"
"""User property in which a publisher sets a message id, so that a repeated message is stored once.

An invalid id (see `is_message_id`) is ignored, as are several different ids. A repeated message may
then be stored twice. If the receiver rejected the message, the broker would repeat it for ever.
"""

MOST_PROPERTIES: Final = 1_000
"""Maximum number of user properties that are parsed in a message, because each property takes time
and up to 30 times its size in memory. Further properties are dropped."""

_FRAME_BYTES: Final = 256
_PROPERTY_BYTES: Final = 200

_CONTENT_TYPE, _USER_PROPERTY = 0x03, 0x26
_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}
"""Sizes (bytes) of the skipped properties of PUBLISH that have a fixed size, by property identifier
(MQTT 5, 3.3.2.3)."""
_TEXTS: Final = frozenset({_CONTENT_TYPE, 0x08, 0x09})
_SUBSCRIPTION: Final = 0x0B


class Packet(NamedTuple):
    """Packet id (``mid``) and QoS of a message; both are needed to acknowledge the message.

    The packet id is valid for one connection only.
    """

    mid: int
    qos: int


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """Published message, with its packet id (``mid``) on this connection.

    Messages with QoS 1 must be acknowledged. ``properties`` are the user properties in the order of
    the packet, and may have several values for one name. ``is_cut`` is true if properties after the
    first `MOST_PROPERTIES` were dropped.
    """

    mid: int
    qos: int
    topic: str
    payload: bytes
    properties: Sequence[tuple[str, str]] = ()
    content_type: str | None = None
    is_cut: bool = False

    @property
    def size_bytes(self) -> int:
        """Upper estimate of the message's memory (bytes)."""
        named = sum(len(name) + len(value) + _PROPERTY_BYTES for name, value in self.properties)
        return len(self.payload) + len(self.topic) + 4 * named + _FRAME_BYTES

    @property
    def packet(self) -> Packet:
        """Packet id and QoS, which are kept without the payload until the acknowledgement."""
        return Packet(self.mid, self.qos)

    @property
    def message_id(self) -> str | None:
        """Message id from the user property; None if there is no valid id, or several ids."""
        ids = self._ids
        return ids[0] if len(ids) == 1 and is_message_id(ids[0]) else None

    @property
    def has_unfit_id(self) -> bool:
        """Whether the message has message ids that are ignored: an invalid id, or several ids."""
        return bool(self._ids) and self.message_id is None

    @property
    def _ids(self) -> list[str]:
        """Distinct values of the user property for the message id."""
        return list({value: None for name, value in self.properties if name == MESSAGE_ID})

    @property
    def headers(self) -> Headers:
        """Headers of the record: the user properties, then ``content-type`` if it is set."""
        headers: list[tuple[str, bytes | None]] = [
            (name, value.encode()) for name, value in self.properties
        ]
        if self.content_type is not None:
            headers.append(("content-type", self.content_type.encode()))
        return headers


def message_of(flags: int, packet: bytes | bytearray) -> MqttMessage:
    """Parse a PUBLISH packet, and return its message.

    ``flags`` are the four low bits of the packet's first byte. ``packet`` has the bytes after the
    length field. The time is linear in the size of the packet. The parser of paho-mqtt copies the
    rest of the packet for each property, which takes a second for 5 000 properties.

    Raises:
        ValueError: The packet is malformed, or has QoS 2, to which the receiver never subscribes.
    """
    qos = flags >> 1 & 3
    if qos > 1:
        raise ValueError(f"the message has QoS {qos}, not 0 or 1")
    topic, at = _text(packet, 0)
    mid = 0
    if qos:
        mid, at = int.from_bytes(packet[at : at + 2], "big"), at + 2
    length, at = _varint(packet, at)
    end = at + length
    if end > len(packet):
        raise ValueError("the message is incomplete")
    properties: list[tuple[str, str]] = []
    content_type = None
    while at < end and len(properties) < MOST_PROPERTIES:
        kind, at = packet[at], at + 1
        if kind == _USER_PROPERTY:
            name, at = _text(packet, at)
            value, at = _text(packet, at)
            properties.append((name, value))
        elif kind == _CONTENT_TYPE:
            content_type, at = _text(packet, at)
        else:
            at = _after(kind, packet, at)
    if at > end:
        raise ValueError("the message is incomplete")
    payload = bytes(memoryview(packet)[end:])
    return MqttMessage(mid, qos, topic, payload, properties, content_type, is_cut=at < end)


def _after(kind: int, packet: bytes | bytearray, at: int) -> int:
    if kind in _SIZES:
        return at + _SIZES[kind]
    if kind in _TEXTS:
        return at + 2 + int.from_bytes(packet[at : at + 2], "big")
    if kind == _SUBSCRIPTION:
        return _varint(packet, at)[1]
    raise ValueError(f"the message has an unknown property, {kind}")


def _text(packet: bytes | bytearray, at: int) -> tuple[str, int]:
    start = at + 2
    end = start + int.from_bytes(packet[at:start], "big")
    if end > len(packet):
        raise ValueError("the message is incomplete")
    return packet[start:end].decode(), end


def _varint(packet: bytes | bytearray, at: int) -> tuple[int, int]:
    number = 0
    for shift in (0, 7, 14, 21):
        if at >= len(packet):
            break
        byte, at = packet[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("the message has an invalid length")
