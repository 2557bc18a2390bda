"""A TCP server in the driver's Python process that answers requests of tasks, for Spark Connect.

Spark Connect has no accumulators and no status tracker for stages. So tasks send their questions
and reports to a port on the driver's machine, which executors can reach. The server answers only
requests that contain its token.
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
"""Timeout of the connection attempt, and of each read and write on a connection (s)."""

_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest size of one request (bytes). A request may be the report of a whole record batch."""


def new_token() -> str:
    """Return a new, random token, which a `TaskLink` requires in each request."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """The address and the token of a `TaskLink`. The driver sends them to the tasks.

    Attributes:
        host: Host name or IP address of the driver's machine.
        port: TCP port of the server.
        token: The token that each request must contain.
    """

    host: str
    port: int
    token: str = field(repr=False)

    def ask(self, question: Any) -> Any:
        """Send a JSON value to the driver's Python process. Return the JSON value of the answer.

        Raises:
            SetupError: No answer came. The records of the batch are not to blame for this error, so
                the batch is run again.
        """
        line = json.dumps([self.token, question]).encode() + b"\n"
        try:
            with socket.create_connection((self.host, self.port), timeout=_TIMEOUT_S) as client:
                client.sendall(line)
                with client.makefile("rb") as answer:
                    return json.loads(answer.readline())
        except (OSError, ValueError) as error:
            refused = SetupError(
                f"The handler's process at {self.host}:{self.port} does not answer a task on"
                f" {socket.gethostname()} ({error}); let executors connect to the driver's machine."
            )
            refused.add_note(READ)
            raise refused from error


class TaskLink:
    """A TCP server that answers requests of tasks, in its own threads, until `close` is called.

    Args:
        spark: The session of the tasks. Its settings ``spark.driver.host`` and
            ``spark.driver.bindAddress`` give the server's address.
        answer: Function that returns a JSON value for the JSON value of a request. Several threads
            may call it at once.
        token: The token that each request must contain. Default: a new token.

    Attributes:
        address: The address and the token, for the tasks.

    Raises:
        SetupError: No port can be opened at this address.
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
                f"spark.driver.bindAddress is {bound}, but no port can be opened at this address"
                f" for tasks ({error}); set it to an address of this machine."
            ) from error
        self.address: Final = LinkAddress(host, self._server.server_address[1], expected)
        threading.Thread(
            target=self._server.serve_forever, name="headrace-task-link", daemon=True
        ).start()

    def close(self) -> None:
        """Stop the server and close its port."""
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
        """Ignore errors of a connection, for example if a task has ended before the answer."""


def _parsed(line: bytes) -> tuple[str, Any]:
    try:
        token, question = json.loads(line)
    except (ValueError, TypeError):
        return "", None
    return str(token), question


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")
