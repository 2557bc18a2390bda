"""One connection to an MQTT broker: arriving messages and their acknowledgements."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from headrace.certificates import client_context
from headrace.core.system import needs_extra
from headrace.errors import ReceiverError
from headrace.journal.receivers.connections import set_unless_done
from headrace.journal.receivers.mqtt.mqtt_message import MqttMessage, Packet, message_of
from headrace.journal.receivers.settings import MqttSettings

with needs_extra("mqtt", "Receiving from MQTT"):
    from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions

Answer = TypeVar("Answer")

_ANSWER_S: Final = 10.0
"""Time limit of a broker's answer, and of writing the last acknowledgements (s)."""

_PERMANENT: Final = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C})
"""Reasons that a retry does not change: protocol version, client id, user or password,
authorization, ban, authentication method.
"""

_MAX_ARRIVED_BYTES: Final = 32 * 2**20
_TAKEN_OVER: Final = 0x8E
_RETAINED_ONCE: Final = 1
"""Retain handling 1: the broker sends retained messages for a new subscription only."""


class MqttConnection:
    """A connection with the broker's persistent session of this client id, subscribed with QoS 1.

    The broker sends at most ``receive_maximum`` unacknowledged messages of QoS 1. No broker
    throttles messages with QoS 0, so this class keeps no more of them either: it stops reading the
    socket, as it does while ``max_arrived_bytes`` have arrived and were not taken. A larger message
    is not read. It stays with the broker, because no connection would accept it. After a closed or
    lost connection, the broker repeats unacknowledged messages over the next connection. A
    connection belongs to one event loop; the network has a thread of its own.
    """

    def __init__(
        self,
        settings: MqttSettings,
        context: ssl.SSLContext | None,
        max_arrived_bytes: int = _MAX_ARRIVED_BYTES,
    ) -> None:
        self._settings = settings
        self._max_arrived_bytes = max_arrived_bytes
        self._arrived_bytes = 0
        self._has_room = threading.Condition()
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        self._connected: asyncio.Future[bool] = self._loop.create_future()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._arrived: deque[MqttMessage] = deque()
        self._some = asyncio.Event()
        self._places = threading.Semaphore(settings.receive_maximum)
        self._is_closing = False
        self._client = self._made()

    async def open(self) -> bool:
        """Connect. The broker then starts to send messages held for the session.

        Return whether the broker still had the session.

        Raises:
            ConnectionError: The broker cannot be reached, or is unavailable now.
            ReceiverError: The broker refuses this client.
        """
        settings = self._settings
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = settings.session_expiry_s
        properties.ReceiveMaximum = settings.receive_maximum
        try:
            await asyncio.to_thread(
                self._client.connect,
                settings.host,
                settings.port,
                settings.keepalive_s,
                clean_start=False,
                properties=properties,
            )
        except OSError as error:
            raise ConnectionError(error.strerror or str(error) or type(error).__name__) from error
        self._client.loop_start()
        return await self._answer(self._connected)

    async def subscribe(self) -> None:
        """Subscribe to the topics; take messages meanwhile. Raises as `open`."""
        options = SubscribeOptions(qos=1, retainHandling=_RETAINED_ONCE)
        self._client.subscribe([(topic, options) for topic in self._settings.topics])
        await self._answer(self._subscribed)

    async def next(self, most: int, most_bytes: int) -> list[MqttMessage]:
        """Wait for messages, and return at least 1, and more within these limits."""
        await self._some.wait()
        taken = [self._arrived.popleft()]
        left_bytes = most_bytes - taken[0].size_bytes
        while len(taken) < most and self._arrived and self._arrived[0].size_bytes <= left_bytes:
            taken.append(self._arrived.popleft())
            left_bytes -= taken[-1].size_bytes
        if not self._arrived:
            self._some.clear()
        with self._has_room:
            self._arrived_bytes -= sum(message.size_bytes for message in taken)
            self._has_room.notify_all()
        return taken

    def acknowledge(self, packets: Sequence[Packet]) -> None:
        """Acknowledge messages to the broker, in the order of their arrival."""
        for packet in packets:
            self._client.ack(packet.mid, packet.qos)
            self._places.release()

    async def close(self) -> None:
        """Write pending acknowledgements and disconnect; the broker keeps the session."""
        self._is_closing = True
        self._places.release()  # lets a network thread that waits for a place see the closing
        with self._has_room:
            self._has_room.notify_all()
        was_connected = self._client.is_connected()  # false after disconnect()
        self._client.disconnect()
        if was_connected:
            await asyncio.wait([self.lost], timeout=_ANSWER_S)
        if (connection := cast(socket.socket | None, self._client.socket())) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # ends the network thread
        await asyncio.to_thread(self._client.loop_stop)

    async def _answer(self, answer: asyncio.Future[Answer]) -> Answer:
        completed, _ = await asyncio.wait(
            (answer, self.lost), timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED
        )
        if answer in completed:
            return answer.result()
        if self.lost in completed:
            raise self.lost.result()
        raise ConnectionError(f"it gave no answer within {_ANSWER_S:g} s")

    def _made(self) -> Client:
        settings = self._settings
        client = _Client(
            self._on_failure,
            self._on_message,
            self._max_arrived_bytes,
            CallbackAPIVersion.VERSION2,
            settings.client_id,
            protocol=MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.password)
        if self._context is not None:
            client.tls_set_context(self._context)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        return client

    # The network thread calls the following methods.

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, ReceiverError):
            self._resolve(self.lost, error)
            return
        reason = f"what it sent cannot be read: {type(error).__name__}: {error}"
        self._resolve(self.lost, ConnectionError(reason))

    def _on_connect(
        self, _client: Client, _data: Any, flags: ConnectFlags, reason: ReasonCode, _more: Any
    ) -> None:
        settings = self._settings
        if not reason.is_failure:
            self._resolve(self._connected, flags.session_present)
        elif reason.value in _PERMANENT:
            user = f"as user {settings.username!r}" if settings.username else "without a user"
            self._fail(
                f"The broker {settings.url} refuses the client {settings.client_id!r} {user}:"
                f" {reason}; check the user, the password and what the broker allows."
            )
        else:
            self._resolve(self.lost, ConnectionError(str(reason)))

    def _on_subscribe(
        self, _client: Client, _data: Any, _mid: int, reasons: list[ReasonCode], _more: Any
    ) -> None:
        for topic, reason in zip(self._settings.topics, reasons, strict=False):
            if reason.value != 1:
                self._fail(
                    f"The broker {self._settings.url} refuses a subscription to the topic {topic!r}"
                    f" with QoS 1: {reason}; name a topic that it allows, or change what it allows."
                )
                return
        self._resolve(self._subscribed, None)

    def _on_message(self, message: MqttMessage) -> None:
        self._places.acquire()
        if self._is_closing:
            self._places.release()  # the next message, which is dropped too, does not wait
            return
        with self._has_room:
            self._has_room.wait_for(lambda: self._is_closing or self._fits(message))
            self._arrived_bytes += message.size_bytes
        self._loop.call_soon_threadsafe(self._arrive, message)

    def _fits(self, message: MqttMessage) -> bool:
        """Whether a message fits beside the messages not yet taken; a lone message always fits."""
        together_bytes = self._arrived_bytes + message.size_bytes
        return not self._arrived_bytes or together_bytes <= self._max_arrived_bytes

    def _on_disconnect(
        self, _client: Client, _data: Any, flags: DisconnectFlags, reason: ReasonCode, _more: Any
    ) -> None:
        if reason.value == _TAKEN_OVER:
            self._fail(
                f"Another client of the broker {self._settings.url} has taken over the session of"
                f" the client id {self._settings.client_id!r}; give each receiver a client id of"
                " its own."
            )
        elif flags.is_disconnect_packet_from_server:
            self._resolve(self.lost, ConnectionError(f"it closed the connection: {reason}"))
        else:
            self._resolve(self.lost, ConnectionError("the connection was lost"))

    def _fail(self, sentence: str) -> None:
        self._resolve(self.lost, ReceiverError(sentence))

    def _resolve(self, future: asyncio.Future[Any], value: Any) -> None:
        self._loop.call_soon_threadsafe(set_unless_done, future, value)

    def _arrive(self, message: MqttMessage) -> None:
        self._arrived.append(message)
        self._some.set()


class _Client(Client):
    """Reports exceptions that end the network thread, such as a topic that is not UTF-8.

    Otherwise the thread would end silently, and with it pings, acknowledgements and reconnection.
    `message_of` parses messages, and too large messages are not read: paho-mqtt has no such limit.
    """

    def __init__(
        self,
        on_failure: Callable[[Exception], None],
        on_message: Callable[[MqttMessage], None],
        max_packet_bytes: int,
        *named: Any,
        **more: Any,
    ) -> None:
        super().__init__(*named, **more)
        self._tell_failure = on_failure
        self._take_message = on_message
        self._max_packet_bytes = max_packet_bytes

    def _sock_recv(self, bufsize: int) -> bytes:
        """Read some of a packet's ``bufsize`` remaining bytes; refuse a too large packet."""
        if bufsize > self._max_packet_bytes:
            raise ReceiverError(
                f"A message of {bufsize} bytes is larger than the {self._max_packet_bytes} that it"
                " may have, an eighth of max_memory_bytes; raise it, or publish it in parts."
            )
        return super()._sock_recv(bufsize)

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        self._in_packet["packet"] = bytearray()
        self._take_message(message_of(self._in_packet["command"], packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def loop_forever(
        self, timeout: float = 1.0, retry_first_connection: bool = False
    ) -> MQTTErrorCode:
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:  # noqa: BLE001
            self._tell_failure(error)
            return MQTTErrorCode.MQTT_ERR_UNKNOWN


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Return a TLS context with the receiver's certificate and authorities; None without TLS.

    Raises:
        OptionError: A file cannot be used.
    """
    if not settings.tls:
        return None
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    context = client_context(settings.url, *files)
    context.sslsocket_class = _TlsSocket
    return context


class _TlsSocket(ssl.SSLSocket):
    """Closes itself if the broker's certificate is not trusted; paho-mqtt would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise
