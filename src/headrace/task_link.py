"""Request/reply channel from tasks to the driver's Python, for Spark Connect.

Over Spark Connect there are no accumulators and no status of stages. So that process listens on a
port of the driver's machine, which executors reach anyway, and answers clients with its token.
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
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest request (bytes), which has the report of one record batch."""


def new_token() -> str:
    """Make a token for a link."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Address of a `TaskLink`; it is sent to the tasks."""

    host: str
    port: int
    token: str = field(repr=False)

    def ask(self, question: Any) -> Any:
        """The answer to something that JSON can hold; it is known there once this returns.

        Raises:
            SetupError: there was none; the batch is not to blame, and runs again.
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
    """Answers tasks until it is closed, in threads of its own.

    Args:
        spark: the session whose tasks ask.
        answer: is given a question, maybe several at a time, and returns what JSON can hold.
        token: what a task has to show. Default: a new one.

    Raises:
        SetupError: no port could be opened.
    """

    def __init__(
        self, spark: SparkSession, answer: Callable[[Any], Any], token: str | None = None
    ) -> None:
        host = _bare(spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1")
        bound = _bare(spark.conf.get("spark.driver.bindAddress", host) or host)
        known = token or new_token()

        class Answering(socketserver.StreamRequestHandler):
            timeout = _TIMEOUT_S

            def handle(self) -> None:
                line = self.rfile.readline(_MAX_BYTES)
                given, question = _parsed(line)
                if hmac.compare_digest(given.encode(), known.encode()):
                    self.wfile.write(json.dumps(answer(question)).encode() + b"\n")

        try:
            self._server = _Server((bound, 0), Answering)
        except OSError as error:
            raise SetupError(
                f"No port of {bound}, the setting spark.driver.bindAddress, can be opened for tasks"
                f" ({error}); name an address of this machine there."
            ) from error
        self.address: Final = LinkAddress(host, self._server.server_address[1], known)
        threading.Thread(
            target=self._server.serve_forever, name="headrace-task-link", daemon=True
        ).start()

    def close(self) -> None:
        """Stop answering."""
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
        """A client that is gone, or is none of ours, gets no answer."""


def _parsed(line: bytes) -> tuple[str, Any]:
    try:
        given, question = json.loads(line)
    except (ValueError, TypeError):
        return "", None
    return str(given), question


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")
