"""Messages become typed columns, by their descriptors."""

import pickle
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.formats import Decoded
from headrace.decoding.protobuf_format import ProtobufFormat, message_at
from headrace.decoding.registry import NO_ID
from headrace.errors import OptionError

KINDS = descriptor_pb2.FieldDescriptorProto


def files(
    *, holds_itself: bool = False, syntax: str = "proto3"
) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors that protoc makes of an order, with everything that it imports."""
    found = descriptor_pb2.FileDescriptorSet()
    found.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = found.file.add(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("A", "B")):
        kind.value.add(name=name, number=number)
    address = file.message_type.add(name="Address")
    add(address, "zip", 1, KINDS.TYPE_INT32)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, KINDS.TYPE_STRING)
    add(entry, "value", 2, KINDS.TYPE_MESSAGE, of=".shop.Address")
    add(order, "id", 1, KINDS.TYPE_INT64, required=syntax == "proto2")
    add(order, "name", 2, KINDS.TYPE_STRING)
    add(order, "large", 3, KINDS.TYPE_UINT64)
    add(order, "kind", 4, KINDS.TYPE_ENUM, of=".shop.Kind")
    add(order, "tags", 5, KINDS.TYPE_STRING, repeated=True)
    add(order, "to", 6, KINDS.TYPE_MESSAGE, of=".shop.Address")
    add(order, "counts", 7, KINDS.TYPE_MESSAGE, of=".shop.Order.CountsEntry", repeated=True)
    add(order, "at", 8, KINDS.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
    add(order, "raw", 9, KINDS.TYPE_BYTES)
    add(order, "ratio", 10, KINDS.TYPE_FLOAT)
    if holds_itself:
        add(order, "next", 11, KINDS.TYPE_MESSAGE, of=".shop.Order")
    return found


def add(message: Any, name: str, number: int, kind: int, *, of: str = "", **label: bool) -> None:
    field = message.field.add(name=name, number=number, type=kind, type_name=of or None)
    field.label = KINDS.LABEL_OPTIONAL
    if label.get("repeated"):
        field.label = KINDS.LABEL_REPEATED
    if label.get("required"):
        field.label = KINDS.LABEL_REQUIRED


FILES = files().SerializeToString()
ORDERS = ProtobufFormat(FILES, "shop.Order")


def order(**fields: Any) -> bytes:
    """An order as a producer writes it."""
    pool = descriptor_pool.DescriptorPool()
    for file in files().file:
        pool.AddSerializedFile(file.SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)
    data: bytes = made.SerializeToString()
    return data


def decoded(form: ProtobufFormat, *values: bytes | None) -> Decoded:
    return form.decoder(form.columns()).decode(pa.array(values, pa.binary()))


EMPTY = {
    "id": 0,
    "name": "",
    "large": Decimal(0),
    "kind": "A",
    "tags": [],
    "to": None,
    "counts": [],
    "at": None,
    "raw": b"",
    "ratio": 0.0,
}


def test_values_have_the_types_of_the_message() -> None:
    value = order(
        id=-1,
        name="tea",
        large=2**64 - 1,
        kind=1,
        tags=["a", "b"],
        to={"zip": 17},
        counts={"x": {"zip": 1}},
        at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        raw=b"\0\xff",
        ratio=0.5,
    )
    result = decoded(headrace.protobuf(FILES, "shop.Order"), value, None, order())
    assert result.reasons == {}
    assert result.values.to_pylist() == [
        {
            "id": -1,
            "name": "tea",
            "large": Decimal(2**64 - 1),
            "kind": "B",
            "tags": ["a", "b"],
            "to": {"zip": 17},
            "counts": [("x", {"zip": 1})],
            "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
            "raw": b"\0\xff",
            "ratio": 0.5,
        },
        None,
        EMPTY,
    ]
    assert pickle.loads(pickle.dumps(ORDERS)) == ORDERS  # noqa: S301  (as Spark sends it)


def test_what_is_no_message_has_a_reason_without_its_content() -> None:
    good = order(id=1, name="hunter2")
    result = decoded(ORDERS, good, good[:-1], b"\xff\xff", b"\x12\x07hunt\xff\xfer")
    assert result.reasons == dict.fromkeys(
        (1, 2, 3), "it is not a message of the Protocol Buffers schema"
    )


def test_what_is_required_has_to_be_there() -> None:
    form = headrace.protobuf(files(syntax="proto2").SerializeToString(), "shop.Order")
    result = decoded(form, order(id=1), order(name="tea"))
    assert list(result.reasons) == [1]
    assert result.values[0].as_py()["name"] is None


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"\x12\x01\xff", "name does not fit string"),
        (b"\x2a\x01\xff", "tags does not fit array<string>"),
        (b"\x3a\x05\x0a\x01\xff\x12\x00", "counts does not fit map<"),
        (b"\x42\x06\x10\x80\x94\xeb\xdc\x03", "at does not fit timestamp"),  # 10^9 ns
        (b"\x42\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "at does not fit"),  # -1 ns
    ],
)
def test_what_a_message_has_that_is_no_value_of_its_type_rejects_it(
    value: bytes, field: str
) -> None:
    """Proto2 does not look whether a text is UTF-8."""
    descriptors = files(syntax="proto2").SerializeToString()
    form = headrace.protobuf(descriptors, "shop.Order")
    good = b"\x08\x02"
    result = decoded(form, good, good + value, good)
    assert list(result.reasons) == [1]
    assert field in result.reasons[1]
    assert [row and row["id"] for row in result.values.to_pylist()] == [2, None, 2]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=8))
def test_whatever_comes_each_value_is_a_message_or_has_a_reason(values: list[bytes | None]) -> None:
    result = decoded(ORDERS, *values)
    for number, value in enumerate(values):
        is_null = result.values[number].as_py() is None
        assert is_null == (value is None or number in result.reasons)


SHOP = """
syntax = "proto3";  // message Comment {}
package shop;
import "google/protobuf/timestamp.proto";
/* message Order {} */
option java_package = "message Text {";
enum Kind { A = 0; }
message Address {
  oneof place { int32 zip = 1; string message = 2; }
  message Order {}
}
message Order { int64 id = 1 [(rule) = { name: "x" }]; enum Kind { B = 0; } message Item {} }
service Shop { rpc Buy (Order) returns (Order) { option (http) = { get: "/" }; } }
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ([0], "shop.Address"),
        ([0, 0], "shop.Address.Order"),
        ([1], "shop.Order"),
        ([1, 0], "shop.Order.Item"),
        ([2], None),
        ([-1], None),
        ([1, 0, 0], None),
        ([], None),
    ],
)
def test_a_message_is_found_in_a_text_by_its_path(path: list[int], name: str | None) -> None:
    assert message_at(SHOP, path) == name


@given(st.text() | st.text("message{};\"' aA", max_size=60), st.lists(st.integers(-1, 3)))
def test_whatever_a_registry_has_as_a_text_a_path_in_it_is_a_name_or_none(
    text: str, path: list[int]
) -> None:
    found = message_at(text, path)
    assert found is None or found


def test_a_registry_s_values_say_which_message_they_are(registry: RegistryServer) -> None:
    number = registry.register("orders-value", SHOP, kind="PROTOBUF")
    other = registry.register("avro", '"long"')
    first = "package shop; message Order { int64 id = 1; }"
    alone = registry.register("alone-value", first, kind="PROTOBUF")
    broken = registry.register("broken-value", "what?", kind="PROTOBUF")
    form = headrace.protobuf(FILES, "shop.Order", registry=registry.client())
    value = order(id=7)
    result = decoded(
        form,
        framed(alone, b"\0" + value),  # the first message, as a shorter form
        framed(alone, b"\x02\0" + value),
        framed(number, b"\x02\x02" + value),
        framed(number, b"\x04\x02\x00" + value),
        framed(number, b"\0" + value),
        framed(number, b"\x02\x12" + value),
        framed(number, b"\x02\x01" + value),
        framed(broken, b"\0" + value),
        framed(number, b"\x04\x02"),
        framed(number, b""),
        framed(99, b"\0" + value),
        framed(other, b"\0" + value),
        value,
    )
    assert [each.as_py() and each.as_py()["id"] for each in result.values] == [7] * 3 + [None] * 10
    assert result.reasons == {
        3: "it is a shop.Order.Item in the registry's schema 1, not a shop.Order",
        4: "it is a shop.Address in the registry's schema 1, not a shop.Order",
        5: "the registry's schema 1 has no message with the index 9",
        6: "the registry's schema 1 has no message with the index -1",
        7: "the registry's schema 4 has no message with the index 0",
        8: "it has no valid message index after its schema id",
        9: "it has no valid message index after its schema id",
        10: "the schema registry does not know the id 99",
        11: "the registry's schema 2 is AVRO, not PROTOBUF",
        12: NO_ID,
    }


@pytest.mark.parametrize(
    ("descriptors", "message", "sentence"),
    [
        (b"\xff", "shop.Order", "The descriptors do not parse"),
        (b"", "shop.Order", "The descriptors are empty"),
        (FILES, "shop.Bill", "have no message 'shop.Bill'; give the message's full name"),
        (files(holds_itself=True).SerializeToString(), "shop.Order", "shop.Order contains itself"),
        (Path("/nowhere/shop.desc"), "shop.Order", "file /nowhere/shop.desc cannot be read"),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused_in_one_sentence(
    descriptors: Any, message: str, sentence: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)) as raised:
        headrace.protobuf(descriptors, message)
    assert "\n" not in str(raised.value)


def test_descriptors_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(FILES)
    assert headrace.protobuf(tmp_path / "shop.desc", "shop.Order") == ORDERS
