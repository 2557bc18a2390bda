"""Requests and answers of HTTP/1.1 (RFC 9110 and 9112), and what is refused of them."""

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
"""The most that is read of a connection at once, and that waits to be parsed or taken."""

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
"""Headers that mean something here; no other one takes memory."""

Headers: TypeAlias = dict[bytes, list[bytes]]
"""Values by name, which is in small letters."""


class SenderGoneError(Exception):
    """The rest of a body will not come: its sender has gone, or has sent what is no HTTP."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer; ``headers`` are those besides its type and length."""

    status: int
    body: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with it."""
        return self.headers.get("connection") == "close"

    def encoded(self, *, is_last: bool, has_body: bool = True) -> bytes:
        """Return the bytes of the answer; to a HEAD request it has no body."""
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
    """An answer in JSON."""
    return HttpAnswer(status, json.dumps(value, separators=(",", ":")).encode())


class HttpRejection(Exception):  # noqa: N818  # it is an answer, not a fault of ours
    """Ends the handling of a request that is not taken.

    The answer has the status, the headers, and the sentence: what was wrong and what to do, nothing
    secret. It counts as a rejection of a kind. Default: its status.
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
        """The answer's body: JSON with the sentence."""
        return json.dumps({"error": self.sentence}).encode()

    @property
    def answer(self) -> HttpAnswer:
        """The answer."""
        return HttpAnswer(self.status, self.body, JSON, self.headers)

    def count(self, rejections: Rejections) -> None:
        """Count it under its kind."""
        rejections.count(self.kind, self.sentence)


def retry_after(delay_s: float, why: str, kind: str | None = None) -> HttpRejection:
    """429, with the whole seconds after which it is worth sending again."""
    wait_s = max(1, math.ceil(delay_s))
    sentence = f"{why}; send it again in {wait_s} s."
    return HttpRejection(429, sentence, {"retry-after": str(wait_s)}, kind)


MALFORMED: Final = HttpRejection(
    400, "The request is not well-formed HTTP/1.1; correct its first line, headers or chunks."
)
_NOT_CHUNKED: Final = HttpRejection(
    501, "Transfer-Encoding must be chunked, and nothing else; send that."
)
_AMBIGUOUS: Final = HttpRejection(
    400,
    "The request has both Content-Length and Transfer-Encoding, so that where it ends depends on"
    " who reads it; send one of them.",
)


class HttpRequest:
    """A request whose head is complete, and its body as it arrives.

    Attributes:
        method: Its method, in capitals.
        path: The path of its target, decoded, without a query.
        is_whole: Whether all of its body has arrived.

    Args:
        target: The target, in origin or absolute form (RFC 9112, 3.2).
        headers: The headers that mean something here.
        wanted: Called whenever the handler asks for more of the body.
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
        """The values of a header, by its name in small letters."""
        return [value.decode("latin-1") for value in self._headers.get(name.encode(), ())]

    def value(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        values = self._headers.get(name.encode())
        return values[0].decode("latin-1") if values else ""

    @property
    def media_type(self) -> str:
        """Its content type, without parameters."""
        return self.value("content-type").partition(";")[0].strip().lower()

    @property
    def is_behind(self) -> bool:
        """Whether so much of the body waits for the handler that no more must be read."""
        return self._waiting_bytes >= READ_BYTES

    async def read(self) -> bytes:
        """Wait for more of the body; empty at its end.

        Raises:
            SenderGoneError: No more of it comes.
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
        """Add a piece of the body."""
        if not self._is_dropped:
            self._pieces.append(data)
            self._waiting_bytes += len(data)
            self._wake()

    def end(self) -> None:
        """The body is complete."""
        self.is_whole = True
        self._wake()

    def fail(self) -> None:
        """The rest does not come."""
        self._has_failed = True
        self._wake()

    def drop(self) -> None:
        """Keep nothing that comes; nobody reads it."""
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
        _AMBIGUOUS,  # 6.1: a proxy that goes by the other one would take a part for a request
    ),
    (
        lambda _, headers: (
            b"transfer-encoding" in headers
            and [value.lower() for value in headers[b"transfer-encoding"]] != [b"chunked"]
        ),
        _NOT_CHUNKED,
    ),
    *(
        # A proxy may have checked the other one.
        (
            lambda _, headers, name=name: len(headers.get(name, ())) > 1,
            HttpRejection(
                400, f"The header {name.decode().title()} is there more than once; send it once."
            ),
        )
        for name in _ONCE
    ),
)
"""What RFC 9112 asks of a server beyond what llhttp checks, by the version and the headers."""


def refusal(version: str, headers: Headers) -> HttpRejection | None:
    """Return why a request is refused before its body is read; None if it is not."""
    for is_wrong, rejection in _CHECKS:
        if is_wrong(version, headers):
            return rejection
    return None


def too_long(settings: HttpSettings) -> HttpRejection:
    """Return the rejection of headers, or of what stands between chunks, that are too long."""
    return HttpRejection(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The headers have more than the {settings.max_header_bytes} bytes allowed; send fewer or"
        " shorter ones.",
    )


def protocol_error(error: httptools.HttpParserError) -> HttpRejection:
    """Return the rejection for the parser's error, without its text, which may be secret."""
    if "Content-Length" in (text := str(error)) and "Transfer-Encoding" in text:
        return _AMBIGUOUS
    return MALFORMED
