"""Compressed bodies: what comes out is what went in, in small pieces, whole or not at all."""

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.receivers.http.http_body import DamagedError, Decompressor

compressions: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


def decompressed(encoding: str, data: bytes, cuts: list[int]) -> bytes:
    decompressor = Decompressor(encoding)
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found, start = b"", 0
    for end in ends:
        for piece in decompressor.pieces(data[start:end]):
            assert len(piece) <= 64 * 1024 or encoding == "identity"
            found += piece
        start = end
    decompressor.end()
    return found


@given(
    st.sampled_from(sorted(compressions)),
    st.binary(max_size=300),
    st.integers(1, 2_000),
    st.lists(st.integers(0, 10_000), max_size=5),
)
def test_however_it_comes_it_is_what_was_compressed(
    encoding: str, data: bytes, times: int, cuts: list[int]
) -> None:
    data *= times
    assert decompressed(encoding, compressions[encoding](data), cuts) == data


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_breaks_off_at_any_byte_is_damaged(encoding: str) -> None:
    data = compressions[encoding](b"some data" * 20)
    for end in range(1, len(data)):
        with pytest.raises(DamagedError, match="breaks off"):
            decompressed(encoding, data[:end], [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_follows_or_is_changed_is_damaged(encoding: str) -> None:
    data = compressions[encoding](b"some data" * 20)
    with pytest.raises(DamagedError):
        decompressed(encoding, data + b"more", [])
    with pytest.raises(DamagedError):
        decompressed(encoding, data[:-1] + bytes([data[-1] ^ 1]), [])


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.lists(st.integers(0, 300)))
def test_the_members_of_a_gzip_file_come_one_after_the_other(
    members: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(gzip.compress(member) for member in members)
    assert decompressed("gzip", data, cuts) == b"".join(members)
