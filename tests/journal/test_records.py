from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.samples import records

from headrace.errors import OptionError
from headrace.journal.records import SCHEMA, Records


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))))
def test_lines_are_records_whatever_ends_them(lines: list[bytes]) -> None:
    for end in (b"\n", b"\r\n"):
        got = Records.of_lines(b"".join(line + end for line in lines), timestamp_ms=7)
        assert got == Records.of(lines, timestamp_ms=7)


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n"]), max_size=8).map(b"".join))
def test_a_last_line_may_lack_its_end(data: bytes) -> None:
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    # Bytes after the last newline, if any, are a line without an end to be taken off.
    expected[-1:] = [last] if (last := data.rpartition(b"\n")[2]) else []
    got = Records.of_lines(data, timestamp_ms=7)
    assert got.batch.column("value").to_pylist() == expected
    got.batch.validate(full=True)


@given(st.lists(st.binary()))
def test_buffers_of_any_kind_are_records(values: list[bytes]) -> None:
    views: list[Any] = [bytearray(value) for value in values]
    got = Records.of_buffers(views, timestamp_ms=7)
    assert got == Records.of(values, timestamp_ms=7)
    got.batch.validate(full=True)


def test_a_single_buffer_is_shared() -> None:
    value = b"a" * 100
    shared = Records.of_buffers([value], timestamp_ms=7).batch.column("value").buffers()[2]
    assert shared.address == pa.py_buffer(value).address


def test_every_column_is_kept() -> None:
    got = Records.of(
        [b"a", None],
        keys=[None, b"k"],
        headers=[[("h", b"1"), ("h", None)], []],
        ids=["é", None],
        timestamp_ms=1_700_000_000_000,
    )
    first, second = got.batch.to_pylist()
    assert first["timestamp"].timestamp() == 1_700_000_000
    del first["timestamp"], second["timestamp"]
    pairs = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert first == {"key": None, "value": b"a", "headers": pairs, "id": "é"}
    assert second == {"key": b"k", "value": None, "headers": None, "id": None}


@given(records())
def test_bytes_are_those_of_keys_values_and_headers(some: Records) -> None:
    expected = 0
    for row in some.batch.to_pylist():
        pairs = row["headers"] or []
        held = [row["key"], row["value"], *(p["key"].encode() for p in pairs)]
        held += [pair["value"] for pair in pairs]
        expected += sum(len(each or b"") for each in held)
    assert some.bytes == expected


@given(records(), st.data())
def test_parts_put_together_are_the_whole(some: Records, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, some.count))
    parts = [some.slice(0, at), some.slice(at, some.count)]
    assert [part.count for part in parts] == [at, some.count - at]
    assert sum(part.bytes for part in parts) == some.bytes
    assert Records.concat(parts) == some


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.journal.records._MAX_BYTES", 4)
    assert Records.of_lines(b"a\nb\n", timestamp_ms=0).count == 2
    with pytest.raises(OptionError, match="The lines have 5 bytes, more than the maximum of 4"):
        Records.of_lines(b"a\nb\nc", timestamp_ms=0)


def test_no_records_put_together_are_none() -> None:
    assert Records.concat([]).count == 0
    assert Records.concat([]).batch.schema == SCHEMA


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(OptionError, match="key has 1 values for 2 records"):
        Records.of([b"a", b"b"], timestamp_ms=0, keys=[b"k"])
    with pytest.raises(OptionError, match="headers has 0 values for 2 records"):
        Records.of([b"a", b"b"], timestamp_ms=0, headers=[])
    with pytest.raises(OptionError, match="id has 3 values for 2 records"):
        Records.of([b"a", b"b"], timestamp_ms=0, ids=["1", "2", "3"])
