"""A value that Avro would read as another one, for its logical type is another, is rejected."""

import json
from typing import Any

import pytest
from fastavro.schema import parse_schema
from tests.decoding.test_avro_format import decoded, record, written
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.avro_check import other_meaning

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def decimal(scale: int, precision: int = 9) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def meaning(writer: Any, reader: Any) -> str | None:
    parsed: list[Any] = [parse_schema(record(("x", each))) for each in (writer, reader)]
    named = [each["__named_schemas"] for each in parsed]
    return other_meaning(parsed[0], parsed[1], named[0], named[1])


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (decimal(3), decimal(2)),
        (MICROS, MILLIS),
        (MICROS, {"type": "long", "logicalType": "local-timestamp-micros"}),
        (["null", MICROS], MILLIS),
        (["null", MICROS], ["null", MILLIS]),
        (["string", MICROS], ["null", MILLIS]),
        ({"type": "array", "items": decimal(3)}, {"type": "array", "items": decimal(2)}),
        ({"type": "map", "values": MICROS}, {"type": "map", "values": MILLIS}),
        (record(("y", MICROS), title="In"), record(("y", MILLIS), title="In")),
    ],
)
def test_where_both_name_a_logical_type_it_has_to_be_the_same(writer: Any, reader: Any) -> None:
    reason = meaning(writer, reader)
    assert reason is not None
    assert reason.startswith("its field ")
    assert reason.endswith("which would change the value")


TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "at", "type": MILLIS}, {"name": "left", "type": ["null", "Tree"]}],
}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (decimal(2), decimal(2, precision=12)),
        (MILLIS, MILLIS),
        ("long", MILLIS),
        (MICROS, "long"),
        ("int", "long"),
        (["null", MILLIS], MILLIS),
        (TREE, TREE),
    ],
)
def test_all_else_is_read_as_it_is_stored(writer: Any, reader: Any) -> None:
    assert meaning(writer, reader) is None


def test_a_record_that_would_be_another_value_is_rejected(registry: RegistryServer) -> None:
    thousandths, hundredths = record(("price", decimal(3))), record(("price", decimal(2)))
    plain = record(("price", "bytes"))
    (value,) = written(plain, {"price": b"\x01\x00"})
    numbers = [registry.register("prices-value", each) for each in (thousandths, hundredths)]
    form = headrace.avro(json.dumps(hundredths), registry=registry.client())
    result = decoded(form, *(framed(number, value) for number in numbers))
    assert result.reasons == {
        0: "its field price was written as decimal with 3 digits after the point, but the reader's"
        " schema has decimal with 2 digits after the point, which would change the value"
    }
    assert str(result.values[1].as_py()["price"]) == "2.56"
