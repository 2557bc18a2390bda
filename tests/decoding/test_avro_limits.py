"""Avro values that are no record of their schema, or claim more than they have, are rejected."""

import json as json_text
import time
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from tests.decoding.test_avro_format import decoded, record, written
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.formats import Decoded

MOST_S = 1.0
MOST_BYTES = 100_000_000

ID = record(("id", "long"))
LIST = record(("id", "long"), ("next", ["null", "shop.Order"]))
TREE = record(
    ("id", "long"), ("more", {"type": "array", "items": {"type": "map", "values": "shop.Order"}})
)


def decoded_as(
    registry: RegistryServer, writer: Any, *values: bytes, reader: Any = None
) -> Decoded:
    """Decode values of a writer's schema into the reader's, and check what is spent on it."""
    number = registry.register("orders-value", writer)
    form = headrace.avro(json_text.dumps(reader or writer), registry=registry.client())
    decoder = form.decoder(form.columns())
    framed_values = pa.array([framed(number, value) for value in values], pa.binary())
    decoder.decode(framed_values[:0])
    tracemalloc.start()
    began_s = time.process_time()
    result = decoder.decode(framed_values)
    spent_s = time.process_time() - began_s
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent_s < MOST_S
    assert peak_bytes < MOST_BYTES
    return result


def nested(levels: int) -> bytes:
    return b"\x02" + b"\x02\x02" * levels + b"\x00"


@pytest.mark.parametrize("levels", [101, 20_000, 1_000_000])
def test_a_value_that_is_nested_too_deeply_is_rejected(
    registry: RegistryServer, levels: int
) -> None:
    result = decoded_as(registry, LIST, nested(3), nested(levels), nested(100), reader=ID)
    assert result.reasons == {1: "it is nested more than 100 levels deep"}
    assert result.values.to_pylist() == [{"id": 1}, None, {"id": 1}]


def test_depth_counts_through_arrays_and_maps(registry: RegistryServer) -> None:
    deep = b"\x02" + b"\x02\x02\x02a\x02" * 20_000
    flat = b"\x02" + b"\x02\x02\x02a\x02\x00" * 1 + b"\x00\x00"
    wide = b"\x02" + b"\x80\x08" + b"\x02\x02a\x02\x00\x00" * 512 + b"\x00"
    result = decoded_as(registry, TREE, deep, flat, wide, reader=ID)
    assert result.reasons == {0: "it is nested more than 100 levels deep"}


def test_a_record_that_always_holds_itself_has_no_values(registry: RegistryServer) -> None:
    endless = record(("id", "long"), ("next", "shop.Order"))
    result = decoded_as(registry, endless, b"\x02" * 20_000, reader=ID)
    assert list(result.reasons) == [0]


ZERO_SIZE = (
    "null",
    {"type": "fixed", "name": "Nothing", "size": 0},
    record(title="Empty"),
    record(("a", "null"), ("b", record(title="Empty")), title="Pair"),
)
BILLION = b"\x80\xa8\xd6\xb9\x07"
"""10^9, as a long."""


@pytest.mark.parametrize("items", ZERO_SIZE)
@pytest.mark.parametrize("is_skipped", [True, False])
def test_a_few_bytes_do_not_claim_a_billion_items(
    registry: RegistryServer, items: Any, is_skipped: bool
) -> None:
    reader = record(("id", "long"), ("x", {"type": "array", "items": items}))
    if is_skipped or "null" in json_text.dumps(items):  # which Spark does not have
        reader = ID
    writer = record(("id", "long"), ("x", {"type": "array", "items": items}))
    blocks = b"\x8e\x4e" * 3  # of 4 999
    result = decoded_as(
        registry,
        writer,
        b"\x02" + BILLION + b"\x00",
        b"\x02\x04\x00",
        b"\x02" + blocks + b"\x00",
        b"\x02\xff\xa7\xd6\xb9\x07\x00\x00",  # -10^9, then the size of the block in bytes
        b"\x02" + b"\xff" * 9 + b"\x01\x00\x00",  # -2^63
        reader=reader,
    )
    reason = "it has more than 10,000 items of zero bytes"
    assert result.reasons == dict.fromkeys((0, 2, 3, 4), reason)
    assert result.values[1].as_py()["id"] == 1


def test_a_schema_without_size_may_be_named_again(registry: RegistryServer) -> None:
    empty = record(title="Empty")
    writer = record(("id", "long"), ("a", empty), ("x", {"type": "array", "items": "shop.Empty"}))
    result = decoded_as(registry, writer, b"\x02\x02\x00", b"\x02" + BILLION + b"\x00", reader=ID)
    assert list(result.reasons) == [1]


def test_items_that_have_a_size_are_not_counted(registry: RegistryServer) -> None:
    writer = record(("id", "long"), ("x", {"type": "array", "items": "boolean"}))
    value = b"\x02" + b"\xc0\x9a\x0c" + b"\x01" * 100_000 + b"\x00"
    result = decoded_as(registry, writer, value)
    assert result.reasons == {}
    assert result.values[0].as_py()["x"] == [True] * 100_000


CUT = "it is not a record of the Avro schema (EOFError)"
ENUM = "an enum of its Avro record has an invalid symbol index"
BLOCK = "a block of its Avro record does not have the size in its header"
UNION = "a union of its Avro record has an invalid branch index"


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ({"type": "enum", "name": "K", "symbols": ["A", "B"]}, b"\x01", ENUM),  # -1
        ({"type": "enum", "name": "K", "symbols": ["A", "B"]}, b"\x04", ENUM),
        ({"type": "enum", "name": "K", "symbols": ["A"]}, b"\xff\xff\xff\xff\x0f", ENUM),
        (["null", "int"], b"\x01\x02", UNION),  # -1
        (["int", "null"], b"\x01", UNION),
        (["null", "int"], b"\x04\x02", UNION),
        ({"type": "array", "items": ["null", "int"]}, b"\x02\x01\x02\x00", UNION),
        ({"type": "map", "values": ["null", "int"]}, b"\x02\x02a\x03\x02\x00", UNION),
        ("int", b"\x80\x80\x80\x80\x10", "an int of its Avro record has more than 32 bits"),
        ("boolean", b"\x02", "a boolean of its Avro record is neither 0 nor 1"),
        ("string", b"\x01", "a length in its Avro record is negative"),
        ("bytes", b"\xff" * 9 + b"\x01", "a length in its Avro record is negative"),
        ("string", b"\xfe" + b"\xff" * 8 + b"\x01", CUT),
        ({"type": "array", "items": "int"}, BILLION, CUT),
        ({"type": "array", "items": "double"}, BILLION, CUT),
        ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00\x00", CUT),  # -2^63
        ({"type": "map", "values": "int"}, BILLION, CUT),
        ({"type": "array", "items": "int"}, b"\x01\x00\x02\x00", BLOCK),  # of 0 bytes
        ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00", BLOCK),
        ({"type": "map", "values": "double"}, b"\x01\x02\x02a" + b"\x00" * 9, BLOCK),
        ({"type": "map", "values": "int"}, b"\x02\x01", "a length in its Avro record is negative"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x00", CUT),
    ],
)
@pytest.mark.parametrize("is_skipped", [True, False])
def test_no_part_of_a_value_is_read_as_another_than_it_says(
    registry: RegistryServer, kind: Any, value: bytes, reason: str, is_skipped: bool
) -> None:
    writer = record(("id", "long"), ("x", kind))
    reader = ID if is_skipped else writer
    (good,) = written(ID, {"id": 7})
    result = decoded_as(registry, writer, b"\x02" + value, reader=reader)
    assert result.reasons == {0: reason}
    alone = decoded(headrace.avro(json_text.dumps(writer)), b"\x02" + value)
    assert list(alone.reasons) == [0]
    assert decoded(headrace.avro(json_text.dumps(ID)), good).reasons == {}


@pytest.mark.parametrize("reader", [ID, None])
def test_blocks_that_say_their_size_are_read_and_skipped(
    registry: RegistryServer, reader: Any
) -> None:
    writer = record(
        ("x", {"type": "array", "items": "int"}),
        ("y", {"type": "map", "values": "double"}),
        ("id", "long"),
    )
    double = b"\x02a" + b"\x00" * 8
    value = b"\x03\x04\x02\x02\x02\x04\x00" + b"\x01\x14" + double + b"\x00" + b"\x0e"
    result = decoded_as(registry, writer, value, reader=reader)
    assert result.reasons == {}
    row = result.values[0].as_py()
    assert row["id"] == 7
    assert row.get("x", [1, 1, 2]) == [1, 1, 2]


def test_an_int_of_more_than_32_bits_is_no_long_either(registry: RegistryServer) -> None:
    reader = record(("id", "long"), ("x", "long"))
    writer = record(("id", "long"), ("x", "int"))
    result = decoded_as(
        registry, writer, b"\x02\x80\x80\x80\x80\x10", b"\x02\xff\xff\xff\xff\x0f", reader=reader
    )
    assert result.reasons == {0: "an int of its Avro record has more than 32 bits"}
    assert result.values[1].as_py()["x"] == -(2**31)


DAYS = [2**31 - 1, -(2**31), 2_932_897, -719_163]


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_day_outside_of_the_years_1_to_9999_is_rejected(is_flat: bool) -> None:
    other = "int" if is_flat else {"type": "array", "items": "int"}
    dated = {"type": "int", "logicalType": "date"}
    schema = record(("day", dated), ("x", other))
    plain = record(("day", "int"), ("x", other))
    rows: list[dict[str, Any]] = [
        {"day": day, "x": 1 if is_flat else []} for day in (2_932_896, *DAYS, -719_162)
    ]
    result = decoded(headrace.avro(json_text.dumps(schema)), *written(plain, *rows))
    assert result.reasons == dict.fromkeys(range(1, 5), "its field day does not fit date")
    days = [row and str(row["day"]) for row in result.values.to_pylist()]
    assert [days[0], days[-1]] == ["9999-12-31", "0001-01-01"]


def test_a_day_within_a_list_is_looked_at_too() -> None:
    dated = {"type": "array", "items": {"type": "int", "logicalType": "date"}}
    plain = record(("days", {"type": "array", "items": "int"}))
    values = written(plain, {"days": [1, 2**31 - 1]}, {"days": [1]})
    result = decoded(headrace.avro(json_text.dumps(record(("days", dated)))), *values)
    assert list(result.reasons) == [0]


def test_a_decimal_of_many_digits_is_rejected_at_once(registry: RegistryServer) -> None:
    exact = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(("price", exact))
    long = written(record(("price", "bytes")), {"price": b"\x7f" * 1_000_000})[0]
    padded = written(record(("price", "bytes")), {"price": b"\0" * 20 + b"\x04\xe2"})[0]
    result = decoded_as(registry, schema, long, padded)
    assert result.reasons == {0: "a decimal of its Avro record has more than 38 digits"}
    assert str(result.values[1].as_py()["price"]) == "12.50"
