"""A message of MQTT, and the record that is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.journal.records import Headers, Records
from headrace.receivers.once import is_message_id

MESSAGE_ID: Final = "headrace-message-id"
"""The user property that a publisher gives a message, so that it is stored once.

An id that is none (see `is_message_id`), or one of several, is passed over, and its message may be
there twice: to refuse it would have the broker send it for ever.
"""

_FRAME_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was published.

    Attributes:
        mid: What the broker knows it by on this connection.
        qos: 1 if it is to be acknowledged; 0 if its publisher did without.
        topic: Its topic.
        payload: What was published.
        properties: Its user properties, in their order; the same name may be there twice.
        content_type: What its publisher says that it is, or None.
    """

    mid: int
    qos: int
    topic: str
    payload: bytes
    properties: Sequence[tuple[str, str]] = ()
    content_type: str | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes, a little more rather than less."""
        named = sum(len(name) + len(value) for name, value in self.properties)
        return len(self.payload) + len(self.topic) + 4 * named + _FRAME_BYTES

    @property
    def message_id(self) -> str | None:
        """Its message id; None if it has none, or one that is passed over."""
        given = self._given_ids
        return given[0] if len(given) == 1 and is_message_id(given[0]) else None

    @property
    def has_unfit_id(self) -> bool:
        """Whether it has a message id that is passed over."""
        return bool(self._given_ids) and self.message_id is None

    @property
    def _given_ids(self) -> list[str]:
        """Those that differ: of several it is not known which tells it from other messages."""
        return list({value: None for name, value in self.properties if name == MESSAGE_ID})

    @property
    def headers(self) -> Headers:
        """The record's headers: the user properties, then ``content-type`` where it has one."""
        given: list[tuple[str, bytes | None]] = [
            (name, value.encode()) for name, value in self.properties
        ]
        if self.content_type is not None:
            given.append(("content-type", self.content_type.encode()))
        return given


def records_of(messages: Sequence[Message], now_ms: int) -> Records:
    """A record for each message."""
    return Records.of(
        [message.payload for message in messages],
        keys=[message.topic.encode() for message in messages],
        headers=[message.headers for message in messages],
        ids=[message.message_id for message in messages],
        timestamp_ms=now_ms,
    )
