"""Schemas from a schema registry: Confluent's wire format and REST API."""

import base64
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit
from uuid import UUID

from headrace.errors import READ as WHILE_READING
from headrace.errors import OptionError, RegistryError

_TRIES: Final = 3
_WAIT_S: Final = 0.3
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_REFERENCES: Final = 100
_UNKNOWN_FOR_S: Final = 60.0
"""Time for which an id counts as unknown that the registry did not know (s)."""

_NOT_FOUND: Final = frozenset({40401, 40402, 40403})
"""Codes of the registry for a subject, a version or a schema that it does not have."""

HEADER_BYTES: Final = 5
"""Size of a header with an id: a byte 0, and four bytes."""

GUID_HEADER_BYTES: Final = 17
"""Size of a header with a GUID, which Confluent has used since 8.1: a byte 1, and 16 bytes."""

_SIZES: Final = {b"\x00": HEADER_BYTES, b"\x01": GUID_HEADER_BYTES}

VALUE_SCHEMA_ID: Final = "__value_schema_id"
"""Header of a record which has its schema's id or GUID instead of the value."""

NO_ID: Final = (
    "it is not of a schema registry's wire format (0, then an id), and no header"
    f" {VALUE_SCHEMA_ID} names its schema"
)
"""Reason why a value is rejected."""


def unknown_id(identity: int | UUID | str) -> str:
    """Return the reason why a value is rejected whose schema is not in the registry."""
    return f"the schema registry does not know the id {identity}"


_LAST_ID: Final = 2**31 - 1
"""The largest id that a registry gives; it answers another with an error, as if it were broken."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry.

    Attributes:
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: the schema.
        references: the texts of those that it refers to, each after those that it refers to itself.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A schema registry, by its REST API.

    Each process asks it once for a schema, which never changes under its id. No plan, log or error
    has a secret.

    Args:
        url: ``http://host:port`` or ``https://...``, with a path if there is one; or several with
            commas, of one registry: the next one is asked where one is away or answers 429 or 5xx.
        user: with the password, for HTTP's basic authentication.
        password: the user's, or an API key's secret.
        token: a bearer token, instead of these two.
        ca_file: certificates (PEM) to trust, on every machine. Default: the system's.
        timeout_s: how long the registry may take to connect, and then for its whole answer (s).
            Default: 5. Each URL is asked three times; too low, and a busy registry defers batches;
            too high, and a batch waits.

    Raises:
        OptionError: a URL is not of that form, or has a password in it; or both a password and a
            token are given.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for url in self._urls():
            _check_url(url)
        if (self.user is None) != (self.password is None) or (self.user and self.token):
            raise OptionError(
                f"The schema registry {self.url} is given a part of what it asks for, or too much;"
                " give user and password, or a token, or nothing."
            )
        if not self.timeout_s > 0:
            raise OptionError(
                f"The schema registry's timeout_s is {self.timeout_s}; it must be above 0 (s)."
            )

    def schema(self, identity: int | UUID) -> RegisteredSchema | None:
        """The schema of an id or a GUID, or None if the registry does not know it.

        Raises:
            RegistryError: it cannot be reached, or refuses; with the note that it was being read.
        """
        if isinstance(identity, int) and identity > _LAST_ID:
            return None
        return _CACHE.schema(self, identity)

    def newest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject, asked for now.

        Raises:
            OptionError: there is no such subject.
            RegistryError: it cannot be reached, or refuses.
        """
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer is None:
            raise OptionError(
                f"The schema registry {self.url} has no subject {subject!r}; name one that it has."
            )
        return self._registered(answer)

    def _urls(self) -> list[str]:
        """The URLs, with the one that has answered last before the others."""
        urls = re.split(", *", self.url)
        return sorted(urls, key=lambda url: url != _LAST_ANSWER.get(self.url))

    def _fetch(self, identity: int | UUID) -> RegisteredSchema | None:
        kind = "guids" if isinstance(identity, UUID) else "ids"
        answer = self._get(f"/schemas/{kind}/{identity}")
        return None if answer is None else self._registered(answer)

    def _registered(self, answer: dict[str, Any]) -> RegisteredSchema:
        found: dict[tuple[str, int], str] = {}
        self._add_references(answer, found, depth=0)
        kind = str(answer.get("schemaType") or "AVRO")
        return RegisteredSchema(kind, str(answer["schema"]), tuple(found.values()))

    def _add_references(
        self, answer: dict[str, Any], found: dict[tuple[str, int], str], depth: int
    ) -> None:
        for each in answer.get("references") or ():
            place = str(each["subject"]), int(each["version"])
            if place in found:
                continue
            path = f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}"
            referred = self._get(path)
            if referred is None or depth > _MOST_REFERENCES or len(found) > _MOST_REFERENCES:
                raise self._error(f"gives no version {place[1]} of {place[0]!r}, a reference")
            self._add_references(referred, found, depth + 1)
            found[place] = str(referred["schema"])

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the registry's answer; None if it says that it has nothing there."""
        said = ""
        urls = self._urls()
        for attempt, url in enumerate(urls * _TRIES):
            if attempt and attempt % len(urls) == 0:
                time.sleep(_WAIT_S * 2 ** (attempt // len(urls) - 1))
            try:
                status, body = self._ask(url, path)
            except (OSError, http.client.HTTPException) as error:
                said = f"cannot be reached ({error or type(error).__name__})"
                continue
            if status < http.client.INTERNAL_SERVER_ERROR and status != 429:
                _LAST_ANSWER[self.url] = url
            if status == http.client.OK and isinstance(body.get("schema"), str):
                return body
            if status == http.client.NOT_FOUND and body.get("error_code") in _NOT_FOUND:
                return None
            said = f"answers {status} to GET {path}"
            if status == http.client.OK:
                said += ", but with no schema"
            if status < http.client.INTERNAL_SERVER_ERROR and status != 429:
                break
        raise self._error(said)

    def _ask(self, url: str, path: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=self.ca_file)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self.timeout_s, context=trusted
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        try:
            connection.connect()
            with _ended_after(connection.sock, self.timeout_s):
                connection.request("GET", parts.path.rstrip("/") + path, headers=self._headers())
                answer = connection.getresponse()
                body = answer.read(_MOST_BYTES)
        finally:
            connection.close()
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        return answer.status, value if isinstance(value, dict) else {}

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.user is not None:
            pair = f"{self.user}:{self.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        return headers

    def _error(self, said: str) -> RegistryError:
        error = RegistryError(
            f"The schema registry {self.url} {said}; see that it runs, and that its URL and what it"
            " asks for are right."
        )
        error.add_note(WHILE_READING)
        return error


_LAST_ANSWER: Final[dict[str, str]] = {}
"""By a registry's URLs, the one of them that has answered last."""


def _check_url(url: str) -> None:
    if "@" in url:
        host = re.split("[:/]", url.rpartition("@")[2])[0]
        raise OptionError(
            f"The schema registry's URL of {host} has a user or a password in it;"
            " give them as user= and password=."
        )
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # its port is no number, or too large
        is_good = False
    if not is_good or re.search(r"[\s?#]", url):
        raise OptionError(
            f"The schema registry's URL is {url!r}; it must be like http://host:8081, with a port"
            " from 1 to 65535, or several of these with commas."
        )


@contextmanager
def _ended_after(connected: socket.socket, timeout_s: float) -> Iterator[None]:
    """Shut a connection down that is not done in time: a server may send a byte now and then.

    Raises:
        TimeoutError: it was.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"it has not answered within {timeout_s:g} s")


class _Cache:
    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._schemas: dict[tuple[SchemaRegistry, int | UUID], RegisteredSchema] = {}
        self._unknown_until: dict[tuple[SchemaRegistry, int | UUID], float] = {}

    def schema(self, registry: SchemaRegistry, identity: int | UUID) -> RegisteredSchema | None:
        key, now = (registry, identity), time.monotonic()
        with self._changing:
            if key in self._schemas:
                return self._schemas[key]
            if self._unknown_until.get(key, 0.0) > now:
                return None
        found = registry._fetch(identity)
        with self._changing:
            if found is None:
                if len(self._unknown_until) > 10_000:
                    self._unknown_until.clear()
                self._unknown_until[key] = now + _UNKNOWN_FOR_S
            else:
                self._schemas[key] = found
        return found


_CACHE: Final = _Cache()


def schema_id(value: bytes) -> int | UUID | None:
    r"""The schema's id or GUID in a value of Confluent's wire format; None in any other value.

    ::

    >>> schema_id(b"\x00\x00\x00\x00\x11..."), schema_id(b"{}")
    (17, None)
    >>> schema_id(b"\x01" + bytes(15) + b"\x11...")
    UUID('00000000-0000-0000-0000-000000000011')
    """
    size = header_bytes(value)
    if size == 0:
        return None
    return UUID(bytes=value[1:size]) if size == GUID_HEADER_BYTES else int.from_bytes(value[1:size])


def header_bytes(value: bytes) -> int:
    """Return the size of the header that a value of the wire format has; 0 without one."""
    size = _SIZES.get(value[:1], 0)
    return size if len(value) >= size else 0


def header_of(identity: int | UUID) -> bytes:
    """Return the header of values that were written with this schema."""
    if isinstance(identity, UUID):
        return b"\x01" + identity.bytes
    return b"\x00" + identity.to_bytes(HEADER_BYTES - 1, "big")


def payload(value: bytes) -> bytes:
    """A value of the wire format without its header."""
    return value[header_bytes(value) :]
