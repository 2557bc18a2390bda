"""Avro values become typed columns, by the schema that each was written with."""

import json as json_text
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.avro_format import AvroFormat
from headrace.decoding.formats import Decoded
from headrace.decoding.registry import NO_ID
from headrace.errors import OptionError

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "zip", "type": "int"}],
}


def record(*fields: tuple[str, Any], title: str = "Order", **defaults: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": title,
        "namespace": "shop",
        "fields": [
            {"name": field, "type": kind}
            | ({"default": defaults[field]} if field in defaults else {})
            for field, kind in fields
        ],
    }


ORDER = record(("id", "long"), ("name", ["null", "string"]))


def written(schema: Any, *rows: dict[str, Any], named: dict[str, Any] | None = None) -> list[bytes]:
    parsed = fastavro.parse_schema(schema, named_schemas=named if named is not None else {})
    found = []
    for row in rows:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        found.append(stream.getvalue())
    return found


def decoded(form: AvroFormat, *values: bytes | None) -> Decoded:
    return form.decoder(form.columns()).decode(pa.array(values, pa.binary()))


def test_values_have_the_types_of_the_schema() -> None:
    schema = record(
        ("id", "long"),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("exact", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("key", {"type": "string", "logicalType": "uuid"}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        ("tags", {"type": "array", "items": ["null", "string"]}),
        ("counts", {"type": "map", "values": "int"}),
        ("to", ["null", ADDRESS]),
        ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
    )
    row = {
        "id": 2**40,
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, 0, 0, 5_000, tzinfo=UTC),
        "exact": None,
        "price": Decimal("-12.50"),
        "key": "0f8fad5b-d9cb-469f-a165-70867728950e",
        "kind": "B",
        "tags": ["a", None],
        "counts": {"x": 1},
        "to": {"zip": 17},
        "hash": b"\0\1",
    }
    result = decoded(headrace.avro(json_text.dumps(schema)), *written(schema, row), None)
    assert result.reasons == {}
    assert result.values.to_pylist() == [row | {"counts": [("x", 1)]}, None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", r"it is not a record of the Avro schema \(EOFError\)"),
        (written(ORDER, {"id": 1, "name": "hunter2"})[0][:-2], "it is not a record"),
        (written(ORDER, {"id": 1, "name": "hunter2"})[0] + b"x", "it is longer than a record"),
        (b"\x02\x02\x08\xff\xfe\xfd\xfc", "it is not a record"),
        (b"\x02\x7f", "a union of its Avro record has an invalid branch index"),
    ],
)
def test_what_is_no_record_has_a_reason_without_its_content(value: bytes, reason: str) -> None:
    good = written(ORDER, {"id": 1, "name": "tea"})[0]
    result = decoded(headrace.avro(json_text.dumps(ORDER)), good, value, good)
    assert list(result.reasons) == [1]
    assert re.search(reason, result.reasons[1])
    assert "hunter2" not in result.reasons[1]
    assert [each.as_py() and each.as_py()["id"] for each in result.values] == [1, None, 1]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=8))
def test_whatever_comes_each_value_is_a_record_or_has_a_reason(values: list[bytes | None]) -> None:
    result = decoded(AvroFormat(json_text.dumps(ORDER)), *values)
    for number, value in enumerate(values):
        is_null = result.values[number].as_py() is None
        assert is_null == (value is None or number in result.reasons)


FLAT = record(
    ("id", "long"),
    ("count", "int"),
    ("is_paid", "boolean"),
    ("text", ["null", "string"]),
    ("raw", ["bytes", "null"]),
    ("low", ["null", "float"]),
    ("high", "double"),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("exact", ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]),
    ("last", ["null", "int"]),
)
PLAIN = record(
    *(
        (name, kind)
        for name, kind in (
            ("id", "long"),
            ("count", "int"),
            ("is_paid", "boolean"),
            ("text", ["null", "string"]),
            ("raw", ["bytes", "null"]),
            ("low", ["null", "float"]),
            ("high", "double"),
            ("day", "int"),
            ("at", "long"),
            ("exact", ["null", "long"]),
            ("last", ["null", "int"]),
        )
    )
)
INTS = st.integers(-(2**31), 2**31 - 1)
TIMES = st.integers(-(2**36), 2**36) | st.integers(-(2**63), 2**63 - 1)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "count": INTS,
        "is_paid": st.booleans(),
        "text": st.none() | st.text(max_size=12),
        "raw": st.none() | st.binary(max_size=12),
        "low": st.none() | st.floats(width=32, allow_nan=False),
        "high": st.floats(allow_nan=False),
        "day": st.integers(-10_000, 10_000),
        "at": TIMES,
        "exact": st.none() | TIMES,
        "last": st.none() | INTS,
    }
)


def damaged(value: bytes, at: int, change: bytes) -> bytes:
    at %= len(value)
    return value[:at] + change + value[at + 1 :]


@given(
    st.lists(
        st.none()
        | ROWS.map(lambda row: written(PLAIN, row)[0])
        | st.builds(
            damaged,
            ROWS.map(lambda row: written(PLAIN, row)[0]),
            st.integers(0, 100),
            st.binary(max_size=11),
        ),
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_column_by_column_is_what_one_by_one_is(values: list[bytes | None], cut: int) -> None:
    form = AvroFormat(json_text.dumps(FLAT))
    decoder = form.decoder(form.columns())
    assert decoder._flat is not None
    together = decoder.decode(pa.array([b"cut off"] * cut + values, pa.binary())[cut:])
    decoder._flat = None
    alone = decoder.decode(pa.array(values, pa.binary()))
    assert together.reasons == alone.reasons
    assert together.values.equals(alone.values)
    together.values.validate(full=True)


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_what_is_whole_is_read_column_by_column(rows: list[dict[str, Any]]) -> None:
    form = AvroFormat(json_text.dumps(PLAIN))
    decoder = form.decoder(form.columns())
    decoder._read = None  # type: ignore[assignment]
    result = decoder.decode(pa.array(written(PLAIN, *rows), pa.binary()))
    assert result.reasons == {}
    assert result.values.to_pylist() == rows


OVERLONG = b"\x82" + b"\x80" * 9


@pytest.mark.parametrize(
    "value",
    [
        OVERLONG + b"\x00" + b"\x00",  # of 11 bytes
        OVERLONG[:9] + b"\x02" + b"\x00",  # of 65 bits
        b"\x02" + OVERLONG[:9] + b"\x02" + b"\x02x",
        b"\x02\x02" + OVERLONG + b"\x00" + b"x",
    ],
)
def test_a_number_of_more_than_64_bits_is_a_bad_record(value: bytes) -> None:
    good = written(ORDER, {"id": -(2**63), "name": "\xe9" * 20})[0]
    result = decoded(headrace.avro(json_text.dumps(ORDER)), good, value, b"\x82\x80\x00\x00")
    assert result.reasons == {1: "a number of its Avro record has more than 64 bits"}
    assert result.values.to_pylist()[2] == {"id": 1, "name": None}


def test_an_overlong_number_is_found_wherever_it_is_nested() -> None:
    schema = record(
        ("x", {"type": "map", "values": {"type": "array", "items": ["null", ADDRESS]}}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        ("hash", {"type": "fixed", "name": "Hash", "size": 10}),
        ("y", "shop.Hash"),
    )
    plain = b"\x02\x02a\x02\x02%s\x00\x00\x02" + b"\xff" * 20
    form = headrace.avro(json_text.dumps(schema))
    result = decoded(form, plain % b"\x02", plain % (OVERLONG + b"\x00"))
    assert result.reasons == {1: "a number of its Avro record has more than 64 bits"}


def test_records_of_each_version_are_read_into_the_reader_s_schema(
    registry: RegistryServer,
) -> None:
    first = record(("id", "int"), ("old", "string"))
    second = record(("id", "long"), ("name", ["null", "string"]), name=None)
    ids = [registry.register("orders-value", each) for each in (first, second)]
    reader = record(("id", "long"), ("name", ["null", "string"]), ("n", "int"), n=7, name=None)
    values = [
        framed(ids[0], written(first, {"id": 1, "old": "x"})[0]),
        framed(ids[1], written(second, {"id": 2, "name": "tea"})[0]),
    ] * 100
    form = headrace.avro(json_text.dumps(reader), registry=registry.client())
    result = decoded(form, *values)
    assert result.reasons == {}
    assert result.values[:2].to_pylist() == [
        {"id": 1, "name": None, "n": 7},
        {"id": 2, "name": "tea", "n": 7},
    ]
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"]
    decoder = form.decoder(form.columns())
    for _ in range(2):  # by then it knows that what is written as it is read needs no resolution
        again = decoder.decode(pa.array([*values, None, b""], pa.binary()))
        assert again.values[:-2].equals(result.values)
        assert list(again.reasons) == [len(values) + 1]
    newest = [
        framed(registry.register("orders-value", reader), value)
        for value in written(reader, {"id": 3, "name": None, "n": 1})
    ]
    for _ in range(2):
        again = decoder.decode(pa.array([*newest, values[0], *newest], pa.binary()))
        assert [each["id"] for each in again.values.to_pylist()] == [3, 1, 3]
    assert len(registry.asked) == 3


def test_references_are_followed_once_each_be_they_shared(registry: RegistryServer) -> None:
    country = record(("code", "string"), title="Country")
    address = record(("zip", "int"), ("in", "shop.Country"), title="Address")
    order = record(("to", "shop.Address"), ("by", "shop.Country"))
    registry.register("country", country)
    registry.register("address", address, ("shop.Country", "country", 1))
    number = registry.register(
        "orders-value",
        order,
        ("shop.Address", "address", 1),
        ("shop.Country", "country", 1),
    )
    named: dict[str, Any] = {}
    for each in (country, address):
        fastavro.parse_schema(each, named_schemas=named)
    row = {"to": {"zip": 1, "in": {"code": "nl"}}, "by": {"code": "de"}}
    (value,) = written(order, row, named=named)
    form = headrace.avro(registry=registry.client(), subject="orders-value")
    assert decoded(form, framed(number, value)).values.to_pylist() == [row]
    assert pickle.loads(pickle.dumps(form)) == form  # noqa: S301  (as Spark sends it)


def test_an_id_that_nobody_knows_rejects_the_record_alone(registry: RegistryServer) -> None:
    number = registry.register("orders-value", ORDER)
    (value,) = written(ORDER, {"id": 1, "name": None})
    form = headrace.avro(json_text.dumps(ORDER), registry=registry.client())
    result = decoded(form, framed(99, value), framed(number, value), value, b"", framed(99, value))
    assert result.reasons == {
        0: "the schema registry does not know the id 99",
        2: NO_ID,
        3: NO_ID,
        4: "the schema registry does not know the id 99",
    }
    assert registry.asked == ["/schemas/ids/99", "/schemas/ids/1"]


@pytest.mark.parametrize("number", [2**31, 2**32 - 1])
def test_an_id_that_no_registry_has_rejects_the_record_and_asks_nobody(
    registry: RegistryServer, number: int
) -> None:
    registry.status = 500  # Confluent's says 404 of a path that it does not have
    avro = headrace.avro(json_text.dumps(ORDER), registry=registry.client())
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    proto = headrace.protobuf(
        files.SerializeToString(), "google.protobuf.Timestamp", registry=registry.client()
    )
    reasons = {0: f"the schema registry does not know the id {number}"}
    assert decoded(avro, framed(number, b"\x02\x00")).reasons == reasons
    decoder = proto.decoder(proto.columns())
    values = pa.array([framed(number, b"\x00")], pa.binary())
    assert decoder.decode(values).reasons == reasons
    assert registry.asked == []


def test_an_id_of_another_kind_or_that_does_not_fit_rejects_the_record(
    registry: RegistryServer,
) -> None:
    ids = [
        registry.register("p", 'syntax = "proto3";', kind="PROTOBUF"),
        registry.register("broken", "{"),
        registry.register("other", record(("id", "string"))),
        registry.register("number", '"long"'),
    ]
    (value,) = written(record(("id", "string")), {"id": "hunter2"})
    form = headrace.avro(json_text.dumps(record(("id", "long"))), registry=registry.client())
    result = decoded(form, *[framed(number, value) for number in ids])
    assert result.reasons == {
        0: "the registry's schema 1 is PROTOBUF, not AVRO",
        1: "the registry's schema 2 does not parse",
        2: "its writer's schema is incompatible with the reader's schema",
        3: "its writer's schema is incompatible with the reader's schema",
    }


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "does not parse"),
        ('{"type": "record"}', "does not parse"),
        ('"long"', "has the type bigint; give the schema of a record"),
        (record(("x", "nothing")), "does not parse .*nothing"),
        (record(("x", ["int", "string"])), "field x is a union of several types"),
        (record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 39})), "39 digits"),
        (record(("next", ["null", "shop.Order"])), "a record shop.Order within a shop.Order"),
        (record(("x", "null")), "field x is a union of several types|field x is of 'null'"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_one_sentence(
    schema: Any, sentence: str
) -> None:
    text = schema if isinstance(schema, str) else json_text.dumps(schema)
    with pytest.raises(OptionError, match=sentence) as raised:
        headrace.avro(text)
    assert "\n" not in str(raised.value)


def test_what_names_no_schema_is_refused(registry: RegistryServer, tmp_path: Path) -> None:
    client = registry.client()
    registry.register("p", 'syntax = "proto3";', kind="PROTOBUF")
    for options, sentence in (
        ({}, "has no schema"),
        ({"schema": "{}", "registry": client, "subject": "orders"}, "both a schema and a subject"),
        ({"subject": "orders"}, "a subject without a registry"),
        ({"registry": client, "subject": "orders"}, "has no subject 'orders'; name an"),
        ({"registry": client, "subject": "p"}, "has a schema of the type PROTOBUF"),
        ({"schema": tmp_path / "no.avsc"}, "no.avsc cannot be read"),
    ):
        with pytest.raises(OptionError, match=sentence):
            headrace.avro(**options)
    (tmp_path / "order.avsc").write_text(json_text.dumps(ORDER))
    assert headrace.avro(tmp_path / "order.avsc").columns().names == ["id", "name"]
