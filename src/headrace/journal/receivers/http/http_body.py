"""Request bodies: reading within limits of size, time and memory, and parsing into records."""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Final, cast

import pyarrow as pa

from headrace.journal.receivers.http.http_message import HttpRejection, HttpRequest, retry_after
from headrace.journal.receivers.id_window import MAX_ID_CHARACTERS, is_message_id
from headrace.journal.receivers.json_text import (
    COMMAS_PER_RECORD,
    MalformedError,
    TooManyError,
    check_lines,
    too_many_commas,
    values_of,
)
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.settings import HttpSettings
from headrace.journal.records import SCHEMA, Records

_RETRY_S: Final = 1.0
"""Delay after which a sender may retry a request that got no memory (s). Other requests release
memory within about this time."""

_PIECE_BYTES: Final = 64 * 1024
"""Maximum size of a piece of decompressed data (bytes)."""

_COMPRESSED_BYTES: Final = 1024
"""Number of compressed bytes that are decompressed before other tasks may run. The number is small,
because even 1024 bytes can contain 50 empty gzip members, which take time."""

_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ENCODINGS: Final = ("identity", *_WINDOWS)
"""Supported values of the header Content-Encoding (RFC 9110, 8.4.1)."""

_KEY_HEADER: Final = "headrace-key"
_ID_HEADER: Final = "headrace-message-id"
_LINES: Final = "application/x-ndjson"
_JSON: Final = "application/json"
_WHOLE: Final = ("application/octet-stream", "text/plain")


class RequestBody:
    """Body of one request, whose memory counts towards the limit for all bodies together."""

    def __init__(self, request: HttpRequest, budget: MemoryBudget, settings: HttpSettings) -> None:
        self._request = request
        self._settings = settings
        self._budget = budget
        self._data = bytearray()
        self._reserved_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of the body read so far, after decompression (bytes)."""
        return self._reserved_bytes

    def take(self) -> bytes:
        """Return the decompressed body without copying it, and drop the reference to it.

        The body's memory counts towards the limit until `release`.
        """
        data, self._data = self._data, bytearray()
        return cast(bytes, data)  # the bytes are not changed any more

    async def read(self, form: "RequestFormat") -> None:
        """Read and decompress the whole body, while ``form`` counts its records.

        Raises:
            HttpRejection: The body is too large or has too many records (413), arrives too slowly
                (408), has no declared length (411), has an unsupported encoding (415), is damaged
                (400), or there is no memory for it now (429).
            SenderGoneError: The rest of the body will not arrive.
        """
        request = self._request
        encoding = request.value("content-encoding").lower() or "identity"
        encoding = "gzip" if encoding == "x-gzip" else encoding  # RFC 9110, 8.4.1.3
        if encoding not in ENCODINGS:
            raise HttpRejection(
                415,
                "Content-Encoding must be gzip, deflate or identity, and only one of them.",
                {"accept-encoding": ", ".join(ENCODINGS)},
            )
        length = request.value("content-length")
        if not length and not request.value("transfer-encoding"):
            raise HttpRejection(
                411,
                "The request does not declare the length of its body; send Content-Length, or"
                " Transfer-Encoding: chunked.",
                {"connection": "close"},  # the next bytes may be a body
            )
        self._check_sent(int(length or 0))
        timeout_s = None if request.is_whole else self._settings.body_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._read(Decompressor(encoding), form)
        except TimeoutError as error:
            raise HttpRejection(
                408, f"The body was not complete after {self._settings.body_s:g} s; send it faster."
            ) from error
        except DamagedError as error:
            raise HttpRejection(
                400, f"The body cannot be decompressed ({encoding}): {error}."
            ) from error

    def release(self) -> None:
        """Discard the body and release its memory, which no longer counts towards the limit."""
        self._data = bytearray()
        self._budget.release(self._reserved_bytes)
        self._reserved_bytes = 0

    async def _read(self, decompressor: "Decompressor", form: "RequestFormat") -> None:
        sent_bytes = 0
        while data := await self._request.read():
            sent_bytes += len(data)
            self._check_sent(sent_bytes)
            for piece in decompressor.pieces(data):
                form.count(piece)
                self._hold(piece)
                await asyncio.sleep(0)  # few bytes may decompress to many; other tasks get a turn
        decompressor.end()

    def _check_sent(self, sent_bytes: int) -> None:
        max_bytes = self._settings.max_body_bytes
        if sent_bytes > max_bytes:
            raise HttpRejection(
                413, f"The body has more than {max_bytes} bytes, its limit; send it in parts."
            )

    def _hold(self, piece: bytes) -> None:
        max_bytes = min(self._settings.max_decompressed_bytes, self._budget.max_bytes)
        if self._reserved_bytes + len(piece) > max_bytes:
            raise HttpRejection(
                413,
                f"The body has more than {max_bytes} bytes after decompression, its limit; send it"
                " in parts.",
            )
        if not self._budget.try_acquire(len(piece)):
            raise retry_after(
                _RETRY_S, "The receiver has no memory for more bodies now", "no memory"
            )
        self._reserved_bytes += len(piece)
        self._data += piece  # grows in place when large: the C library remaps its pages


class DamagedError(ValueError):
    """Error for compressed data that is damaged or truncated."""


class Decompressor:
    """Decompressor of a body that arrives in pieces; ``encoding`` is one of `ENCODINGS`.

    Its methods raise DamagedError for damaged or truncated data.
    """

    def __init__(self, encoding: str) -> None:
        self._window = _WINDOWS.get(encoding, 0)
        self._stream = zlib.decompressobj(self._window) if self._window else None
        self._inside = False
        self._is_over = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next bytes of the body, and yield the result in pieces of at most 64 KiB.

        Pieces follow at short intervals, so that other tasks can run between them. A piece may be
        empty, for instance for an empty gzip member.
        """
        if self._stream is None:
            yield data
            return
        for start in range(0, len(data), _COMPRESSED_BYTES):
            yield from self._decompress(self._stream, data[start : start + _COMPRESSED_BYTES])

    def _decompress(self, stream: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
        while data:
            if self._is_over:
                raise DamagedError("data follows its end")
            self._inside = True
            try:
                piece = stream.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise DamagedError(str(error)) from error
            if piece:
                yield piece
            data = stream.unconsumed_tail
            if stream.eof:
                data = stream.unused_data
                self._inside = False
                # A gzip file may have several members in a row; a zlib stream has one.
                self._is_over = self._window == zlib.MAX_WBITS
                self._stream = stream = zlib.decompressobj(self._window)
        yield b""

    def end(self) -> None:
        """Check that the compressed data is complete; raise DamagedError if it is not."""
        if self._inside:
            raise DamagedError("it is incomplete")


class RequestFormat:
    """Format of a request's body, from the headers: content type, record key and message id.

    Raises:
        HttpRejection: The content type is not supported (415), the message id is empty or too long
            (400), or the request has several message ids or keys (400).
    """

    def __init__(self, request: HttpRequest, settings: HttpSettings) -> None:
        self._settings = settings
        self.parts = 0
        self._type = request.media_type
        if self._type not in (_LINES, _JSON, *_WHOLE):
            raise HttpRejection(
                415, f"Content-Type must be {_JSON}, {_LINES}, {' or '.join(_WHOLE)}."
            )
        self._key = _single(request, _KEY_HEADER)
        self.message_id = message_id_of(request)

    def count(self, piece: bytes) -> None:
        """Count record separators in a piece of the body: line ends, or commas of a JSON array.

        Raises:
            HttpRejection: There are too many separators for the allowed number of records (413).
        """
        most = self._settings.max_records
        if self._type == _LINES:
            self.parts += piece.count(b"\n")
            if self.parts > most:
                raise _too_many(f"The body has more than {most} lines, the limit for a request")
        elif self._type == _JSON:
            self.parts += piece.count(b",")
            if self.parts >= most * COMMAS_PER_RECORD:
                raise _too_many(too_many_commas(most))

    def records(self, body: bytes, timestamp_ms: int) -> Records:
        """Parse a body, and return its records, 1 or more, with the request's key if it has one.

        Raises:
            HttpRejection: The body is malformed or has no records (400), or has too many (413).
        """
        try:
            records = self._values(body, timestamp_ms)
        except MalformedError as error:
            raise HttpRejection(400, str(error)) from error
        except TooManyError as error:
            raise _too_many(str(error)) from error
        if not records.count:
            raise HttpRejection(400, "The body has no records; send one or more.")
        batch, count = records.batch, records.count
        if self._key is not None:
            self._check_key(self._key, count)
            key = pa.scalar(self._key.encode("latin-1"), pa.binary())
            batch = _with(batch, "key", pa.repeat(key, count))
        return Records(batch)

    def _check_key(self, key: str, count: int) -> None:
        """Raise HttpRejection if ``count`` copies of the key, one per record, are too large.

        The limit for all copies together is ``max_decompressed_bytes``.
        """
        most_bytes = self._settings.max_decompressed_bytes
        if len(key) * count > most_bytes:
            raise _too_many(
                f"The key has {len(key)} bytes, and its copies for {count} records exceed the"
                f" {most_bytes} bytes that a body may have"
            )

    def _values(self, body: bytes, timestamp_ms: int) -> Records:
        if self._type in _WHOLE:
            return Records.of_buffers([body], timestamp_ms=timestamp_ms)
        if self._type == _JSON:
            values = values_of(body, self._settings.max_records)
            return Records.of_buffers(values, timestamp_ms=timestamp_ms)
        if self._settings.check_json:
            check_lines(body)
        return Records.of_lines(body, timestamp_ms=timestamp_ms)


def message_id_of(request: HttpRequest) -> str | None:
    """Return the message id in a request's headers, or None if the request has none.

    Raises:
        HttpRejection: The id is empty or too long, or the request has several ids (400).
    """
    message_id = _single(request, _ID_HEADER)
    if message_id is not None and not is_message_id(message_id):
        raise HttpRejection(400, f"{_ID_HEADER} must have 1 to {MAX_ID_CHARACTERS} characters.")
    return message_id


def _too_many(why: str) -> HttpRejection:
    return HttpRejection(413, f"{why}; send it in parts.")


def _single(request: HttpRequest, name: str) -> str | None:
    values = request.values(name)
    if len(values) > 1:
        raise HttpRejection(
            400, f"{name} occurs {len(values)} times in the request's headers; send it once."
        )
    return values[0] if values else None


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
