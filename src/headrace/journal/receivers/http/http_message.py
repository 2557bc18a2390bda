"""HTTP/1.1 requests and answers (RFC 9110 and 9112), and checks of request headers."""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import httptools

from headrace.journal.receivers.event_log import Rejections
from headrace.journal.receivers.settings import HttpSettings

JSON: Final = "application/json"

READ_BYTES: Final = 32 * 1024
"""Maximum size of one read from a connection (bytes). Reading pauses while this many bytes of a
body wait for the handler."""

_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)

_ONCE: Final = (b"authorization", b"content-type", b"content-encoding")

KEPT_HEADERS: Final = frozenset(
    (
        *_ONCE,
        b"connection",
        b"content-length",
        b"expect",
        b"headrace-key",
        b"headrace-message-id",
        b"host",
        b"transfer-encoding",
    )
)
"""Lower-case names of the headers that the receiver uses. It drops all other headers, to save
memory."""

Headers: TypeAlias = dict[bytes, list[bytes]]
"""Values of each header of a request, by the header's name in lower case."""


class SenderGoneError(Exception):
    """Error for a request whose body will not arrive completely.

    The sender has closed the connection, or has sent bytes that are not HTTP.
    """


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Answer to a request. ``headers`` are without date, content type and length."""

    status: int
    body: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether the answer's headers say that the connection closes after this answer."""
        return self.headers.get("connection") == "close"

    def encoded(self, *, is_last: bool, has_body: bool = True) -> bytes:
        """Encode the answer as bytes.

        ``is_last`` adds the header ``connection: close``. ``has_body`` is false for the answer to a
        HEAD request, which has no body.
        """
        lines = [
            _status_line(self.status),
            f"date: {_date(int(time.time()))}",
            f"content-type: {self.media_type}",
            f"content-length: {len(self.body)}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if is_last and not self.is_last:
            lines.append("connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        return head + self.body if has_body else head


@lru_cache
def _status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"


@lru_cache(maxsize=1)
def _date(at_s: int) -> str:
    return formatdate(at_s, usegmt=True)


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """Return an answer whose body is ``value`` as JSON. Default status: 200."""
    return HttpAnswer(status, json.dumps(value, separators=(",", ":")).encode())


class HttpRejection(Exception):  # noqa: N818  # it is an answer, not a fault of ours
    """Exception that rejects a request with an error answer.

    The answer has ``status`` and ``headers``. Its body is JSON with a sentence that names the fault
    and the remedy, without secrets. ``kind`` is the label under which the rejection is counted.
    Default: ``HTTP`` and the status.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        headers: dict[str, str] | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.kind = kind or f"HTTP {status}"
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}

    @property
    def body(self) -> bytes:
        """Body of the error answer: a JSON object with the sentence under ``error``."""
        return json.dumps({"error": self.sentence}).encode()

    @property
    def answer(self) -> HttpAnswer:
        """Error answer to the rejected request."""
        return HttpAnswer(self.status, self.body, JSON, self.headers)

    def count(self, rejections: Rejections) -> None:
        """Count this rejection under its ``kind``."""
        rejections.count(self.kind, self.sentence)


def retry_after(delay_s: float, why: str, kind: str | None = None) -> HttpRejection:
    """Return a rejection with status 429 and a header Retry-After.

    ``delay_s`` is the time until a retry can succeed (s); the header has it in whole seconds.
    ``why`` is the beginning of the error message.
    """
    wait_s = max(1, math.ceil(delay_s))
    sentence = f"{why}; send the request again in {wait_s} s."
    return HttpRejection(429, sentence, {"retry-after": str(wait_s)}, kind)


MALFORMED: Final = HttpRejection(
    400, "The request is not well-formed HTTP/1.1; correct its first line, headers or chunks."
)
_NOT_CHUNKED: Final = HttpRejection(
    501, "Transfer-Encoding must be chunked, and nothing else; send it so, or send Content-Length."
)
_AMBIGUOUS: Final = HttpRejection(
    400,
    "The request has both Content-Length and Transfer-Encoding, so its end is ambiguous; send only"
    " one of these headers.",
)


class HttpRequest:
    """HTTP request with complete headers, whose body may still be arriving.

    Attributes:
        method: HTTP method in capitals, such as ``POST``.
        path: Decoded path of the request target, without the query.
        is_whole: Whether the whole body has arrived.

    Args:
        method: HTTP method in capitals.
        target: Request target, in origin or absolute form (RFC 9112, 3.2).
        headers: Headers whose names are in `KEPT_HEADERS`.
        wanted: Called whenever the handler waits for more of the body.
    """

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self.method = method
        self.path = _path(target)
        self.is_whole = False
        self._headers = headers
        self._wanted = wanted
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._is_dropped = self._has_failed = False
        self._waiter: asyncio.Future[None] | None = None

    def values(self, name: str) -> list[str]:
        """Return all values of a header, or [] if it is missing; ``name`` is in lower case."""
        return [value.decode("latin-1") for value in self._headers.get(name.encode(), ())]

    def value(self, name: str) -> str:
        """Return the first value of a header, or "" if it is missing; ``name`` is in lower case."""
        values = self._headers.get(name.encode())
        return values[0].decode("latin-1") if values else ""

    @property
    def media_type(self) -> str:
        """Content type of the body in lower case, without parameters; "" if not declared."""
        return self.value("content-type").partition(";")[0].strip().lower()

    @property
    def is_behind(self) -> bool:
        """Whether reading must pause, because too many bytes of the body wait for the handler."""
        return self._waiting_bytes >= READ_BYTES

    async def read(self) -> bytes:
        """Wait for the next bytes of the body, and return them; return b"" at the end of the body.

        Raises:
            SenderGoneError: The rest of the body will not arrive.
        """
        while not self._pieces:
            if self._has_failed:
                raise SenderGoneError
            if self.is_whole:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            self._wanted()
            await self._waiter
        if self._has_failed:
            raise SenderGoneError
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._waiting_bytes = [], 0
        if not self.is_whole:
            self._wanted()
        return data

    def add(self, data: bytes) -> None:
        """Add a piece of the body for the handler, unless the body is dropped."""
        if not self._is_dropped:
            self._pieces.append(data)
            self._waiting_bytes += len(data)
            self._wake()

    def end(self) -> None:
        """Mark the body as complete, and wake the handler."""
        self.is_whole = True
        self._wake()

    def fail(self) -> None:
        """Make `read` raise SenderGoneError, because the rest of the body will not arrive."""
        self._has_failed = True
        self._wake()

    def drop(self) -> None:
        """Discard waiting and later bytes of the body, because no handler will read them."""
        self._is_dropped = True
        self._pieces, self._waiting_bytes = [], 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _path(target: bytes) -> str:
    if absolute := _ABSOLUTE.match(target):
        target = target[absolute.end() :] or b"/"
    path = target.partition(b"?")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


_Check: TypeAlias = Callable[[str, Headers], bool]

_CHECKS: Final[tuple[tuple[_Check, HttpRejection], ...]] = (
    (lambda version, _: version not in ("1.0", "1.1"), MALFORMED),
    (lambda version, headers: version == "1.1" and b"host" not in headers, MALFORMED),  # 3.2
    (lambda _, headers: len(headers.get(b"host", ())) > 1, MALFORMED),
    (lambda _, headers: len(headers.get(b"content-length", ())) > 1, MALFORMED),
    (
        lambda _, headers: {b"content-length", b"transfer-encoding"} <= headers.keys(),
        _AMBIGUOUS,  # 6.1: a proxy that uses the other header would split the requests differently
    ),
    (
        lambda _, headers: (
            b"transfer-encoding" in headers
            and [value.lower() for value in headers[b"transfer-encoding"]] != [b"chunked"]
        ),
        _NOT_CHUNKED,
    ),
    *(
        # A proxy in front of the receiver may have checked another one of the values.
        (
            lambda _, headers, name=name: len(headers.get(name, ())) > 1,
            HttpRejection(
                400, f"The request has the header {name.decode().title()} twice; send it once."
            ),
        )
        for name in _ONCE
    ),
)
"""Checks of a request's HTTP version and headers that RFC 9112 requires and llhttp does not make.
Each entry has a function that returns whether a request is wrong, and the rejection of such a
request."""


def refusal(version: str, headers: Headers) -> HttpRejection | None:
    """Check a request's HTTP version and headers; return a rejection, or None if both are valid."""
    for is_wrong, rejection in _CHECKS:
        if is_wrong(version, headers):
            return rejection
    return None


def too_long(settings: HttpSettings) -> HttpRejection:
    """Return the rejection for headers that are too long, or too much text between chunks."""
    return HttpRejection(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The headers have more than the {settings.max_header_bytes} bytes allowed; send fewer or"
        " shorter ones.",
    )


def protocol_error(error: httptools.HttpParserError) -> HttpRejection:
    """Return the rejection for an error of the parser.

    The rejection does not contain the error's text, which may quote secrets of the request.
    """
    if "Content-Length" in (text := str(error)) and "Transfer-Encoding" in text:
        return _AMBIGUOUS
    return MALFORMED
