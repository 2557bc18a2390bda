"""A schema registry on 127.0.0.1: the part of Confluent's REST API that readers and writers use."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from headrace.decoding import SchemaRegistry

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class Subject:
    versions: list[dict[str, Any]] = field(default_factory=list)


class RegistryServer(ThreadingHTTPServer):
    """Keeps schemas in memory.

    Attributes:
        asked: the paths of the requests.
        status: what every request is answered, if not 200.
        credentials: what HTTP's header Authorization must have.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.asked: list[str] = []
        self.status = 200
        self.credentials: str | None = None
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, Subject] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def client(self, **options: Any) -> SchemaRegistry:
        return SchemaRegistry(self.url, **options)

    def require(self, user: str, password: str) -> None:
        """Ask for basic authentication."""
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.credentials = f"Basic {pair}"

    def register(
        self,
        subject: str,
        schema: str | dict[str, Any],
        *references: tuple[str, str, int],
        kind: str = "AVRO",
    ) -> int:
        """Register as a producer does; the id. References are of (name, subject, version)."""
        kept: dict[str, Any] = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema),
            "schemaType": kind,
            "references": [
                {"name": name, "subject": other, "version": version}
                for name, other, version in references
            ],
        }
        return self.add(subject, kept)

    def add(self, subject: str, body: dict[str, Any]) -> int:
        """Add a schema, as POST /subjects/{subject}/versions does."""
        schema = {name: each for name, each in body.items() if each or name == "schema"}
        if schema.get("schemaType") == "AVRO":
            del schema["schemaType"]  # which the registry leaves out, as it is the default
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, Subject()).versions
        if not any(each["id"] == number for each in versions):
            version = len(versions) + 1
            versions.append({"subject": subject, "version": version, "id": number, **schema})
        return number

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the body that answer a GET."""
        match path.strip("/").split("/"):
            case ["schemas", "ids" | "guids" as kind, text]:
                at = int(text) - 1 if kind == "ids" else UUID(text).int - 1
                if 0 <= at < len(self.schemas):
                    return 200, self.schemas[at]
                return 404, {"error_code": 40403, "message": f"Schema {text} not found"}
            case ["subjects", subject, "versions", version]:
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                versions = self.subjects[subject].versions
                at = len(versions) - 1 if version == "latest" else int(version) - 1
                if 0 <= at < len(versions):
                    return 200, versions[at]
                return 404, {"error_code": 40402, "message": f"Version {version} not found."}
            case _:
                return 404, {"message": "HTTP 404 Not Found"}


class _Requests(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        if self._may():
            self._send(*self.server.answer(self.path.partition("?")[0]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._may():
            subject = self.path.strip("/").split("/")[1]
            self._send(200, {"id": self.server.add(subject, body)})

    def _may(self) -> bool:
        self.server.asked.append(self.path)
        wanted = self.server.credentials
        if self.server.status != 200:
            self._send(self.server.status, {"error_code": 50001, "message": "Error in the store"})
        elif wanted is not None and self.headers.get("Authorization") != wanted:
            self._send(401, {"error_code": 401, "message": "Unauthorized"})
        else:
            return True
        return False

    def _send(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_arguments: object) -> None: ...


_PORTS: set[int] = set()
"""Ports of earlier ones: what has asked a registry remembers its schemas by its address."""


def _new_server() -> RegistryServer:
    server = RegistryServer()
    while server.server_address[1] in _PORTS:
        server.server_close()
        server = RegistryServer()
    _PORTS.add(server.server_address[1])
    return server


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """A registry without schemas, until the end of the block."""
    with _new_server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def guid_of(number: int) -> UUID:
    """Return the GUID of a schema that has this id."""
    return UUID(int=number)


def framed(number: int, data: bytes) -> bytes:
    """A value of the wire format."""
    return b"\0" + number.to_bytes(4, "big") + data
