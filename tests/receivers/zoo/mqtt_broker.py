"""A broker of MQTT 5 with one subscriber, to which it delivers good and hostile messages."""

import asyncio
import itertools
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.receivers.zoo.record import Entry, Record

_CONNECT, _PUBLISH, _PUBACK, _SUBSCRIBE, _PINGREQ = 1, 3, 4, 8, 12
_RESERVED = 16
"""Packet ids, and places in the window, that only good messages have."""


def packed(first: int, body: bytes) -> bytes:
    """A packet: its first byte, its length and its body."""
    length, left = b"", len(body)
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([first]) + length + bytes([left]) + body


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def published(
    payload: bytes, packet_id: int = 0, *, topic: bytes = b"sensors/1", properties: bytes = b""
) -> bytes:
    """PUBLISH with QoS 1, or 0 if there is no packet id."""
    numbered = struct.pack(">H", packet_id) if packet_id else b""
    length, left = b"", len(properties)
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    body = text(topic) + numbered + length + bytes([left]) + properties + payload
    return packed(0x32 if packet_id else 0x30, body)


def user_property(name: bytes, value: bytes) -> bytes:
    return b"\x26" + text(name) + text(value)


async def packet_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first = (await reader.readexactly(1))[0]
    size = 0
    for shift in itertools.count(0, 7):
        digit = (await reader.readexactly(1))[0]
        size |= (digit & 127) << shift
        if not digit & 128:
            break
    return first >> 4, await reader.readexactly(size)


@dataclass
class Subscriber:
    """The receiver's connection: what is unacknowledged there, of good and hostile messages."""

    writer: asyncio.StreamWriter
    hostile: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(
        default_factory=lambda: itertools.cycle(range(_RESERVED + 1, 1_001))
    )

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionError
        self.writer.write(data)
        await self.writer.drain()


class Broker:
    """Delivers good messages, one at a time, and notes when each was acknowledged."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._acknowledged = asyncio.Event()
        self.subscriber: Subscriber | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subscriber = Subscriber(writer)
        try:
            while True:
                kind, body = await packet_of(reader)
                if kind == _CONNECT:
                    writer.write(packed(0x20, b"\0\0\0"))
                elif kind == _SUBSCRIBE:
                    writer.write(packed(0x90, body[:2] + b"\0\x01"))
                    self.subscriber = subscriber
                elif kind == _PINGREQ:
                    writer.write(b"\xd0\0")
                elif kind == _PUBACK:
                    self._puback(subscriber, int.from_bytes(body[:2], "big"))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the receiver has gone, or this process ends
        finally:
            if self.subscriber is subscriber:
                self.subscriber = None
            writer.close()

    def _puback(self, subscriber: Subscriber, packet_id: int) -> None:
        if packet_id <= _RESERVED:
            self._acknowledged.set()
        subscriber.hostile.discard(packet_id)

    async def deliver_good(self) -> None:
        """Deliver a message, again over each new connection, until it is acknowledged."""
        value = self._record.next_value()
        mark = user_property(b"headrace-message-id", value.encode())
        began, sent_to = time.monotonic(), None
        self._acknowledged.clear()
        while not self._acknowledged.is_set():
            if self.subscriber and self.subscriber is not sent_to:
                sent_to = self.subscriber
                sent_to.writer.write(published(value.encode(), 1, properties=mark))
            try:
                await asyncio.wait_for(self._acknowledged.wait(), 0.02)
            except TimeoutError:
                continue
        self._record.note(Entry(began, time.monotonic() - began, value, []))


@dataclass(frozen=True)
class MqttKind:
    """Hostile messages.

    Attributes:
        name: Its name in tables.
        packets: Function that returns the bytes to send; its argument is a packet id, 0 for QoS 0.
        confirmed: Whether each waits for its place in the window.
        pause_s: Time that a copy waits after each.
    """

    name: str
    packets: Callable[[int], bytes]
    confirmed: bool = True
    pause_s: float = 0


async def run(broker: Broker, kind: MqttKind, copies: int, duration_s: float) -> int:
    """Send its packets, as so many publishers would by way of this broker."""
    until, sent = time.monotonic() + duration_s, 0

    async def again_and_again() -> None:
        nonlocal sent
        while time.monotonic() < until:
            subscriber = broker.subscriber
            window = 1_000 - _RESERVED
            if not subscriber or (kind.confirmed and len(subscriber.hostile) >= window):
                await asyncio.sleep(0.002)
                continue
            number = next(subscriber.numbers) if kind.confirmed else 0
            if number in subscriber.hostile:
                await asyncio.sleep(0)
                continue
            packet = kind.packets(number)
            sent += 1
            if number:
                subscriber.hostile.add(number)
            try:
                await subscriber.write(packet)
            except OSError:
                await asyncio.sleep(0.002)
            await asyncio.sleep(kind.pause_s)

    running = [asyncio.create_task(again_and_again()) for _ in range(copies)]
    _, late = await asyncio.wait(running, timeout=duration_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return sent


def _with_id(number: int) -> bytes:
    mark = user_property(b"headrace-message-id", secrets.token_hex(100).encode())
    return published(b"1", number, properties=mark)


_MANY = user_property(b"a", b"b") * 5_000
_LONG = b"x" * 1_000_000
MQTT = (
    MqttKind("messages of one byte", lambda number: published(b"1", number)),
    MqttKind("messages of one byte with QoS 0", lambda _: published(b"1"), False, 0.002),
    MqttKind("messages of 1 MB", lambda number: published(_LONG, number)),
    MqttKind("messages of 1 MB with QoS 0", lambda _: published(_LONG), confirmed=False),
    MqttKind("messages of 30 MB", lambda number: published(_LONG * 30, number)),
    MqttKind("empty messages", lambda number: published(b"", number)),
    MqttKind("ids of 200 characters", _with_id),
    MqttKind("5 000 user properties", lambda n: published(b"1", n, properties=_MANY), True, 0.01),
    MqttKind("topic of 60 000 bytes", lambda n: published(b"1", n, topic=b"t/" * 30_000)),
    MqttKind("topic that is no UTF-8", lambda n: published(b"1", n, topic=b"\xff"), pause_s=0.02),
    MqttKind("reserved packets", lambda _: b"\x06\0", confirmed=False, pause_s=0.02),
    MqttKind("length of five bytes", lambda _: b"\x30\xff\xff\xff\xff\x7f", False, 0.02),
    MqttKind("more than the window", lambda _: published(b"1", 17), False, 0.002),
)
