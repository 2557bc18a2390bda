"""Fields that are new in the reader's schema: older records have their defaults."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from tests.decoding.test_avro_format import decoded, record, written
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.errors import OptionError

OLD = record(("id", "int"))
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
UUID_OF_BYTES = {"type": "fixed", "name": "Uuid", "size": 16, "logicalType": "uuid"}
INNER = record(("x", "int"), ("y", "int"), title="In", x=3, y=4)
AT = record(("at", MILLIS), title="At", at=5)
LINE = record(("price", DECIMAL), ("raw", "bytes"), title="Line", price="\x01\x00", raw="\xfe")
A_UUID = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")


def reader(kind: Any, default: Any) -> dict[str, Any]:
    return record(("id", "int"), ("new", kind), new=default)


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\xff", b"\xff"),
        (["bytes", "null"], "\xff\x00", b"\xff\x00"),
        ({"type": "fixed", "name": "F", "size": 2}, "\xff\x01", b"\xff\x01"),
        (DECIMAL, "\x00", Decimal("0.00")),
        ({"type": "map", "values": "bytes"}, {"a": "\xff"}, [("a", b"\xff")]),
        (INNER, {}, {"x": 3, "y": 4}),
        (["null", INNER], None, None),
        (["null", INNER], {"y": 1}, {"x": 3, "y": 1}),
        ({"type": "array", "items": INNER}, [{"x": 1}, {}], [{"x": 1, "y": 4}, {"x": 3, "y": 4}]),
        (LINE, {}, {"price": Decimal("2.56"), "raw": b"\xfe"}),
        (LINE, {"raw": "\x00"}, {"price": Decimal("2.56"), "raw": b"\x00"}),
        (AT, {}, {"at": datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)}),
        (UUID_OF_BYTES, A_UUID.bytes.decode("latin-1"), str(A_UUID)),
        ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B", "B"),
        ("double", 1, 1.0),
        ("float", "Infinity", float("inf")),
    ],
)
def test_an_older_record_has_the_default(
    registry: RegistryServer, kind: Any, default: Any, value: Any
) -> None:
    number = registry.register("orders-value", OLD)
    values = [framed(number, older) for older in written(OLD, {"id": 1}, {"id": 2})]
    form = headrace.avro(json.dumps(reader(kind, default)), registry=registry.client())
    result = decoded(form, *values)
    assert result.reasons == {}
    assert result.values.to_pylist() == [{"id": 1, "new": value}, {"id": 2, "new": value}]


def test_a_record_of_the_reader_s_own_schema_has_its_own_value(registry: RegistryServer) -> None:
    schema = reader("bytes", "\xff")
    number = registry.register("orders-value", schema)
    (value,) = written(schema, {"id": 1, "new": b"\x01"})
    form = headrace.avro(json.dumps(schema), registry=registry.client())
    decoder = form.decoder(form.columns())
    for _ in range(2):  # the second time column by column
        result = decoder.decode(pa.array([framed(number, value)]))
        assert result.values.to_pylist() == [{"id": 1, "new": b"\x01"}]


def test_a_field_that_is_new_within_a_record_has_its_default(registry: RegistryServer) -> None:
    older = record(("in", record(("x", "int"), title="In")))
    newer = record(("in", record(("x", "int"), ("raw", "bytes"), title="In", raw="\xff")))
    number = registry.register("orders-value", older)
    (value,) = written(older, {"in": {"x": 1}})
    form = headrace.avro(json.dumps(newer), registry=registry.client())
    result = decoded(form, framed(number, value))
    assert result.values.to_pylist() == [{"in": {"x": 1, "raw": b"\xff"}}]


@pytest.mark.parametrize(
    ("kind", "default", "where"),
    [
        ("bytes", "\u0100", "new"),
        ({"type": "fixed", "name": "F", "size": 2}, "\xff", "new"),
        (["null", "bytes"], "\u0100", "new"),
        (record(("x", "int"), title="In"), {"x": "a"}, "new.x"),
        ({"type": "array", "items": "long"}, [2**63], r"new\[\]"),
        ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "C", "new"),
    ],
)
def test_a_default_of_another_type_is_refused_at_startup(
    kind: Any, default: Any, where: str
) -> None:
    with pytest.raises(OptionError, match=f"field {where} has a default that is not a value"):
        headrace.avro(json.dumps(reader(kind, default)))


def test_a_default_that_lacks_a_field_is_refused_at_startup() -> None:
    with pytest.raises(OptionError, match=r"field new\.x has no default"):
        headrace.avro(json.dumps(reader(record(("x", "int"), title="In"), {})))


def test_a_uuid_of_16_bytes_is_its_text() -> None:
    schema = record(("key", UUID_OF_BYTES), ("other", ["null", "shop.Uuid"]))
    plain = record(
        ("key", {"type": "fixed", "name": "Uuid", "size": 16}), ("other", ["null", "shop.Uuid"])
    )
    values = written(plain, {"key": A_UUID.bytes, "other": A_UUID.bytes})
    result = decoded(headrace.avro(json.dumps(schema)), *values)
    assert result.values.to_pylist() == [{"key": str(A_UUID), "other": str(A_UUID)}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "bytes", "logicalType": "uuid"}, b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "uuid"}, b"\xff\x01"),
        ({"type": "string", "logicalType": "date"}, "x"),
    ],
)
def test_a_logical_type_on_another_type_is_ignored(kind: dict[str, Any], value: Any) -> None:
    plain = {name: part for name, part in kind.items() if name != "logicalType"}
    result = decoded(
        headrace.avro(json.dumps(record(("x", kind)))), *written(record(("x", plain)), {"x": value})
    )
    assert result.values.to_pylist() == [{"x": value}]
