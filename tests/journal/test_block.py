import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.samples import numbered, records
from tests.services.examples import examples

from headrace.errors import CorruptionError
from headrace.journal.block import MAX_RECORDS, Compression, decode, encode, unpacked_sizes
from headrace.journal.frame import HEADER_BYTES, FrameHeader
from headrace.journal.records import SCHEMA, Records

ID = bytes(range(16))
COMPRESSIONS: list[Compression] = ["lz4", "zstd", "none"]


def stored(some: Records, compression: Compression = "none", first: int = 5) -> bytes:
    block = encode(
        some, journal_id=ID, writer=b"w" * 16, lane=3, first=first, compression=compression
    )
    return b"".join(block.parts)


def read(data: bytes) -> tuple[FrameHeader, Records]:
    header, batch = decode(pa.py_buffer(data), "the block", SCHEMA.names)
    return header, Records(batch)


@given(records(least=1), st.sampled_from(COMPRESSIONS), st.integers(0, 2**62))
def test_what_is_read_is_what_was_written(
    some: Records, compression: Compression, first: int
) -> None:
    header, got = read(stored(some, compression, first))
    assert got == some
    got.batch.validate(full=True)
    assert (header.journal_id, header.writer, header.lane) == (ID, b"w" * 16, 3)
    assert (header.first, header.until) == (first, first + some.count)
    assert header.raw_bytes == some.bytes
    times = some.batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert (header.earliest_ms, header.latest_ms) == (min(times), max(times))


@given(records(least=2), st.data())
def test_a_part_of_other_records_is_written_as_it_is(some: Records, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, some.count - 1))
    until = data.draw(st.integers(start + 1, some.count))
    _, got = read(stored(some.slice(start, until)))
    assert got == some.slice(start, until)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_bit_flip_in_any_byte_is_found(compression: Compression) -> None:
    data = stored(numbered(0, 3), compression)
    for at in range(len(data)):
        for bit in (0, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptionError, match="the block is damaged"):
                read(bytes(flipped))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_block_cut_at_any_byte_is_found(compression: Compression) -> None:
    data = stored(numbered(0, 3), compression)
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match="the block is damaged"):
            read(data[:size])
    with pytest.raises(CorruptionError, match="the block is damaged"):
        read(data + b"\0")


def _with_crc(fields: bytes) -> bytes:
    return fields + struct.pack("<I", zlib.crc32(fields))


def _lies() -> Iterator[tuple[str, FrameHeader]]:
    header, _ = read(stored(numbered(0, 3)))
    yield "length", replace(header, payload_bytes=2**62)
    yield "length", replace(header, payload_bytes=2**31)
    yield "records", replace(header, count=2**31)
    yield "length", replace(header, payload_bytes=0)
    yield "count", replace(header, count=2**32 - 1)
    yield "checksum", replace(header, payload_crc=0)


@pytest.mark.parametrize(("what", "header"), list(_lies()))
def test_a_header_that_lies_is_not_believed(what: str, header: FrameHeader) -> None:
    """Its own checksum is right: nothing is allocated by what it says."""
    data = header.encode() + stored(numbered(0, 3))[HEADER_BYTES:]
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="the block is damaged"):
            read(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(most, pool.max_memory() - before) < 2**20, what


def test_a_newer_version_is_refused_by_name() -> None:
    data = stored(numbered(0, 3))
    newer = _with_crc(data[:7] + b"\x02" + data[8 : HEADER_BYTES - 4]) + data[HEADER_BYTES:]
    with pytest.raises(CorruptionError, match="version 2, but this Headrace reads version 1"):
        read(newer)


def test_without_compression_the_records_buffers_are_the_payload() -> None:
    some = numbered(0, 1000)
    block = encode(some, journal_id=ID, writer=ID, lane=0, first=0, compression="none")
    texts = some.batch.column("value").buffers()[2]
    assert any(
        isinstance(part, pa.Buffer) and part.address == texts.address for part in block.parts
    )


def test_without_compression_nothing_is_copied_when_it_is_read() -> None:
    data = pa.py_buffer(stored(numbered(0, 1000)))
    _, batch = decode(data, "the block", ["value"])
    text = batch.column("value").buffers()[2]
    assert data.address <= text.address < data.address + data.size


def test_columns_come_in_the_order_asked_for_and_those_not_stored_are_null() -> None:
    data = pa.py_buffer(stored(Records.of([b"a", b"b"], ids=["1", "2"], timestamp_ms=0)))
    _, batch = decode(data, "the block", ["id", "key", "value"])
    assert batch.to_pydict() == {"id": ["1", "2"], "key": [None, None], "value": [b"a", b"b"]}


@examples(300)
@given(
    records(least=1),
    st.sampled_from(COMPRESSIONS),
    st.lists(
        st.tuples(st.integers(0, 2_000), st.sampled_from([-1, 1, 255, 10_000, 2**31 - 1, 2**62])),
        min_size=1,
        max_size=4,
    ),
)
def test_a_payload_that_was_changed_with_its_checksum_is_refused_or_whole(
    some: Records, compression: Compression, changes: list[tuple[int, int]]
) -> None:
    """A writer of the journal can make the checksums right; that must not crash us."""
    header, _ = read(data := stored(some, compression))
    payload = bytearray(data[HEADER_BYTES:])
    for place, value in changes:
        at = place % (len(payload) // 8) * 8
        payload[at : at + 8] = struct.pack("<q", value)
    right = replace(header, payload_crc=zlib.crc32(payload)).encode() + bytes(payload)
    try:
        _, batch = decode(pa.py_buffer(right), "the block", SCHEMA.names)
    except CorruptionError:
        return
    batch.validate(full=True)
    batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
    assert batch.num_rows == some.count


def _made(batch: pa.RecordBatch, compression: str | None = None, **says: Any) -> bytes:
    """A block of this batch, whatever it and its header say, with right checksums."""
    header, _ = read(stored(numbered(0, batch.num_rows)))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    made = replace(header, payload_crc=zlib.crc32(payload), payload_bytes=len(payload), **says)
    return made.encode() + payload


def _column(kind: pa.DataType, offsets: list[int], text: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)), pa.py_buffer(text)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("value", _column(pa.binary(), [0, 2**30, 4], b"abcd")),
        ("value", _column(pa.binary(), [0, -5, 4], b"abcd")),
        ("id", _column(pa.string(), [0, 2, 4], b"\xff\xfe\xfd\xfc")),
        ("value", pa.array(["a", "b"], pa.large_string())),
        ("timestamp", pa.array([2**62, 2**62], pa.timestamp("ms", tz="UTC"))),
        ("key", pa.array([[1], [2]])),
    ],
)
def test_what_arrow_would_believe_is_validated_first(name: str, column: pa.Array) -> None:
    with pytest.raises(CorruptionError, match="its records cannot be read"):
        read(_made(pa.RecordBatch.from_arrays([column], names=[name])))


_ZEROS = 300 * 2**20


@pytest.mark.parametrize(
    ("raw_bytes", "allowed"), [(10, 64 * 2**20 + 10 + 2048), (2**40, 256 * 2**20)]
)
@pytest.mark.parametrize("columns", [["value"], ["key"]])
def test_a_small_payload_that_would_take_much_memory_is_refused_before_it_is_unpacked(
    raw_bytes: int, allowed: int, columns: list[str]
) -> None:
    zeros = _column(pa.binary(), [0, _ZEROS], bytes(_ZEROS))
    bomb = _made(pa.RecordBatch.from_arrays([zeros], names=["value"]), "zstd", raw_bytes=raw_bytes)
    assert len(bomb) < 40_000
    with pytest.raises(
        CorruptionError,
        match=rf"the block is damaged: its records cannot be read: its \d+ bytes would unpack to"
        rf" {_ZEROS + 8} bytes, more than the {allowed} bytes that are allowed for 1 records",
    ):
        decode(pa.py_buffer(bomb), "the block", columns)


def test_a_dictionary_before_the_records_is_refused_before_it_is_unpacked() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([bytes(2**20)]))
    bomb = _made(pa.RecordBatch.from_arrays([column], names=["value"]), "zstd")
    with pytest.raises(
        CorruptionError, match="it has an Arrow message of type 2 in place of its records"
    ):
        read(bomb)


def test_more_records_than_a_block_may_have_are_refused_before_a_column_is_made() -> None:
    header, _ = read(data := stored(numbered(0, 3)))
    lie = replace(header, count=2**32 - 1).encode() + data[HEADER_BYTES:]
    with pytest.raises(CorruptionError, match=f"says 4294967295 records, more than {MAX_RECORDS}"):
        read(lie)


@pytest.mark.integration
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "made",
    [
        lambda: Records.of([bytes(10 * 2**20)] * 30),  # it takes little as zstd
        lambda: Records.of([b"", None], ids=["x" * 70 * 2**20, None]),
        lambda: Records.of([None] * 40, headers=[[("", None)] * 300_000] * 40),
        lambda: Records.of([b"x"] * 2_000_000),
    ],
    ids=["one byte again and again", "a long id", "empty headers", "many small"],
)
def test_whatever_was_written_is_read(
    made: Callable[[], Records], compression: Compression
) -> None:
    some = made()
    _, got = read(stored(some, compression))
    assert got == some


def test_the_sizes_of_all_buffers_are_those_that_arrow_unpacks() -> None:
    some = Records.of(
        [b"v" * 5_000] * 50,
        keys=[b"k" * 300] * 50,
        ids=["i" * 90] * 50,
        headers=[[("name", b"w" * 70)] * 3] * 50,
    )
    payload = pa.py_buffer(stored(some, "zstd")[HEADER_BYTES:])
    sizes, _ = unpacked_sizes(payload)
    assert some.batch.nbytes <= sum(sizes) <= some.batch.nbytes + 64 * len(sizes)
