"""Messages of an MQTT 5 broker, and the parsing of their packets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.journal.receivers.id_window import is_message_id
from headrace.journal.records import Headers

MESSAGE_ID: Final = "headrace-message-id"
"""User property with a publisher's id of a message, so that the message is stored once.

An invalid id (`is_message_id`), or each of several ids, is ignored, and its message may be stored
twice. If such a message were rejected, the broker would repeat it for ever.
"""

MOST_PROPERTIES: Final = 1_000
"""Most user properties kept of a message; each takes time, and 30 times its bytes of memory."""

_FRAME_BYTES: Final = 256
_PROPERTY_BYTES: Final = 200

_CONTENT_TYPE, _USER_PROPERTY = 0x03, 0x26
_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}
"""Sizes of the other fixed-size properties of PUBLISH (MQTT 5, 3.3.2.3)."""
_TEXTS: Final = frozenset({_CONTENT_TYPE, 0x08, 0x09})
_SUBSCRIPTION: Final = 0x0B


class Packet(NamedTuple):
    """Packet id on this connection and QoS of a message, for its acknowledgement."""

    mid: int
    qos: int


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """A message as it was published, with its packet id on this connection.

    Messages with QoS 1 must be acknowledged. ``properties`` are the user properties in their order,
    and may repeat a name; ``is_cut`` says whether there are more than `MOST_PROPERTIES`.
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
        """Upper estimate of the memory of the message (bytes)."""
        named = sum(len(name) + len(value) + _PROPERTY_BYTES for name, value in self.properties)
        return len(self.payload) + len(self.topic) + 4 * named + _FRAME_BYTES

    @property
    def packet(self) -> Packet:
        """The packet to acknowledge, which is kept without the payload."""
        return Packet(self.mid, self.qos)

    @property
    def message_id(self) -> str | None:
        """The message id; None without an id, or if the id is ignored."""
        ids = self._ids
        return ids[0] if len(ids) == 1 and is_message_id(ids[0]) else None

    @property
    def has_unfit_id(self) -> bool:
        """Whether the message has an id that is ignored."""
        return bool(self._ids) and self.message_id is None

    @property
    def _ids(self) -> list[str]:
        """Distinct message ids; of several ids, none is known to be the right one."""
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
    """Parse a PUBLISH packet from the first byte's low bits and the bytes after its length.

    Time grows with the bytes read. paho-mqtt instead copies the rest of a packet, payload included,
    for each property: 5 000 properties take a second.

    Raises:
        ValueError: The packet is malformed, or has QoS 2, which no subscription here has.
    """
    qos = flags >> 1 & 3
    if qos > 1:
        raise ValueError(f"a message with QoS {qos}")
    topic, at = _text(packet, 0)
    mid = 0
    if qos:
        mid, at = int.from_bytes(packet[at : at + 2], "big"), at + 2
    length, at = _varint(packet, at)
    end = at + length
    if end > len(packet):
        raise ValueError("a message that is cut short")
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
        raise ValueError("a message that is cut short")
    payload = bytes(memoryview(packet)[end:])
    return MqttMessage(mid, qos, topic, payload, properties, content_type, is_cut=at < end)


def _after(kind: int, packet: bytes | bytearray, at: int) -> int:
    if kind in _SIZES:
        return at + _SIZES[kind]
    if kind in _TEXTS:
        return at + 2 + int.from_bytes(packet[at : at + 2], "big")
    if kind == _SUBSCRIPTION:
        return _varint(packet, at)[1]
    raise ValueError(f"a message with the property {kind}")


def _text(packet: bytes | bytearray, at: int) -> tuple[str, int]:
    start = at + 2
    end = start + int.from_bytes(packet[at:start], "big")
    if end > len(packet):
        raise ValueError("a message that is cut short")
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
    raise ValueError("a message whose length cannot be read")
