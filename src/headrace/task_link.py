"""Request/reply channel from tasks to the driver's Python process, for Spark Connect.

Spark Connect has no accumulators and no status tracker for stages. Instead, the driver's Python
process listens on a port of the driver's machine, which executors can reach, and answers requests
that carry its token.
"""

import hmac
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pyspark.sql import SparkSession

from headrace.errors import READ, SetupError

_TIMEOUT_S: Final = 30.0
"""Timeout of connecting, and of each read and write (s)."""

_MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a request (bytes), such as the report of one record batch."""


def new_token() -> str:
    """Return a new, random token for a link."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Address and token of a `TaskLink`, which tasks receive."""

    host: str
    port: int
    token: str = field(repr=False)

    def ask(self, question: Any) -> Any:
        """Send a JSON value to the driver's Python process and return its answer.

        SetupError if there is no answer. This error does not blame the batch, which runs again.
        """
        line = json.dumps([self.token, question]).encode() + b"\n"
        try:
            with socket.create_connection((self.host, self.port), timeout=_TIMEOUT_S) as client:
                client.sendall(line)
                with client.makefile("rb") as answer:
                    return json.loads(answer.readline())
        except (OSError, ValueError) as error:
            refused = SetupError(
                f"The process of the handler at {self.host}:{self.port} does not answer its task on"
                f" {socket.gethostname()} ({error}); let executors connect to the driver's machine."
            )
            refused.add_note(READ)
            raise refused from error


class TaskLink:
    """Server that answers requests of tasks, in its own threads, until `close`.

    ``spark`` is the session of the tasks. ``answer`` maps a request to a JSON value, and may be
    called by several threads at once. ``token`` is required in each request. Default: a new token.
    SetupError if no port can be opened.
    """

    def __init__(
        self, spark: SparkSession, answer: Callable[[Any], Any], token: str | None = None
    ) -> None:
        host = _bare(spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1")
        bound = _bare(spark.conf.get("spark.driver.bindAddress", host) or host)
        expected = token or new_token()

        class Answering(socketserver.StreamRequestHandler):
            timeout = _TIMEOUT_S

            def handle(self) -> None:
                line = self.rfile.readline(_MAX_BYTES)
                shown, question = _parsed(line)
                if hmac.compare_digest(shown.encode(), expected.encode()):
                    self.wfile.write(json.dumps(answer(question)).encode() + b"\n")

        try:
            self._server = _Server((bound, 0), Answering)
        except OSError as error:
            raise SetupError(
                f"No port of {bound}, the setting spark.driver.bindAddress, can be opened for tasks"
                f" ({error}); name an address of this machine there."
            ) from error
        self.address: Final = LinkAddress(host, self._server.server_address[1], expected)
        threading.Thread(
            target=self._server.serve_forever, name="headrace-task-link", daemon=True
        ).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: clients that are gone, or have no token, get no answer."""


def _parsed(line: bytes) -> tuple[str, Any]:
    try:
        token, question = json.loads(line)
    except (ValueError, TypeError):
        return "", None
    return str(token), question


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")
