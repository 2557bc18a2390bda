"""Helpers of MQTT tests: a publisher, and a wire that counts the packets that it carries."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.journal.receivers.serving import DEADLINE_S

from headrace.journal.receivers import MqttReceiver, MqttSettings
from headrace.journal.receivers.mqtt.mqtt_connection import MqttConnection, tls_context
from headrace.journal.receivers.mqtt.mqtt_message import MESSAGE_ID

TOPIC = "sensors/1"
_PUBLISH, _PUBACK = 3, 4


async def subscribe(receiver: MqttReceiver) -> None:
    """Have the broker know the receiver's session, so that it holds what is published."""
    connection = MqttConnection(receiver.settings, tls_context(receiver.settings))
    await connection.open()
    await connection.subscribe()
    await connection.close()


def mqtt(url: str, **changes: Any) -> MqttReceiver:
    given: dict[str, Any] = {"topics": ("sensors/#",), "client_id": "receiver", "reconnect_s": 0.05}
    return MqttReceiver(MqttSettings(url, **(given | changes)))


async def publish(port: int, *payloads: bytes, qos: int = 1, named: bool = False) -> None:
    """Publish, and return when the broker has taken over all of it."""
    await asyncio.to_thread(publish_now, port, payloads, qos, named=named)


def publish_now(port: int, payloads: Sequence[bytes], qos: int = 1, *, named: bool = False) -> None:
    """The same; ``named`` gives each message its payload for its message id."""
    client = Client(CallbackAPIVersion.VERSION2, f"publisher-{uuid.uuid4().hex}", protocol=MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = []
    for payload in payloads:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "text/plain"
        if named:
            properties.UserProperty = [(MESSAGE_ID, payload.decode())]
        sent.append(client.publish(TOPIC, payload, qos, properties=properties))
    for each in sent:
        each.wait_for_publish(DEADLINE_S)
    assert all(each.is_published() for each in sent)
    client.disconnect()
    client.loop_stop()


class Wire:
    """Between a receiver and its broker: notes each message and each PUBACK, and can be cut.

    Attributes:
        delivered: The packet ids of the messages with QoS 1 that the broker has sent.
        again: Those of them that it has marked as sent again.
        acknowledged: The packet ids of PUBACKs.
        too_early: Number of PUBACKs that came when fewer records than PUBACKs were durable.
    """

    def __init__(self, broker_port: int, durable: Sequence[bytes]) -> None:
        self._durable = durable
        self.too_early = 0
        self._broker_port = broker_port
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self.delivered: list[int] = []
        self.again: list[int] = []
        self.acknowledged: list[int] = []

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def say(self, packet: bytes) -> None:
        """Say this to the receiver, as if its broker did."""
        self._writers[-2].write(packet)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            writer.close()
            return
        self._writers += [writer, back]
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, length, body = await _packet(reader)
                self._note(first, body)
                writer.write(bytes([first]) + length + body)
                await writer.drain()
        writer.close()

    def _note(self, first: int, body: bytes) -> None:
        kind, qos = first >> 4, (first >> 1) & 3
        if kind == _PUBLISH and qos == 1:
            after_topic = 2 + int.from_bytes(body[:2], "big")
            packet_id = int.from_bytes(body[after_topic : after_topic + 2], "big")
            self.delivered.append(packet_id)
            if first & 8:
                self.again.append(packet_id)
        elif kind == _PUBACK:
            self.acknowledged.append(int.from_bytes(body[:2], "big"))
            self.too_early += len(self.acknowledged) > len(self._durable)


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    first = (await reader.readexactly(1))[0]
    length, size, shift = b"", 0, 0
    while True:
        digit = await reader.readexactly(1)
        length += digit
        size |= (digit[0] & 127) << shift
        shift += 7
        if not digit[0] & 128:
            return first, length, await reader.readexactly(size)


@contextlib.asynccontextmanager
async def wire(broker_port: int, durable: Sequence[bytes]) -> AsyncIterator[Wire]:
    """A wire to a broker; ``durable`` is what the journal has."""
    between = Wire(broker_port, durable)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    between.port = server.sockets[0].getsockname()[1]
    try:
        yield between
    finally:
        server.close()
        between.cut()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def wired(
    broker_port: int, durable: Sequence[bytes], **changes: Any
) -> AsyncIterator[tuple[Wire, MqttReceiver]]:
    """A wire to a broker, and a receiver that has its session there already."""
    async with wire(broker_port, durable) as between:
        receiver = mqtt(between.url, **changes)
        await subscribe(receiver)
        yield between, receiver
