"""Schema registries: client of the REST API, and Confluent's wire format."""

import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit
from uuid import UUID

from headrace.core.system import needs_extra
from headrace.errors import READ as WHILE_READING, OptionError, RegistryError

if TYPE_CHECKING:
    from types import ModuleType

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_RETRIES: Final = 2
_WAIT_MS: Final = 300
_UNKNOWN_FOR_S: Final = 60.0
"""Time for which an id unknown to the registry is not requested again (s)."""

_MOST_UNKNOWN: Final = 10_000

_NOT_FOUND: Final = (40401, 40402, 40403)
"""The registry's error codes of a missing subject, version or schema."""

HEADER_BYTES: Final = 5
"""Size of a header with an id: a byte 0 and four bytes."""

GUID_HEADER_BYTES: Final = 17
"""Size of a header with a GUID, used by Confluent since 8.1: a byte 1 and 16 bytes."""

_SIZES: Final = {b"\x00": HEADER_BYTES, b"\x01": GUID_HEADER_BYTES}

VALUE_SCHEMA_ID: Final = "__value_schema_id"
"""Record header with the schema's id or GUID, for values without the prefix."""

NO_ID: Final = (
    "it is not of a schema registry's wire format (0, then an id), and no header"
    f" {VALUE_SCHEMA_ID} names its schema"
)
"""Reason of a rejected value without a schema id."""


def unknown_id(identity: int | UUID | str) -> str:
    """Return the reason of a rejected value whose schema is not in the registry."""
    return f"the schema registry does not know the id {identity}"


_LAST_ID: Final = 2**31 - 1
"""Largest valid id: the registry answers a larger id with an error, as if it had failed."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry.

    Attributes:
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: the text of the schema.
        references: the texts of referenced schemas, each after its own references.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A schema registry, accessed by its REST API.

    Each process requests a schema once, because a schema never changes under its id. Plans, logs
    and errors contain no secrets.

    Args:
        url: ``http://host:port`` or ``https://...``, optionally with a path; or several URLs of one
            registry, separated by commas. The next URL is tried if a server is unreachable or
            answers 408, 429, 500, 502, 503 or 504.
        user: user of HTTP basic authentication, with a password.
        password: the user's password, or an API key's secret.
        token: a bearer token, instead of user and password.
        ca_file: trusted certificates (PEM), on every machine. Default: the system's.
        timeout_s: time limit of connecting, and of each part of an answer (s). Default: 5. Each
            URL is tried three times; too low, a busy registry defers batches; too high, a
            batch waits.

    Raises:
        OptionError: a URL is invalid or contains a password, or both a password and a token are
            given.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for url in re.split(", *", self.url):
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
        """Return the schema of an id or a GUID, or None if the registry does not know it.

        Raises:
            RegistryError: the registry is unreachable or refuses; with the note that a source was
                being read.
            SetupError: the registry's client is not installed.
        """
        if isinstance(identity, int) and identity > _LAST_ID:
            return None
        key = self, identity
        if key in _KNOWN:
            return _KNOWN[key]
        if _UNKNOWN_UNTIL.get(key, 0.0) > time.monotonic():
            return None
        registered = self._of(identity)
        if registered is not None:
            _KNOWN[key] = registered
            return registered
        if len(_UNKNOWN_UNTIL) > _MOST_UNKNOWN:
            _UNKNOWN_UNTIL.clear()
        _UNKNOWN_UNTIL[key] = time.monotonic() + _UNKNOWN_FOR_S
        return None

    def newest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject, requested now.

        Raises:
            OptionError: there is no such subject.
            RegistryError: the registry is unreachable or refuses.
            SetupError: the registry's client is not installed.
        """
        registered = self._read(
            f"/subjects/{quote(subject, safe='')}/versions/latest",
            lambda of: of.get_latest_version(subject).schema,
        )
        if registered is None:
            raise OptionError(
                f"The schema registry {self.url} has no subject {subject!r}; name one that it has."
            )
        return registered

    def _of(self, identity: int | UUID) -> RegisteredSchema | None:
        if isinstance(identity, UUID):
            guid = str(identity)
            return self._read(f"/schemas/guids/{guid}", lambda of: of.get_schema_by_guid(guid))
        return self._read(f"/schemas/ids/{identity}", lambda of: of.get_schema(identity))

    def _read(
        self, path: str, get: Callable[["SchemaRegistryClient"], "Schema"]
    ) -> RegisteredSchema | None:
        """Return the schema at a path with its references; None if the registry has none there.

        The client is a new one for each call. A kept client would cache "not found" answers and the
        newest schema of a subject forever, and forked Spark workers would share its connections.
        """
        package = client_package()
        schema = None
        try:
            with package.SchemaRegistryClient(self._settings()) as client:
                schema = get(client)
                references = tuple(_references(client, schema, set()))
                return RegisteredSchema(schema.schema_type or "AVRO", _text(schema), references)
        except package.SchemaRegistryError as error:
            status, is_there = error.http_status_code, schema is not None
            if status == 404 and error.error_code in _NOT_FOUND and not is_there:
                return None
            reason = f"answers {status} to GET {path}{', for a reference of it' * is_there}"
        except Exception as error:  # noqa: BLE001  (the client may change its HTTP library)
            reason = _why_unread(error, path)
        raise self._error(reason)  # without the client's error, which may quote a secret

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "url": self.url,
            "timeout": self.timeout_s,
            "max.retries": _RETRIES,
            "retries.wait.ms": _WAIT_MS,
        }
        system = ssl.get_default_verify_paths()  # the client's own default is the package certifi
        if trusted := self.ca_file or system.cafile or system.capath:
            settings["ssl.ca.location"] = trusted
        if self.token is not None:
            settings["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            settings["bearer.auth.token"] = self.token
            settings["bearer.auth.logical.cluster"] = ""  # the client requires one
        elif self.user is not None:
            settings["basic.auth.user.info"] = f"{self.user}:{self.password}"
        return settings

    def _error(self, said: str) -> RegistryError:
        error = RegistryError(
            f"The schema registry {self.url} {said}; see that it runs, and that its URL and what it"
            " asks for are right."
        )
        error.add_note(WHILE_READING)
        return error


_KNOWN: Final[dict[tuple[SchemaRegistry, int | UUID], RegisteredSchema]] = {}
_UNKNOWN_UNTIL: Final[dict[tuple[SchemaRegistry, int | UUID], float]] = {}


def client_package(extra: str = "avro") -> "ModuleType":
    """Import the client of schema registries, which the named extra installs.

    Raises:
        SetupError: the client is not installed.
    """
    with needs_extra(extra, "A schema registry", where="on every machine of the cluster"):
        import confluent_kafka.schema_registry  # noqa: PLC0415  (an extra)
    return confluent_kafka.schema_registry


def _references(
    client: "SchemaRegistryClient", schema: "Schema", seen: set[tuple[str, int]]
) -> Iterator[str]:
    """Yield the texts of a schema's references, each after its own references."""
    for reference in schema.references or ():
        subject, version = str(reference.subject), int(reference.version or 0)
        if (subject, version) not in seen:
            seen.add((subject, version))
            # deleted=True, as in Confluent's deserializers: a reference may have been deleted.
            referred = client.get_version(subject, version, deleted=True).schema
            yield from _references(client, referred, seen)
            yield _text(referred)


def _text(schema: "Schema") -> str:
    """Return a schema's text.

    Raises:
        TypeError: the registry's answer has no schema.
    """
    if not isinstance(schema.schema_str, str):
        raise TypeError("there is no schema")
    return schema.schema_str


def _why_unread(error: Exception, path: str) -> str:
    """Return a reason for the client's error, without its text, which may quote a secret."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return f"cannot be reached ({cause or type(cause).__name__})"
    return f"gives no answer to GET {path} that can be read ({type(error).__name__})"


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
    except ValueError:  # the port is not a number, or too large
        is_good = False
    if not is_good or re.search(r"[\s?#]", url):
        raise OptionError(
            f"The schema registry's URL is {url!r}; it must be like http://host:8081, with a port"
            " from 1 to 65535, or several of these with commas."
        )


def schema_id(value: bytes) -> int | UUID | None:
    r"""Return the schema id or GUID of a value in Confluent's wire format; otherwise None.

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
    """Return the size of a value's wire format header; 0 without a header."""
    size = _SIZES.get(value[:1], 0)
    return size if len(value) >= size else 0


def header_of(identity: int | UUID) -> bytes:
    """Return the wire format header of values written with this schema."""
    if isinstance(identity, UUID):
        return b"\x01" + identity.bytes
    return b"\x00" + identity.to_bytes(HEADER_BYTES - 1, "big")


def payload(value: bytes) -> bytes:
    """Return a value without its wire format header."""
    return value[header_bytes(value) :]
