"""Whatever a value is, it is rejected, or decoded into what another decoder reads in it."""

import base64
import json as json_text
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Any, Final

import fastavro
import numpy as np
import pytest
from fastavro._read_py import schemaless_reader
from google.protobuf import descriptor_pool, json_format, message_factory
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from tests.decoding import fuzz
from tests.decoding.test_avro_format import FLAT, PLAIN, ROWS, record
from tests.decoding.test_protobuf_format import files
from tests.services.examples import examples

import headrace
from headrace.decoding.avro_format import AvroDecoder, _Writer
from headrace.decoding.formats import Decoder
from headrace.decoding.json_format import JsonDecoder

pytestmark = pytest.mark.nightly

FEW: Final = 250
"""Examples in `make soak`, each with 20 damaged values: 2 000 values in `make nightly`."""

MANY: Final = 5_000
"""The same of the long test: 100 000 values."""

TEXT = st.text(max_size=6)
TIMES = st.datetimes(timezones=st.just(UTC))
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)

# JSON, beside the standard library's.

COLUMNS = t.StructType(
    [
        t.StructField("id", t.LongType(), nullable=False),
        t.StructField("name", t.StringType()),
        t.StructField("small", t.ByteType()),
        t.StructField("is_paid", t.BooleanType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("price", t.DecimalType(5, 2)),
        t.StructField("high", t.DoubleType()),
        t.StructField("low", t.FloatType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("counts", t.MapType(t.StringType(), t.LongType())),
        t.StructField("to", t.StructType([t.StructField("zip", t.IntegerType())])),
    ]
)
OBJECTS = st.fixed_dictionaries(
    {"id": LONG},
    optional={
        "name": st.none() | TEXT,
        "small": st.integers(-128, 127),
        "is_paid": st.booleans(),
        "day": st.dates().map(str),
        "at": TIMES.map(datetime.isoformat),
        "price": st.decimals(-999, 999, places=2).map(str),
        "high": st.floats(allow_nan=False, allow_infinity=False),
        "low": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.none() | TEXT, max_size=2),
        "counts": st.dictionaries(TEXT, LONG, max_size=2),
        "to": st.fixed_dictionaries({}, optional={"zip": INT}),
        "unknown": st.recursive(TEXT, lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    },
)
PIECES = (
    b"null", b"true", b"1e400", b"-0", b"-0.0", b"1e-400", b"9223372036854775808", b'"\\ud800"',
    b'"2026-02-30"', b'"2026-01-31T23:59:60Z"', b'"2026-01-31T12:00:00.123456789Z"', b"[" * 2_000,
    b'{"id":1}', b'"id":2,', b'"price":1e1,', b'"\\u0000"', b"0.1", b"9" * 5_000, b"1e-999999999",
    b"1e99999999999999999999",
    b'"9999-12-31T23:59:59-23:59"', b"\xef\xbb\xbf", b"NaN", b'"NaN"', b"3.4028236e38", b"16777217",
)  # fmt: skip
JSON = fuzz.batches(OBJECTS.map(lambda row: json_text.dumps(row).encode()), *PIECES)


def time_of(text: str) -> datetime:
    """Parse a time, rounded to microseconds, as no parser of the standard library does."""
    digits = re.search(r"\.\d{6}(\d)", text)
    rounded_up_us = 1 if digits and int(digits[1]) >= 5 else 0
    found = datetime.fromisoformat(text) + timedelta(microseconds=rounded_up_us)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


CONVERT: dict[str, Callable[[Any], Any]] = {
    "day": date.fromisoformat,
    "at": time_of,
    "price": lambda value: Decimal(value).quantize(Decimal("0.01")),
    "high": float,
    "low": lambda value: float(np.float32(float(value))),
    "to": lambda value: {"zip": value.get("zip")},
}


def json_says(value: bytes) -> dict[str, Any] | None:
    try:
        found = json_text.loads(value.decode(), parse_float=Decimal)
        return {
            name: None if found.get(name) is None else CONVERT.get(name, lambda it: it)(found[name])
            for name in COLUMNS.names
        }
    except (ValueError, ArithmeticError, RecursionError):
        return None


def check_json(values: list[bytes]) -> None:
    fuzz.check(json_decoder(), b'{"id": 7, "name": "tea"}', values, json_says)


@cache
def json_decoder() -> Decoder:
    return JsonDecoder(COLUMNS)


@examples(FEW)
@given(JSON)
def test_json_is_rejected_or_what_the_standard_library_reads(values: list[bytes]) -> None:
    check_json(values)


@pytest.mark.soak
@examples(MANY)
@given(JSON)
def test_more_json_is_rejected_or_what_the_standard_library_reads(values: list[bytes]) -> None:
    check_json(values)


# Avro, beside fastavro's reader that is not compiled.

NODE = record(("deep", ["null", "shop.Node"]), title="Node")


def nested(*, is_plain: bool, has_more: bool) -> dict[str, Any]:
    """A schema, without logical types or with them; the writer's has fields that nobody reads."""

    def logical(kind: str, name: str, **more: Any) -> Any:
        return kind if is_plain else {"type": kind, "logicalType": name, **more}

    more: list[tuple[str, Any]] = [
        ("node", NODE),
        ("nothing", {"type": "array", "items": "null"}),
        ("either", ["string", "long", {"type": "array", "items": "boolean"}]),
    ]
    return record(
        ("id", "long"),
        *(more if has_more else []),
        ("day", logical("int", "date")),
        ("at", logical("long", "timestamp-millis")),
        ("price", logical("bytes", "decimal", precision=9, scale=2)),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}),
        ("tags", {"type": "array", "items": ["null", "string"]}),
        ("counts", {"type": "map", "values": "int"}),
        ("to", ["null", record(("zip", "int"), ("is_far", "boolean"), title="Address")]),
        ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
        ("low", "float"),
    )


NESTED = st.fixed_dictionaries(
    {
        "id": LONG,
        "node": st.recursive(
            st.none(), lambda inner: inner.map(lambda node: {"deep": node}), max_leaves=3
        ).map(lambda node: node or {"deep": None}),
        "nothing": st.lists(st.none(), max_size=3),
        "either": TEXT | LONG | st.lists(st.booleans(), max_size=2),
        "day": st.integers(-719_162, 2_932_896),
        "at": st.integers(-(2**45), 2**45),
        "price": st.binary(min_size=1, max_size=3),
        "kind": st.sampled_from("ABC"),
        "tags": st.lists(st.none() | TEXT, max_size=2),
        "counts": st.dictionaries(TEXT, INT, max_size=2),
        "to": st.none() | st.fixed_dictionaries({"zip": INT, "is_far": st.booleans()}),
        "hash": st.binary(min_size=2, max_size=2),
        "low": st.floats(width=32),
    }
)


class Avro:
    """Values of a writer's schema, read into a reader's by two decoders."""

    def __init__(self, rows: st.SearchStrategy[dict[str, Any]], *schemas: Any) -> None:
        plain, writer, reader = schemas
        parse: Callable[[Any], Any] = fastavro.parse_schema
        self.plain, self.writer, self.reader = parse(plain), parse(writer), parse(reader)
        self.values = fuzz.batches(rows.map(self.written))
        form = headrace.avro(json_text.dumps(reader))
        decoder = form.decoder(form.columns())
        assert isinstance(decoder, AvroDecoder)
        if writer != reader:
            decoder._plain = _Writer.of(self.plain)
        self.decoder = decoder

    def written(self, row: dict[str, Any]) -> bytes:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self.plain, row)
        return stream.getvalue()

    def says(self, value: bytes) -> dict[str, Any] | None:
        """Read a value that the decoder accepts, as this one has to.

        It reads texts also of fields that are left out.
        """
        stream = BytesIO(value)
        try:
            row: Any = schemaless_reader(stream, self.writer, self.reader)
        except UnicodeDecodeError:
            return None
        assert not stream.read(1)
        return dict(row)


FLAT_AVRO = Avro(ROWS, PLAIN, FLAT, FLAT)
NESTED_AVRO = Avro(
    NESTED,
    nested(is_plain=True, has_more=True),
    nested(is_plain=False, has_more=True),
    nested(is_plain=False, has_more=False),
)
GOOD_FLAT = {
    "id": 7, "count": 1, "is_paid": True, "text": "tea", "raw": None, "low": None, "high": 0.5,
    "day": 1, "at": 0, "exact": None, "last": 3,
}  # fmt: skip
GOOD_NESTED = {
    "id": 7, "node": {"deep": None}, "nothing": [], "either": "x", "day": 1, "at": 0,
    "price": b"\1", "kind": "B", "tags": ["a"], "counts": {"x": 1}, "to": None, "hash": b"ab",
    "low": 0.5,
}  # fmt: skip


def check_avro(flat: list[bytes], nested: list[bytes]) -> None:
    for form, good, values in (
        (FLAT_AVRO, GOOD_FLAT, flat),
        (NESTED_AVRO, GOOD_NESTED, nested),
    ):
        fuzz.check(form.decoder, form.written(good), values, form.says)


@examples(FEW // 2)
@given(FLAT_AVRO.values, NESTED_AVRO.values)
def test_avro_is_rejected_or_what_another_reader_reads(
    flat: list[bytes], nested: list[bytes]
) -> None:
    check_avro(flat, nested)


@pytest.mark.soak
@examples(MANY // 2)
@given(FLAT_AVRO.values, NESTED_AVRO.values)
def test_more_avro_is_rejected_or_what_another_reader_reads(
    flat: list[bytes], nested: list[bytes]
) -> None:
    check_avro(flat, nested)


# Protocol Buffers, beside their own JSON.

MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "id": LONG,
        "name": TEXT,
        "large": st.integers(0, 2**64 - 1),
        "kind": st.integers(0, 1),
        "tags": st.lists(TEXT, max_size=2),
        "to": st.fixed_dictionaries({"zip": INT}),
        "counts": st.dictionaries(TEXT, st.fixed_dictionaries({"zip": INT}), max_size=2),
        "at": TIMES,
        "raw": st.binary(max_size=4),
        "ratio": st.floats(width=32),
    },
)
OF_JSON: dict[str, Callable[[Any], Any]] = {
    "id": int,
    "large": Decimal,
    "kind": str,
    "to": lambda value: {"zip": value.get("zip")},
    "counts": lambda values: {key: {"zip": value.get("zip")} for key, value in values.items()},
    "at": datetime.fromisoformat,
    "raw": base64.b64decode,
    "ratio": lambda value: float(np.float32(float(value))),
}


class Protobuf:
    """Orders in one syntax, read by two decoders."""

    def __init__(self, syntax: str) -> None:
        descriptors = files(syntax=syntax)
        pool = descriptor_pool.DescriptorPool()
        for file in descriptors.file:
            pool.AddSerializedFile(file.SerializeToString())
        self.made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
        form = headrace.protobuf(descriptors.SerializeToString(), "shop.Order")
        self.decoder = form.decoder(form.columns())

    def says(self, value: bytes) -> dict[str, Any] | None:
        """Return a message's fields as its JSON has them; None where it has no JSON."""
        message = self.made.FromString(value)
        try:
            found = json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
        except (json_format.Error, ValueError):
            return None
        return {
            field.name: OF_JSON.get(field.name, lambda it: it)(found[field.name])
            if field.name in found
            else ([] if field.is_repeated else None)
            for field in self.made.DESCRIPTOR.fields
        }


PROTO2 = Protobuf("proto2")
PROTO3 = Protobuf("proto3")


def message(fields: dict[str, Any]) -> bytes:
    data: bytes = PROTO3.made(**fields).SerializeToString()
    return data


PROTOBUF = fuzz.batches(MESSAGES.map(message))


def check_protobuf(values: list[bytes]) -> None:
    for form in (PROTO2, PROTO3):
        fuzz.check(form.decoder, message({"id": 7, "name": "tea"}), values, form.says)


@examples(FEW)
@given(PROTOBUF)
def test_protobuf_is_rejected_or_what_its_json_says(values: list[bytes]) -> None:
    check_protobuf(values)


@pytest.mark.soak
@examples(MANY)
@given(PROTOBUF)
def test_more_protobuf_is_rejected_or_what_its_json_says(values: list[bytes]) -> None:
    check_protobuf(values)
