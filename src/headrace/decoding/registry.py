"""Schema registries: a client of Confluent's REST API, and Confluent's wire format."""

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
"""Time (s) after which an id is requested again if the registry did not know it."""

_MOST_UNKNOWN: Final = 10_000

_NOT_FOUND: Final = (40401, 40402, 40403)
"""Error codes with which the registry reports a missing subject, version or schema."""

HEADER_BYTES: Final = 5
"""Size of a wire format header with a schema id (bytes): a byte 0 and a 4-byte id."""

GUID_HEADER_BYTES: Final = 17
"""Size of a wire format header with a GUID (bytes): a byte 1 and a 16-byte GUID, as written by
Confluent 8.1 and later."""

_SIZES: Final = {b"\x00": HEADER_BYTES, b"\x01": GUID_HEADER_BYTES}

VALUE_SCHEMA_ID: Final = "__value_schema_id"
"""Name of the record header with the id or GUID of the value's schema, if the value itself has no
wire format header."""

NO_ID: Final = (
    "it is not in a schema registry's wire format (a byte 0, then an id), and no header"
    f" {VALUE_SCHEMA_ID} has the id of its schema"
)
"""Reason for the rejection of a value without a schema id."""


def unknown_id(identity: int | UUID | str) -> str:
    """Return the reason to reject a value whose schema id is not in the registry."""
    return f"the schema registry does not know the id {identity}"


_LAST_ID: Final = 2**31 - 1
"""Largest valid schema id. The registry answers a request for a larger id with a server error."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry, with the schemas that it references.

    Attributes:
        kind: type of the schema: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: the text of the schema.
        references: the texts of the referenced schemas. A text comes after the texts of the schemas
            that it references itself.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Connection settings of a schema registry with Confluent's REST API.

    Each process requests each schema once, because the schema of an id never changes. Secrets are
    not shown in plans, logs and errors.

    Args:
        url: ``http://host:port`` or ``https://...``, optionally with a path; or several URLs of one
            registry, separated by commas. If a server is unreachable or answers 408, 429, 500, 502,
            503 or 504, the next URL is tried.
        user: user name for HTTP basic authentication; needs a password.
        password: the user's password, or an API key's secret.
        token: a bearer token, instead of user and password.
        ca_file: path of a file with trusted certificates (PEM), on every machine. Default: the
            system's certificates.
        timeout_s: time limit for a connection, and for each part of an answer (s). Default: 5. Each
            URL is tried three times. If the limit is too low, a busy registry defers batches; if it
            is too high, batches wait long for an unreachable registry.

    Raises:
        OptionError: a URL is invalid or contains a password; both a password and a token are given;
            or only one of user and password is given.
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
                f"The credentials of the schema registry {self.url} are incomplete or ambiguous;"
                " give a user and a password, or a token, or none of these."
            )
        if not self.timeout_s > 0:
            raise OptionError(
                f"The schema registry's timeout_s is {self.timeout_s}; it must be above 0 (s)."
            )

    def schema(self, identity: int | UUID) -> RegisteredSchema | None:
        """Return the schema with an id or a GUID; None if the registry does not know it.

        Raises:
            RegistryError: the registry cannot be reached or refuses the request. The note
                `headrace.errors.READ` marks this error as an error of reading a source.
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
        """Request and return the newest schema of a subject.

        Raises:
            OptionError: the registry has no such subject.
            RegistryError: the registry cannot be reached or refuses the request.
            SetupError: the registry's client is not installed.
        """
        registered = self._read(
            f"/subjects/{quote(subject, safe='')}/versions/latest",
            lambda of: of.get_latest_version(subject).schema,
        )
        if registered is None:
            raise OptionError(
                f"The schema registry {self.url} has no subject {subject!r}; name an existing"
                " subject."
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
        """Request a schema and its references; return None if the registry lacks the schema.

        Each call creates a new client. A shared client would cache "not found" answers and the
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
            reason = f"answers {status} to GET {path}{', for a referenced schema' * is_there}"
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
            f"The schema registry {self.url} {said}; check that it runs, and that its URL and the"
            " credentials are right."
        )
        error.add_note(WHILE_READING)
        return error


_KNOWN: Final[dict[tuple[SchemaRegistry, int | UUID], RegisteredSchema]] = {}
_UNKNOWN_UNTIL: Final[dict[tuple[SchemaRegistry, int | UUID], float]] = {}


def client_package(extra: str = "avro") -> "ModuleType":
    """Import Confluent's registry client, which the extra ``extra`` installs.

    Raises:
        SetupError: the client is not installed.
    """
    with needs_extra(extra, "A schema registry", where="on every machine of the cluster"):
        import confluent_kafka.schema_registry  # noqa: PLC0415  (an extra)
    return confluent_kafka.schema_registry


def _references(
    client: "SchemaRegistryClient", schema: "Schema", seen: set[tuple[str, int]]
) -> Iterator[str]:
    """Yield the texts of referenced schemas; a text comes after the texts that it references."""
    for reference in schema.references or ():
        subject, version = str(reference.subject), int(reference.version or 0)
        if (subject, version) not in seen:
            seen.add((subject, version))
            # deleted=True, as in Confluent's deserializers: a referenced version may be deleted.
            referred = client.get_version(subject, version, deleted=True).schema
            yield from _references(client, referred, seen)
            yield _text(referred)


def _text(schema: "Schema") -> str:
    """Return the text of a schema from the registry's answer.

    Raises:
        TypeError: the answer has no schema.
    """
    if not isinstance(schema.schema_str, str):
        raise TypeError("there is no schema")
    return schema.schema_str


def _why_unread(error: Exception, path: str) -> str:
    """Return the reason of a failed request, without the text of the client's error.

    The text may quote a secret.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return f"cannot be reached ({cause or type(cause).__name__})"
    return f"sent an unreadable answer to GET {path} ({type(error).__name__})"


def _check_url(url: str) -> None:
    if "@" in url:
        host = re.split("[:/]", url.rpartition("@")[2])[0]
        raise OptionError(
            f"The schema registry's URL of {host} contains a user or a password;"
            " pass these as user= and password= instead."
        )
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number, or too large
        is_good = False
    if not is_good or re.search(r"[\s?#]", url):
        raise OptionError(
            f"The schema registry's URL is {url!r}; it must be like http://host:8081, with a port"
            " from 1 to 65535, or several URLs separated by commas."
        )


def schema_id(value: bytes) -> int | UUID | None:
    r"""Return the schema id or GUID in a value's wire format header; None without a header.

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
    """Return the size of a value's wire format header (bytes); 0 without a header."""
    size = _SIZES.get(value[:1], 0)
    return size if len(value) >= size else 0


def header_of(identity: int | UUID) -> bytes:
    """Return the wire format header with this schema id or GUID."""
    if isinstance(identity, UUID):
        return b"\x01" + identity.bytes
    return b"\x00" + identity.to_bytes(HEADER_BYTES - 1, "big")


def payload(value: bytes) -> bytes:
    """Return a value without its wire format header."""
    return value[header_bytes(value) :]
