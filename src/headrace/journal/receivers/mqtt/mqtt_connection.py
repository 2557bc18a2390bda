"""Connection to an MQTT 5 broker: receives messages, and sends their acknowledgements."""

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
"""Time limit for the broker's answer to a request, and for the last acknowledgements (s)."""

_PERMANENT: Final = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C})
"""Reason codes with which the broker refuses a client for good, so that no retry can succeed: wrong
protocol version, client id, user or password, authorization or authentication method, or a banned
client.
"""

_MAX_ARRIVED_BYTES: Final = 32 * 2**20
_TAKEN_OVER: Final = 0x8E
_RETAINED_ONCE: Final = 1
"""MQTT's retain handling 1: the broker sends retained messages only for a new subscription."""


class MqttConnection:
    """Connection to an MQTT broker, in the persistent session of a client id, with QoS 1.

    The broker sends at most ``receive_maximum`` unacknowledged messages with QoS 1. Brokers do not
    limit messages with QoS 0, so this class applies the same limit to them. It stops reading the
    socket while ``receive_maximum`` messages are unacknowledged, or messages of
    ``max_arrived_bytes`` wait for `next`. A message larger than ``max_arrived_bytes`` is not read
    and stays in the broker; the connection ends. After the end of a connection, the broker repeats
    unacknowledged messages over the next connection. Use a connection in one event loop only; a
    separate thread does its network traffic.
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
        """Connect to the broker, which then starts to send the stored messages of the session.

        Return whether the broker still had the session.

        Raises:
            ConnectionError: The broker cannot be reached, or refuses the connection for now.
            ReceiverError: The broker refuses this client for good.
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
        """Subscribe to the topics of the settings, and wait for the broker's answer.

        Call `next` meanwhile, because messages may arrive before the answer.

        Raises:
            ConnectionError: The connection was lost, or the broker did not answer in time.
            ReceiverError: The broker refuses a topic.
        """
        options = SubscribeOptions(qos=1, retainHandling=_RETAINED_ONCE)
        self._client.subscribe([(topic, options) for topic in self._settings.topics])
        await self._answer(self._subscribed)

    async def next(self, most: int, most_bytes: int) -> list[MqttMessage]:
        """Wait for a message, and return 1 or more messages in the order of their arrival.

        Return at most ``most`` messages and ``most_bytes``, but at least 1 message of any size.
        """
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
        """Acknowledge messages to the broker; call this in the order of their arrival."""
        for packet in packets:
            self._client.ack(packet.mid, packet.qos)
            self._places.release()

    async def close(self) -> None:
        """Send pending acknowledgements, and disconnect; the broker keeps the session."""
        self._is_closing = True
        self._places.release()  # wakes a network thread that waits for a place
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
        raise ConnectionError(f"the broker did not answer within {_ANSWER_S:g} s")

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
        reason = f"a packet of the broker cannot be parsed: {type(error).__name__}: {error}"
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
                f" {reason}; check the user, the password and the broker's access rules."
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
                    f" with QoS 1: {reason}; set another topic, or change the broker's access"
                    " rules."
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
        """Whether a message still fits into ``max_arrived_bytes``, with the messages that wait.

        If no message waits, a message of any size fits.
        """
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
            self._resolve(self.lost, ConnectionError(f"the broker disconnected: {reason}"))
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
    """Client of paho-mqtt that reports errors of its network thread, and limits message sizes.

    In paho-mqtt an exception, such as for a topic that is not UTF-8, silently ends the network
    thread, so pings and acknowledgements stop. This class passes the exception to ``on_failure``.
    It parses messages with `message_of`, and does not read a message larger than
    ``max_packet_bytes``, because paho-mqtt has no limit for the size of messages.
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
        """Read up to ``bufsize`` bytes: paho-mqtt passes the number of bytes missing from a packet.

        Raises ReceiverError for a packet that is too large.
        """
        if bufsize > self._max_packet_bytes:
            raise ReceiverError(
                f"A message has {bufsize} bytes, but a message may have {self._max_packet_bytes}"
                " bytes, an eighth of max_memory_bytes; raise max_memory_bytes, or publish smaller"
                " messages."
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
    """Return a TLS context with the receiver's certificate and its trusted CA certificates.

    Return None if the broker's URL is without TLS.

    Raises:
        OptionError: A file with certificates or a key cannot be used.
    """
    if not settings.tls:
        return None
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    context = client_context(settings.url, *files)
    context.sslsocket_class = _TlsSocket
    return context


class _TlsSocket(ssl.SSLSocket):
    """TLS socket that closes itself if its handshake fails; paho-mqtt would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise
