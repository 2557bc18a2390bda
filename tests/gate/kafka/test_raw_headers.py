"""Records with a header whose name is not UTF-8, which any producer in C or Java may send."""

import ctypes
from typing import Any

import pytest
from confluent_kafka import cimpl
from tests.gate.kafka.reads import reader_config
from tests.services.kafka import TopicFactory

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka import raw_headers
from headrace.gate.kafka.range_reader import read_ranges
from headrace.gate.kafka.raw_headers import _read

pytestmark = pytest.mark.integration

BAD = b"\xff\xfe"
_TOPIC, _VALUE, _HEADER = 1, 4, 9


class _Given(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("fields", ctypes.c_void_p * 3),
        ("pad", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("kind", ctypes.c_int), ("given", _Given))


def send(servers: str, topic: str, headers: list[tuple[bytes, bytes | None]]) -> None:
    """Produce a record as C does, with header names of any bytes."""
    library: Any = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_produceva.restype = ctypes.c_void_p
    text = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers.encode(), text, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, text, ctypes.c_size_t(512)))
    names = [ctypes.create_string_buffer(name) for name, _ in headers]
    values = [None if each is None else ctypes.create_string_buffer(each) for _, each in headers]
    given = (_Argument * (2 + len(headers)))()
    given[0].kind, given[0].given.text = _TOPIC, topic.encode()
    given[1].kind = _VALUE
    given[1].given.fields[0] = ctypes.cast(ctypes.c_char_p(b"x"), ctypes.c_void_p).value
    given[1].given.fields[1] = 1
    for number, (_, value) in enumerate(headers):
        each = given[2 + number]
        each.kind = _HEADER
        each.given.fields[0] = ctypes.addressof(names[number])
        buffer = values[number]
        each.given.fields[1] = None if buffer is None else ctypes.addressof(buffer)
        each.given.fields[2] = 0 if value is None else len(value)
    assert not library.rd_kafka_produceva(producer, given, ctypes.c_size_t(len(given)))
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


@pytest.mark.usefixtures("engine")
def test_a_name_that_is_not_utf_8_costs_no_record_and_no_other_header(topic: TopicFactory) -> None:
    """Seen: one of twelve records stopped the batch with a SystemError; in a loop that is hot, it
    ended the process."""
    made = topic()
    good = 200
    for _ in range(good):
        made.produce(b"0", headers=[("a", b"1")])
    sent = [(b"a", b"1"), (BAD, b"2"), (b"none", None), (b"c", b"")]
    send(made.bootstrap_servers, made.name, sent)
    made.produce(b"2")
    config = reader_config(made.bootstrap_servers, columns=["value", "headers"])
    *first, bad, last = [
        row
        for batch in read_ranges(config, [OffsetRange(made.name, 0, 0, good + 2)])
        for row in batch.to_pylist()
    ]
    assert [row["headers"] for row in first] == [[{"key": "a", "value": b"1"}]] * good
    assert bad["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "\ufffd\ufffd", "value": b"2"},  # as Java's client has it
        {"key": "none", "value": None},
        {"key": "c", "value": b""},
    ]
    assert last == {"value": b"2", "headers": None}


def test_a_record_that_cannot_be_read_once_more_says_why(
    topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topic()
    monkeypatch.setattr(raw_headers, "_WAIT_S", 0.2)
    client = reader_config(made.bootstrap_servers, columns=["headers"]).client
    with pytest.raises(BrokerError, match="has a header whose name is not UTF-8"):
        _read(client, TopicPartition(made.name, 0), 5)
