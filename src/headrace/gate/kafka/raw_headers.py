"""Read headers whose name is not UTF-8, which confluent-kafka cannot return.

confluent-kafka decodes each name, and fails for invalid UTF-8. Java's client, and so the native
source, replaces undecodable bytes by U+FFFD. To do the same, this module reads the record again
through the librdkafka inside confluent-kafka, which returns names as bytes. Such records are rare.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import methodcaller
from typing import Any, Final, cast

from confluent_kafka import Message, cimpl

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka.consumers import ClientConfig

Headers = list[tuple[str, bytes | None]]

_WAIT_S: Final = 30.0
"""Timeout for reading a record again, to get its raw headers (s)."""

_POLL_MS: Final = 100
_CONSUMER: Final = 1  # of rd_kafka_type_t
_OK: Final = 0
_TEXT_BYTES: Final = 512


class _Message(ctypes.Structure):
    _fields_ = (("err", ctypes.c_int), ("rkt", ctypes.c_void_p))


_ASK: Final = methodcaller("headers")
"""Function that calls a message's ``headers`` indirectly. For an invalid name, ``headers`` returns
an incomplete list and also sets an exception. In an indirect call, CPython detects the exception.
In a direct call, once CPython has specialized it, the incomplete list would crash the process."""


def headers_of(message: Message, client: ClientConfig) -> Headers:
    """Return a message's headers, with U+FFFD for undecodable bytes in names.

    Headers that needed a second read are stored in the message. BrokerError is raised if the second
    read fails.
    """
    try:
        return cast(Headers, _ASK(message) or [])
    except (SystemError, UnicodeDecodeError):
        # The client's incomplete list has holes, so the list must not be used again.
        place = TopicPartition(str(message.topic()), int(message.partition() or 0))
        read = _read(client, place, int(message.offset() or 0))
        named = [(name.decode("utf-8", "replace"), value) for name, value in read]
        message.set_headers(cast(Any, named))
        return named


def _read(client: ClientConfig, place: TopicPartition, offset: int) -> list[tuple[bytes, Any]]:
    library = _library()
    with _consumer(library, client) as consumer, _assigned(library, consumer, place, offset):
        until_s = time.monotonic() + _WAIT_S
        while time.monotonic() < until_s:
            message = library.rd_kafka_consumer_poll(consumer, _POLL_MS)
            if not message:
                continue
            try:
                if message.contents.err == _OK:
                    return list(_headers(library, message))
            finally:
                library.rd_kafka_message_destroy(message)
    raise BrokerError(
        f"The record {place} at {offset} has a header whose name is not UTF-8, and a second read of"
        f" the record failed within {_WAIT_S:g} s; check that the brokers can be reached."
    )


def _headers(library: Any, message: Any) -> Iterator[tuple[bytes, bytes | None]]:
    headers = ctypes.c_void_p()
    if library.rd_kafka_message_headers(message, ctypes.byref(headers)) != _OK:
        return
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    number = 0
    while (
        library.rd_kafka_header_get_all(
            headers, number, ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
        )
        == _OK
    ):
        # An empty value has an address; a null value has none.
        data = None if value.value is None else ctypes.string_at(value.value, size.value)
        yield name.value or b"", data
        number += 1


@contextmanager
def _consumer(library: Any, client: ClientConfig) -> Iterator[int]:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    settings = library.rd_kafka_conf_new()
    own = {"group.id": "headrace", "enable.auto.commit": False, "auto.offset.reset": "error"}
    for name, value in {**client, **own}.items():
        text_value = str(value).lower() if isinstance(value, bool) else str(value)
        library.rd_kafka_conf_set(settings, name.encode(), text_value.encode(), text, _TEXT_BYTES)
    consumer = library.rd_kafka_new(_CONSUMER, settings, text, _TEXT_BYTES)
    if not consumer:
        reason = text.value.decode("utf-8", "replace")
        raise BrokerError(
            f"Kafka's client could not be created to read the headers of a record: {reason}."
        )
    library.rd_kafka_poll_set_consumer(consumer)
    try:
        yield consumer
    finally:
        library.rd_kafka_consumer_close(consumer)
        library.rd_kafka_destroy(consumer)


@contextmanager
def _assigned(library: Any, consumer: int, place: TopicPartition, offset: int) -> Iterator[None]:
    places = library.rd_kafka_topic_partition_list_new(1)
    try:
        topic = place.topic.encode()
        library.rd_kafka_topic_partition_list_add(places, topic, place.partition)
        library.rd_kafka_topic_partition_list_set_offset(places, topic, place.partition, offset)
        library.rd_kafka_assign(consumer, places)
        yield
    finally:
        library.rd_kafka_topic_partition_list_destroy(places)


@cache
def _library() -> Any:
    """Load librdkafka's functions from the library that is part of confluent-kafka."""
    library = ctypes.CDLL(cimpl.__file__)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    size, message = ctypes.c_size_t, ctypes.POINTER(_Message)
    kinds: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "rd_kafka_conf_new": (pointer, ()),
        "rd_kafka_conf_set": (number, (pointer, text, text, text, size)),
        "rd_kafka_new": (pointer, (number, pointer, text, size)),
        "rd_kafka_poll_set_consumer": (number, (pointer,)),
        "rd_kafka_topic_partition_list_new": (pointer, (number,)),
        "rd_kafka_topic_partition_list_add": (pointer, (pointer, text, ctypes.c_int32)),
        "rd_kafka_topic_partition_list_set_offset": (
            number,
            (pointer, text, ctypes.c_int32, ctypes.c_int64),
        ),
        "rd_kafka_topic_partition_list_destroy": (None, (pointer,)),
        "rd_kafka_assign": (number, (pointer, pointer)),
        "rd_kafka_consumer_poll": (message, (pointer, number)),
        "rd_kafka_message_headers": (number, (message, ctypes.POINTER(pointer))),
        "rd_kafka_header_get_all": (
            number,
            (pointer, size, ctypes.POINTER(text), ctypes.POINTER(pointer), ctypes.POINTER(size)),
        ),
        "rd_kafka_message_destroy": (None, (message,)),
        "rd_kafka_consumer_close": (number, (pointer,)),
        "rd_kafka_destroy": (None, (pointer,)),
    }
    for name, (result, arguments) in kinds.items():
        function: Callable[..., Any] = getattr(library, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
    return library
