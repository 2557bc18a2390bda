"""Bodies that were compressed, in small pieces, so that nobody is made to hold a large one."""

import zlib
from collections.abc import Iterator
from typing import Final

_PIECE_BYTES: Final = 64 * 1024
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ENCODINGS: Final = ("identity", *_WINDOWS)
"""The values of Content-Encoding that are understood (RFC 9110, 8.4.1)."""


class DamagedError(ValueError):
    """What should be compressed is not, or breaks off."""


class Decompressor:
    """Takes a compressed body as it comes.

    Args:
        encoding: One of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._window = _WINDOWS.get(encoding)
        self._stream = self._begun()
        self._inside = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these bytes give, at most 64 KiB at a time; whoever stops asking holds no more.

        Raises:
            DamagedError: They are not what they should be.
        """
        if self._stream is None:
            yield data
            return
        while data:
            self._inside = True
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise DamagedError(str(error)) from error
            if piece:
                yield piece
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data = self._stream.unused_data
                self._next_member(data)

    def end(self) -> None:
        """Say that no more comes.

        Raises:
            DamagedError: It breaks off.
        """
        if self._inside:
            raise DamagedError("it breaks off")

    def _next_member(self, data: bytes) -> None:
        """A gzip file may have several members, one after the other; a zlib stream is alone."""
        self._inside = False
        if data and self._window == zlib.MAX_WBITS:
            raise DamagedError("something follows its end")
        self._stream = self._begun()

    def _begun(self) -> "zlib._Decompress | None":
        return None if self._window is None else zlib.decompressobj(self._window)
