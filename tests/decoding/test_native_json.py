"""The native engine returns what the Python engine returns, for every value.

Left out where `make native` has not built it; CI requires it.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from tests.decoding import fuzz
from tests.services.examples import examples

from headrace import __version__
from headrace.core import native
from headrace.decoding.json_format import JsonDecoder
from headrace.decoding.native_json import with_native_json

COLUMNS: Final = t.StructType(
    [
        t.StructField("text", t.StringType()),
        t.StructField("is_paid", t.BooleanType()),
        t.StructField("tiny", t.ByteType()),
        t.StructField("small", t.ShortType()),
        t.StructField("number", t.IntegerType(), nullable=False),
        t.StructField("large", t.LongType()),
        t.StructField("double", t.DoubleType()),
        t.StructField("float", t.FloatType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
    ]
)

# The first text of each field fits, and most rows have it.
MEMBERS: Final[Mapping[str, Sequence[str]]] = {
    "text": (
        '"x"', '""', '"é\\u00e9\\n"', '"\\ud83d\\ude00"', '"\\ud800"', "null", "1", '"a\\x"',
        '"tab\tx"', f'"{"long " * 40}"', '"q\\"q"', '"\x7f"', '"\\u0000"', '"\\/\\b\\f\\r"',
    ),
    "is_paid": ("true", "false", "null", "1", '"true"', "tru", "True"),
    "tiny": ("1", "-128", "127", "128", "-129", "null", "1.0", "1e1", "-0", "01", "+1"),
    "small": ("1", "32767", "32768", "-32768", "null"),
    "number": ("1", "2147483647", "2147483648", "-2147483648", "null", "1.5", '"1"'),
    "large": (
        "0", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
        "123456789012345678", "1234567890123456789", "null",
    ),
    "double": (
        "1", "1.5", "-0.0", "1e308", "1e309", "0.1", "123456789.123456789", "null", '"1"', "NaN",
        "1.", ".5", "5e-324", "1E5", "12345678901234567890123", "2.2250738585072011e-308",
    ),
    "float": ("1", "1.5", "3.4e38", "3.5e38", "0.1", "1e-46", "null", "3.4028235677973362e38"),
    "day": (
        '"2026-01-31"', '"2026-02-29"', '"2024-02-29"', '"0001-01-01"', '"0000-01-01"', "1",
        '"9999-12-31"', '"2026-1-1"', '"2026-01-01T00:00:00Z"', "null", '"1969-12-31"',
        '"1900-03-01"', '"2026\\u002d01-31"',
    ),
    "at": (
        '"2026-01-31T12:00:00Z"', '"2026-01-31T12:00:00"', '"2026-01-31T12:00:00.123Z"', "0",
        '"2026-01-31T12:00:00.123456+02:00"', '"2026-01-31 12:00:00Z"', '"2026-01-31T12:00:60Z"',
        '"2026-01-31T24:00:00Z"', '"2026-01-31T12:00:00.1234567Z"', '"2026-01-31T12:00:00-05:30"',
        '"0001-01-01T00:00:00+01:00"', '"9999-12-31T23:59:59.999999Z"', "null",
        '"2026-01-31T12:00Z"', '"2026-01-31T12:00:00.1Z"', '"2026-01-31T12:00:00+0200"',
        '"2026-01-31t12:00:00z"', '"2026-01-31T12:00:00+24:00"', '"2026-01-31T12:00:00-23:59"',
    ),
}  # fmt: skip
UNKNOWN: Final = (
    "1", '[1,2,{"a":[]}]', "{}", "[]", "[1,]", '{"a":1,}', "{1:2}", '"\\u12"', "nul", "1e999", "-",
    '"ok"', '{"a" : null , "b":[ ]}', "[[[[[[1]]]]]]", "[" * 70 + "]" * 70, '{"a":"\\ud800"}',
)  # fmt: skip
WHOLE: Final = (
    b"", b"{}", b"[]", b"null", b"{", b'{"number":1}', b' {"number":1} ', b'{"\\u006eumber":4}',
    b'{"number":1,"number":2}', b'{"number":"x","number":2}', b'\xef\xbb\xbf{"number":1}',
    b'{"Number":4}',
)  # fmt: skip


def nasty(rows: int, seed: int) -> list[bytes | None]:
    """Make objects of which a third do not fit, in all the ways above."""
    chance = random.Random(seed)
    return [*(_nasty(chance) for _ in range(rows)), *WHOLE]


def _nasty(chance: random.Random) -> bytes | None:
    members = [
        (name, texts[0] if chance.random() < 0.93 else chance.choice(texts))
        for name, texts in MEMBERS.items()
        if chance.random() < 0.9
    ]
    if chance.random() < 0.1:
        chance.shuffle(members)
    if chance.random() < 0.05:
        members.append(chance.choice(members or [("text", '"x"')]))
    if chance.random() < 0.1:
        members.insert(chance.randint(0, len(members)), ("unknown", chance.choice(UNKNOWN)))
    space = chance.choice(("", "", "", " ", "\n"))
    text = ",".join(f'{space}"{name}"{space}:{value}{space}' for name, value in members)
    text = f"{{{text}}}"
    if chance.random() < 0.02:
        text = text[: chance.randrange(len(text))]
    if chance.random() < 0.02:
        text += chance.choice((" ", "x", "{}", "\n"))
    value = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.01:
        value = value[:3] + b"\xff" + value[3:]
    return None if chance.random() < 0.01 else value


def check(values: pa.Array, asked: Sequence[str] | None = None) -> None:
    """Check that both engines return the same for these values."""
    python = JsonDecoder(COLUMNS, asked)
    native = with_native_json(COLUMNS, asked, python)
    assert native is not python
    expected, result = python.decode(values), native.decode(values)
    assert result.reasons == expected.reasons
    assert result.values.type == expected.values.type
    result.values.validate(full=True)
    assert result.values.equals(expected.values)


def test_both_engines_return_the_same_columns_and_reasons() -> None:
    values = pa.array(nasty(60_000, seed=7), pa.binary())
    check(values)
    check(values, asked=("at", "text"))
    check(values.slice(100, 500))
    check(values[:0])
    check(pa.array(nasty(100, seed=8), pa.large_binary()))


@pytest.mark.nightly
@examples(250)
@given(fuzz.batches(st.integers(0, 2**32).map(lambda seed: nasty(1, seed)[0] or b"")))
def test_both_engines_return_the_same_for_damaged_values(values: list[bytes]) -> None:
    check(pa.array(values, pa.binary()))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_both_engines_return_the_same_for_ten_million_values(seed: int) -> None:
    check(pa.array(nasty(100_000, seed), pa.binary()))


def test_a_value_that_surely_fits_is_not_decoded_twice() -> None:
    values = pa.array([b'{"number": 1, "text": "tea", "at": "2026-01-31T12:00:00Z"}'] * 3)
    refusing = SimpleNamespace(decode=None)
    result = with_native_json(COLUMNS, None, refusing).decode(values)
    assert [row["text"] for row in result.values.to_pylist()] == ["tea"] * 3


def test_a_nested_schema_is_decoded_in_python(caplog: pytest.LogCaptureFixture) -> None:
    columns = t.StructType([t.StructField("tags", t.ArrayType(t.StringType()))])
    python = JsonDecoder(columns)
    with caplog.at_level(logging.INFO):
        assert with_native_json(columns, None, python) is python
        assert with_native_json(columns, None, python) is python
    assert [record.message for record in caplog.records] == [
        "JSON is decoded in Python: the native engine has no array<string> (field tags)."
    ]


def test_an_engine_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "__version__", "0.0.9")
    native.native_engine.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert native.native_engine() is None
        assert native.native_engine() is None
    native.native_engine.cache_clear()
    assert [record.message for record in caplog.records] == [
        f"The Python engine is used: headrace-native is {__version__}, and Headrace is 0.0.9;"
        " install the same version of both."
    ]
