"""JSON values become typed columns, or a reason that has nothing of them."""

import json as json_text
import re
import sys
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

import headrace
from headrace.decoding.formats import Decoded
from headrace.decoding.json_format import JsonDecoder
from headrace.errors import OptionError, SetupError

ORDER = t.StructType(
    [
        t.StructField("name", t.StringType()),
        t.StructField("id", t.LongType(), nullable=False),
        t.StructField("small", t.ShortType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("price", t.DecimalType(5, 2)),
        t.StructField("ratio", t.FloatType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("counts", t.MapType(t.StringType(), t.LongType())),
        t.StructField(
            "to",
            t.StructType(
                [
                    t.StructField("zip", t.IntegerType(), nullable=False),
                    t.StructField("class", t.StringType()),
                ]
            ),
        ),
    ]
)
CONTENT = "hunter2"


def decoded(*values: bytes | None, columns: t.StructType = ORDER) -> Decoded:
    return JsonDecoder(columns).decode(pa.array(values, pa.binary()))


def row(**fields: Any) -> dict[str, Any]:
    return dict.fromkeys(ORDER.names) | fields


def test_a_record_has_the_types_of_its_schema() -> None:
    text = b"""{"id": 1, "name": "tea", "small": 2, "day": "2026-01-31", "price": 1.25,
        "at": "2026-01-31T12:00:00+02:00", "tags": ["a", null], "counts": {"x": 1},
        "to": {"zip": 17, "class": "b"}, "unknown": {"deep": [1, {}]}}"""
    result = decoded(text)
    assert result.reasons == {}
    assert result.values[0].as_py() == row(
        id=1,
        name="tea",
        small=2,
        day=date(2026, 1, 31),
        at=datetime(2026, 1, 31, 10, tzinfo=UTC),
        price=Decimal("1.25"),
        tags=["a", None],
        counts=[("x", 1)],
        to={"zip": 17, "class": "b"},
    )


def test_what_may_be_null_may_be_missing_and_a_null_value_stays_null() -> None:
    result = decoded(b'{"id": 1}', None, b'{"id": 2, "to": null, "at": "2026-01-31T00:00:00"}')
    assert result.reasons == {}
    assert result.values.to_pylist() == [
        row(id=1),
        None,
        row(id=2, at=datetime(2026, 1, 31, tzinfo=UTC)),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{}", "Object missing required field `id`"),
        ('{"id": null}', r"Expected `int`, got `null` - at `\$.id`"),
        ('{"id": "hunter2"}', r"Expected `int`, got `str` - at `\$.id`"),
        ('{"id": 1.0}', "Expected `int`, got `float`"),
        ('{"id": true}', "Expected `int`, got `bool`"),
        ('{"id": 9223372036854775808}', "its field id does not fit bigint"),
        ('{"id": 1, "small": 40000}', "its field small does not fit smallint"),
        ('{"id": 1, "price": 12345.67}', r"its field price does not fit decimal\(5,2\)"),
        ('{"id": 1, "day": "hunter2"}', r"Invalid RFC3339 encoded date - at `\$.day`"),
        ('{"id": 1, "tags": ["hunter2", 1]}', r"got `int` - at `\$.tags\[1\]`"),
        ('{"id": 1, "to": {"class": "hunter2"}}', "Object missing required field `zip`"),
        ('{"id": 1, "to": {"zip": 99999999999}}', "its field to does not fit struct"),
        ('{"id": 1} {"id": 2}', "trailing characters"),
        ('{"id": 1', "truncated"),
        ("hunter2", "malformed"),
        ("[1]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ("", "it is empty"),
        (" ", "it is empty"),
        (r'{"id": 1, "name": "\ud800"}', "a text has half of a surrogate pair"),
        ('{"id": 1, "price": "1_0"}', "Expected a decimal number"),
        ('{"id": 1, "price": " 1"}', "Expected a decimal number"),
        ('{"id": 1, "price": "\u0661"}', "Expected a decimal number"),
        ('{"id": 1, "price": "NaN"}', "Expected a decimal number"),
        ('{"id": 1, "price": true}', "Expected a decimal number"),
        ('{"id": 1, "price": 1e999999999}', "Number out of range"),
        ('{"id": 1, "price": 1e-999999999}', "Number out of range"),
        ('{"id": 1, "price": "-1e-999999999"}', "Number out of range"),
        ('{"id": 1, "price": 1e99999999999999999999}', "Number out of range"),
        ('{"id": 1, "price": "1e-99999999999999999999"}', "Number out of range"),
        ('{"id": 1, "price": 1e-38}', r"its field price does not fit decimal\(5,2\)"),
        ('{"id": 1, "price": "999.%s"}' % ("0" * 39), "Number out of range"),
        ('{"id": 1, "price": 999.%s}' % ("0" * 401), "Number out of range"),
        ('{"id": 1, "price": "%s"}' % ("9" * 39), "Number out of range"),
        ('{"id": 1, "ratio": 1e39}', r"Expected `float` <= 3.4\d+e\+38 - at `\$.ratio`"),
        ('{"id": 1, "ratio": -3.5e38}', r"Expected `float` >= -3.4\d+e\+38"),
        ('{"id": 1, "at": "0001-01-01T00:00:00+14:00"}', "at does not fit timestamp"),
        ('{"id": 1, "at": "9999-12-31T23:59:59-14:00"}', "at does not fit timestamp"),
        ("[" * 100_000, "Expected `object`"),
        ('{"id": 1, "x": ' + "[" * 100_000, "nested too deeply|truncated|malformed"),
        (b'{"id": 1, "name": "\xff"}', "it is not UTF-8"),
    ],
)
def test_what_does_not_fit_has_a_reason_without_its_content(value: Any, reason: str) -> None:
    raw = value if isinstance(value, bytes) else value.encode()
    result = decoded(b'{"id": 1}', raw, b'{"id": 2}')
    assert list(result.reasons) == [1]
    assert CONTENT not in result.reasons[1]
    assert "\n" not in result.reasons[1]
    assert re.search(reason, result.reasons[1])
    assert [each.as_py() and each.as_py()["id"] for each in result.values] == [1, None, 2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(ORDER.names, JSON) | {"id": st.integers(-(2**65), 2**65)}
)
VALUES = st.none() | st.binary() | JSON.map(json_text.dumps) | FIELDS.map(json_text.dumps)


@given(st.lists(VALUES, max_size=8))
def test_whatever_comes_each_value_is_a_record_or_has_a_reason(values: list[Any]) -> None:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    result = decoded(*raw)
    assert len(result.values) == len(raw)
    for number, value in enumerate(raw):
        is_null = result.values[number].as_py() is None
        assert is_null == (value is None or number in result.reasons)
        assert number not in result.reasons or value is not None


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (17, "is a int; give text, a StructType or a Path"),
        (Path("/nowhere/orders.ddl"), "file /nowhere/orders.ddl cannot be read"),
        ("id BIGNT", "field id has the type BIGNT, which has no JSON values; use STRING"),
        ("name STRING, id BIGNT NOT NULL", "field id has the type BIGNT"),
        ("id: bignt", "field id has the type bignt"),
        ("`an, id` INTEGR COMMENT 'x STRING'", "field an, id has the type INTEGR"),
        ("tags ARRAY<STRNG>", "field tags has the type STRNG"),
        ("counts MAP<STRING, LNG>, x INT", "field counts has the type LNG"),
        ("to STRUCT<zip: INT, street STRIG NOT NULL>", "field street has the type STRIG"),
        ("price DECIMAL(10, 2), id BIGNT", "field id has the type BIGNT"),
        ("code VARCHAR(5)", "field code has the type VARCHAR, .* use STRING"),
        ("code CHAR(5)", "field code has the type CHAR, .* use STRING"),
        ("at TIMESTAMP_NTZ", "field at has the type TIMESTAMP_NTZ, .* TIMESTAMP_LTZ"),
        ("id", "'id' does not parse .no field has a type.*such as: id BIGINT"),
        ("", "does not parse"),
        ("{", "does not parse"),
        ('{"type": "struct"}', "does not parse"),
        ('{"type": "struct", "fields": []}', "has no fields"),
        (t.StructType([t.StructField("x", t.BinaryType())]), "field x has the type binary"),
        (
            t.StructType([t.StructField("x", t.TimestampNTZType())]),
            "timestamp_ntz, .* TIMESTAMP_LTZ",
        ),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence) as raised:
        headrace.json(schema)
    assert "\n" not in str(raised.value)


TYPES = st.recursive(
    st.sampled_from([t.StringType(), t.LongType(), t.DecimalType(9, 2), t.TimestampType()]),
    lambda inner: st.one_of(
        inner.map(t.ArrayType),
        inner.map(lambda kind: t.MapType(t.StringType(), kind)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: t.StructType(
                [t.StructField(f"f{at}", kind) for at, kind in enumerate(kinds)]
            )
        ),
    ),
    max_leaves=8,
)


@given(st.lists(TYPES, min_size=1, max_size=4), st.sampled_from(["{} {} NOT NULL", "`{}`: {}"]))
def test_a_schema_of_types_that_json_has_is_accepted(kinds: list[t.DataType], form: str) -> None:
    texts = [form.format(f"x{at}", kind.simpleString()) for at, kind in enumerate(kinds)]
    assert headrace.json(", ".join(texts)).schema == ", ".join(texts)
    with pytest.raises(OptionError, match="field last has the type nothing"):
        headrace.json(", ".join([*texts, "last nothing"]))


@given(st.text() | st.text("id <>,:(`' STRUCT"))
def test_whatever_is_given_as_a_schema_is_accepted_or_refused(schema: str) -> None:
    with suppress(OptionError):
        assert headrace.json(schema)


@pytest.mark.parametrize(
    "kind",
    [t.BinaryType(), t.MapType(t.LongType(), t.LongType()), t.ArrayType(t.TimestampNTZType())],
)
def test_a_type_that_json_does_not_have_is_refused(kind: t.DataType) -> None:
    with pytest.raises(OptionError, match=r"The JSON schema's field x.* has the type .* STRING"):
        JsonDecoder(t.StructType([t.StructField("x", kind)]))


@pytest.mark.parametrize(
    ("package", "make", "extra"),
    [
        ("msgspec", lambda: headrace.json("id BIGINT"), "json"),
        ("fastavro", lambda: headrace.avro('"long"'), "avro"),
        ("google.protobuf", lambda: headrace.protobuf(b"", "shop.Order"), "protobuf"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, make: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SetupError, match=rf"run on every machine of the cluster: .*\[{extra}\]'"):
        make()


@pytest.mark.parametrize(("schema", "name"), [("a", "a"), ("s", r"s\.a")])
def test_a_field_that_is_there_twice_is_refused_before_a_task_meets_it(
    schema: str, name: str
) -> None:
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    columns = twice if schema == "a" else t.StructType([t.StructField("s", twice)])
    with pytest.raises(OptionError, match=f"has the field {name} twice; name it once"):
        headrace.json(columns).columns(None)


INNER = t.StructType([t.StructField("x", t.LongType())])
LAST = t.StructType(
    [
        t.StructField("s", t.LongType()),
        t.StructField("d", t.DecimalType(20, 10)),
        t.StructField("o", INNER),
        t.StructField("l", t.ArrayType(INNER)),
    ]
)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b'{"s":"x","s":1}', {"s": 1}),
        (b'{"s":1,"s":2}', {"s": 2}),
        (b'{"s":{"a":[1,"}"]},"s":9223372036854775807}', {"s": 2**63 - 1}),
        (b'{"s":"x","d":1.1234567890,"s":null}', {"d": Decimal("1.1234567890")}),
        (b'{"o":{"x":"a","x":1},"l":[{"x":[],"x":2}]}', {"o": {"x": 1}, "l": [{"x": 2}]}),
        (b'{"else":{"x":"a","x":1},"s":"x","s":1}', {"s": 1}),
    ],
)
def test_of_a_key_that_is_twice_the_last_one_counts(value: bytes, fields: dict[str, Any]) -> None:
    result = decoded(b"{}", value, b"{}", columns=LAST)
    assert result.reasons == {}
    nothing = {"s": None, "d": None, "o": None, "l": None}
    assert result.values.to_pylist() == [nothing, nothing | fields, nothing]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"s":1,"s":"x"}', "it does not fit the JSON schema: Expected `int | null`, got `str`"),
        (b'{"s":"x","s":"\\ud800"}', "it does not fit the JSON schema: Expected `int | null`"),
        (b'{"s":"x","s":1} {', "it does not fit the JSON schema: Expected `int | null`"),
        (b'{"s":"x","s":NaN}', "it does not fit the JSON schema"),
        (b'{"s":"x","s":1,"o":' + b"[" * 100_000, "it does not fit the JSON schema"),
    ],
)
def test_a_value_whose_last_key_does_not_fit_is_rejected(value: bytes, reason: str) -> None:
    result = decoded(value, columns=LAST)
    assert result.reasons[0].startswith(reason)
