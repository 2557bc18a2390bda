"""Receiver of records from an MQTT 5 broker, for devices and sensors that publish."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.timing import wall_clock_ms
from headrace.errors import JournalError, OptionError
from headrace.journal.receivers.deduplicator import Receipt
from headrace.journal.receivers.event_log import event
from headrace.journal.receivers.id_window import MAX_ID_CHARACTERS
from headrace.journal.receivers.intake import Intake
from headrace.journal.receivers.mqtt.mqtt_message import MOST_PROPERTIES, MqttMessage, Packet
from headrace.journal.receivers.settings import MqttSettings
from headrace.journal.records import Records

if TYPE_CHECKING:  # paho-mqtt is optional, so it is imported when a receiver is constructed
    from headrace.journal.receivers.mqtt.mqtt_connection import MqttConnection

_LOG: Final = logging.getLogger("headrace.receivers")

_MAX_DELAY_S: Final = 30.0
_SUBMIT_BYTES: Final = 1024 * 1024
"""Maximum total size of the messages that are submitted to the intake together (bytes)."""


class MqttReceiver:
    """Receiver that reads messages from an MQTT 5 broker, and acknowledges durable messages.

    Each message becomes a record. Its payload is the value, and its topic is the key. The headers
    are its user properties and, as ``content-type``, its content type. The receiver subscribes with
    QoS 1. While it is disconnected, the broker keeps the session and newly published messages.

    The receiver sends PUBACK when the record is durable, in the order of the messages. Until then
    the message counts towards the receive maximum, so a slow job slows the broker down. After a
    lost connection, a crash, or a block that was not stored, the broker repeats unacknowledged
    messages over the next connection. A repeated message may be stored twice, unless its publisher
    sets the user property ``headrace-message-id``, 1 to 200 characters. Messages published with QoS
    0 are never acknowledged, and may be lost on any failure.

    Raises:
        SetupError: The package paho-mqtt is not installed.
    """

    def __init__(self, settings: MqttSettings) -> None:
        self.settings: Final = settings
        self._delay_s = settings.reconnect_s
        self._had_session = False
        from headrace.journal.receivers.mqtt import mqtt_connection  # noqa: PLC0415  # it needs an extra

        self._make_connection = mqtt_connection.MqttConnection
        self._make_context = mqtt_connection.tls_context

    def address(self, own_host: str | None = None) -> str:  # own_host is for listening receivers
        """Return the broker's URL; ``own_host`` is ignored."""
        return self.settings.url

    async def receive(self, intake: Intake) -> None:
        """Receive messages until cancelled, and reconnect whenever the connection is lost.

        On cancellation, wait until the submitted messages are durable, and acknowledge them.

        Raises:
            OptionError: A file with certificates or a key cannot be used.
            ReceiverError: The broker refuses this client or a topic, another client has taken over
                the session, or a message is larger than an eighth of ``max_memory_bytes``.
        """
        self._make_context(self.settings)  # raises for unusable files at the start
        while True:
            try:
                await self._connect(intake)
            except (ConnectionError, OptionError) as lost:
                self._log_lost(intake, str(lost))
            except JournalError:
                self._log_lost(
                    intake, "a block was not stored, so the broker must send its messages again"
                )
            await asyncio.sleep(self._delay_s)
            self._delay_s = min(2 * self._delay_s, _MAX_DELAY_S)

    async def _connect(self, intake: Intake) -> None:
        most_bytes = intake.settings.bodies_bytes // 2
        # Certificates are read for each connection, so that renewed ones are used.
        context = self._make_context(self.settings)
        connection = self._make_connection(self.settings, context, most_bytes)
        try:
            has_session = await connection.open()
            await self._pass_on(connection, intake, has_session=has_session)
        finally:
            await connection.close()

    async def _pass_on(
        self, connection: "MqttConnection", intake: Intake, *, has_session: bool
    ) -> None:
        submitted: asyncio.Queue[_Submitted] = asyncio.Queue()
        taking = asyncio.create_task(_take(connection, intake, submitted))
        acknowledging = asyncio.create_task(self._acknowledge(connection, submitted))
        following = asyncio.create_task(self._follow(connection, intake, has_session=has_session))
        tasks = (taking, acknowledging, following)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not any(task.done() for task in tasks):  # this task was cancelled
                taking.cancel()
                await asyncio.wait([taking])
                joined = asyncio.create_task(submitted.join())
                await asyncio.wait((joined, acknowledging), return_when=asyncio.FIRST_COMPLETED)
                joined.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _follow(
        self, connection: "MqttConnection", intake: Intake, *, has_session: bool
    ) -> None:
        await connection.subscribe()
        intake.health.no_broker = None
        self._log_connected(has_session=has_session)
        raise await asyncio.shield(connection.lost)

    async def _acknowledge(
        self, connection: "MqttConnection", submitted: "asyncio.Queue[_Submitted]"
    ) -> None:
        while True:
            packets, receipt = await submitted.get()
            await asyncio.wait([receipt])
            if not receipt.cancelled():  # a withdrawn message is repeated by the broker
                receipt.result()
                connection.acknowledge(packets)
            submitted.task_done()
            self._delay_s = self.settings.reconnect_s

    def _log_connected(self, *, has_session: bool) -> None:
        url = self.settings.url
        topics = ", ".join(self.settings.topics)
        if self._had_session and not has_session:
            _LOG.warning(
                "The broker %s has lost this receiver's session, with all messages that it stored"
                " for the receiver.",
                url,
                extra=event("session-lost", broker=url),
            )
        _LOG.info(
            "Connected to the broker %s; subscribed to %s.",
            url,
            topics,
            extra=event("connected", broker=url, topics=list(self.settings.topics)),
        )
        self._had_session = True

    def _log_lost(self, intake: Intake, reason: str) -> None:
        if intake.health.no_broker is None:
            _LOG.warning(
                "The broker %s is unreachable: %s; the receiver tries to reconnect.",
                self.settings.url,
                reason,
                extra=event("disconnected", broker=self.settings.url, reason=reason),
            )
        intake.health.no_broker = f"The broker {self.settings.url} is unreachable: {reason}."


_Submitted = tuple[Sequence[Packet], asyncio.Task[Receipt]]
"""Packet ids of submitted messages, and the task whose result is their receipt. When the task is
done, the messages are acknowledged. Only the intake keeps the payloads."""


async def _take(
    connection: "MqttConnection", intake: Intake, submitted: "asyncio.Queue[_Submitted]"
) -> None:
    most_bytes = min(_SUBMIT_BYTES, intake.settings.buffer_bytes // 4)
    is_logged = is_cut_logged = False
    while True:
        # At most records_at_once, so that the messages enter the buffer in one step.
        messages = await connection.next(intake.records_at_once, most_bytes)
        if not is_logged and any(message.has_unfit_id for message in messages):
            is_logged = True
            _LOG.warning(
                "A message has several headrace-message-ids, or an empty one, or one of more than"
                " %d characters; such messages are stored without an id, so a message sent twice is"
                " stored twice.",
                MAX_ID_CHARACTERS,
            )
        if not is_cut_logged and any(message.is_cut for message in messages):
            is_cut_logged = True
            _LOG.warning(
                "A message has more than %d user properties; further properties of a message are"
                " not stored.",
                MOST_PROPERTIES,
            )
        receipt = intake.submit_nowait(records_of(messages, wall_clock_ms()))
        submitted.put_nowait(([message.packet for message in messages], receipt))
        del messages
        await intake.buffered(receipt)


def records_of(messages: Sequence[MqttMessage], now_ms: int) -> Records:
    """Convert messages to records with the time ``now_ms``, one record for each message."""
    return Records.of(
        [message.payload for message in messages],
        keys=[message.topic.encode() for message in messages],
        headers=[message.headers for message in messages],
        ids=[message.message_id for message in messages],
        timestamp_ms=now_ms,
    )
