"""``headrace send``: made-up records for a receiver, to try its settings and see what it bears."""

import http.client
import itertools
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from headrace.certificates import client_context
from headrace.cli.exits import ExitStatus
from headrace.cli.receive import TOKEN_VARIABLE
from headrace.cli.shared_options import secret_of
from headrace.errors import OptionError

_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.5
_LATER: Final = (408, 429, 500, 502, 503, 504)
_PATH: Final = "/records"


def send(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The receiver: http://host:port or https://host:port."),
    ],
    *,
    records: Annotated[int, typer.Option(min=1, help="Send so many records.")] = 100_000,
    per_request: Annotated[int, typer.Option(min=1, help="Put so many into a request.")] = 500,
    record_bytes: Annotated[int, typer.Option(min=40, help="Make each so long (bytes).")] = 200,
    connections: Annotated[
        int, typer.Option(min=1, max=1_000, help="Have so many senders, each with a connection.")
    ] = 16,
    patience_s: Annotated[
        float, typer.Option(min=0, help="Give up after so long without an acknowledgement (s).")
    ] = 60,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Read the token from a file; or set {TOKEN_VARIABLE}."),
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Trust these authorities besides the system's."),
    ] = None,
) -> None:
    """Send made-up records to a receiver for HTTP, and say how fast they were acknowledged.

    Each request has an id and is sent again until it is acknowledged, at 429, 503 and where nobody
    listens too: so each record is stored once. They are lines of JSON with 'sender', 'number' and
    a filler.
    Exit status 0: all records are acknowledged.
    Exit status 1: the receiver refuses them for good, such as at 401 or 413.
    Exit status 3: some are not acknowledged.
    """
    target = _target(url, secret_of(token_file, "--token-file", TOKEN_VARIABLE), tls_ca)
    load = _Load(target, records, per_request, record_bytes, patience_s)
    senders = [threading.Thread(target=load.send) for _ in range(connections)]
    began_s = time.perf_counter()
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    _show(load, time.perf_counter() - began_s)
    if load.refusal is not None:
        raise OptionError(load.refusal)
    if load.acknowledged < records:
        raise typer.Exit(ExitStatus.OPEN)


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    context: ssl.SSLContext | None
    headers: dict[str, str] = field(repr=False)

    def connect(self) -> http.client.HTTPConnection:
        if self.context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=_TIMEOUT_S, context=self.context
        )


def _target(url: str, token: str | None, ca_file: str | None) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise OptionError(
            f"The receiver's URL is {url!r}; it must be http://host:port or https://host:port."
        )
    if parts.path.rstrip("/") not in ("", _PATH):
        raise OptionError(f"The receiver's URL is {url!r}; leave out its path, or write {_PATH}.")
    context = client_context(url, ca_file, None, None) if parts.scheme == "https" else None
    headers = {"content-type": "application/x-ndjson"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return _Target(parts.hostname, parts.port or (443 if context else 80), context, headers)


class _Load:
    def __init__(
        self, target: _Target, records: int, per_request: int, record_bytes: int, patience_s: float
    ) -> None:
        self._target = target
        self._run = token_hex(4)
        self._filler = "x" * record_bytes
        self._record_bytes = record_bytes
        self._patience_s = patience_s
        self._requests = iter(
            range(first, min(first + per_request, records))
            for first in range(0, records, per_request)
        )
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.duplicates = 0
        self.answers: Counter[str] = Counter()
        self.delays_ms: list[float] = []
        self.refusal: str | None = None

    def send(self) -> None:
        connection = self._target.connect()
        try:
            while self.refusal is None:
                with self._lock:
                    numbers = next(self._requests, None)
                if numbers is None or not self._deliver(connection, numbers):
                    return
        finally:
            connection.close()

    def _deliver(self, connection: http.client.HTTPConnection, numbers: range) -> bool:
        body = b"".join(self._lines(numbers))
        headers = self._target.headers | {"headrace-message-id": f"{self._run}-{numbers.start}"}
        began_s = time.perf_counter()
        for _ in itertools.count():
            status, answer, pause_s = _posted(connection, body, headers)
            with self._lock:
                self.answers[status] += 1
                if status == "200":
                    self.acknowledged += len(numbers)
                    self.duplicates += answer.get("duplicates", 0)
                    self.delays_ms.append(1000 * (time.perf_counter() - began_s))
                    return True
                if status.isdecimal() and int(status) not in _LATER:
                    self.refusal = f"The receiver answers {status}: {answer.get('error', '')}"
                    return False
            if self.refusal or time.perf_counter() - began_s + pause_s > self._patience_s:
                break
            time.sleep(pause_s)
        return False

    def _lines(self, numbers: range) -> Iterator[bytes]:
        for number in numbers:
            start = f'{{"sender":"{self._run}","number":{number},"filler":"'
            filler = self._filler[: max(0, self._record_bytes - len(start) - 2)]
            yield f'{start}{filler}"}}\n'.encode()


def _posted(
    connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]
) -> tuple[str, dict[str, int], float]:
    """The status, or what went wrong; the answer; and after how long to come again (s)."""
    try:
        connection.request("POST", _PATH, body, headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"no answer ({type(error).__name__})", {}, _PAUSE_S
    pause = response.headers.get("retry-after", "")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    known = answer if isinstance(answer, dict) else {}
    return str(response.status), known, float(pause) if pause.isdecimal() else _PAUSE_S


def _show(load: _Load, took_s: float) -> None:
    typer.echo(
        f"Acknowledged: {load.acknowledged:,} records in {took_s:.1f} s,"
        f" {load.acknowledged / took_s:,.0f} a second; {len(load.delays_ms) / took_s:,.0f} requests"
        " a second."
    )
    if load.delays_ms:
        delays_ms = sorted(load.delays_ms)
        p50, p99 = (delays_ms[int(len(delays_ms) * each)] for each in (0.5, 0.99))
        typer.echo(f"From a request's first try: p50 {p50:,.1f} ms, p99 {p99:,.1f} ms.")
    if load.duplicates:
        typer.echo(f"Stored before, and not again: {load.duplicates:,} records.")
    others = {name: count for name, count in load.answers.items() if name != "200"}
    for name, count in sorted(others.items()):
        words = f"{name} {HTTPStatus(int(name)).phrase}" if name.isdecimal() else name
        typer.echo(f"Answered {words}: {count:,} times.")
