"""Records over HTTP: the receiver for services, devices and shell scripts."""

import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import Iterator
from typing import Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import JournalError, ReceiverError
from headrace.journal.records import Records
from headrace.receivers.connections import Connections
from headrace.receivers.http_body import Body
from headrace.receivers.http_connection import guarded
from headrace.receivers.http_records import Content
from headrace.receivers.http_request import framed
from headrace.receivers.intake import Intake, Later
from headrace.receivers.listening import listen
from headrace.receivers.once import Receipt
from headrace.receivers.refusal import Refusal, come_back
from headrace.receivers.room import Room
from headrace.receivers.settings import HttpSettings

_STOP_S: Final = 5
"""How long a stop waits for requests that are being answered."""

_LARGE_BYTES: Final = 64 * 1024
"""A body from this size on is taken apart in a thread, so that the other senders do not wait."""


class HttpReceiver:
    """Takes records by ``POST /records``, and answers 200 when they are durable.

    ========================== ================================================================
    Content-Type               the body is
    ========================== ================================================================
    application/json           one record, or an array with one for each element, as written
    application/x-ndjson       a record for each line, each of them JSON
    application/octet-stream   one record
    text/plain                 one record
    ========================== ================================================================

    The header ``Headrace-Key`` gives all of them a key. ``Headrace-Message-Id`` makes it safe to
    send again what was not answered: the records of a request with an id that is remembered (see
    `IntakeSettings`) are stored once. A body may be compressed (Content-Encoding gzip or deflate).

    The answer to a request that was taken is ``{"lane": 0, "first": 500, "until": 520}``, with
    ``"duplicates": 20`` where so many of its records had been stored before. Any other answer is
    ``{"error": ...}`` with one sentence, and nothing of the request was acknowledged: 400
    (malformed), 401 (token), 404 and 405 (another path or method), 408 (too slow), 411 (nothing
    says how long the body is), 413 and 431 (too large), 415 and 501 (not understood), 429 with
    Retry-After (the rate, or the memory, is used up: send it again then), 500 (a defect), 503 (it
    could not be stored, or the receiver stops: send it again). ``GET /health`` is 200 while it
    runs.

    Args:
        settings: See `HttpSettings`.
    """

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self.settings = settings or HttpSettings()
        self._listener: socket.socket | None = None
        self._port = self.settings.port

    def listen(self) -> Self:
        """Open the port; `receive` does it where it was not done.

        Raises:
            ReceiverError: It cannot be opened.
        """
        self._opened()
        return self

    @property
    def port(self) -> int:
        """The port it listens on; the one of the settings until it does."""
        return self._port

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled; see `Receiver.receive`.

        Raises:
            ReceiverError: The port cannot be opened.
        """
        listener, self._listener = self._opened(), None
        server = _Server(self._config(intake))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await serving

    def _opened(self) -> socket.socket:
        if self._listener is None:
            self._listener = listen(self.settings.host, self.settings.port)
            self._port = self._listener.getsockname()[1]
        return self._listener

    def _config(self, intake: Intake) -> uvicorn.Config:
        settings = self.settings
        return uvicorn.Config(
            application(intake, settings),
            http=guarded(Connections(settings.max_connections), settings, intake.refusals),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=settings.max_header_bytes,
            timeout_keep_alive=int(settings.header_s) + 1,  # longer: the headers are timed anyway
            timeout_graceful_shutdown=_STOP_S,
        )


class _Refused(Response):
    """Answers at once, and ends when its sender has sent all, or would not stop sending."""

    media_type = "application/json"

    def __init__(self, refusal: Refusal, body: Body) -> None:
        headers = {} if body.ended else {"connection": "close"}
        super().__init__(refusal.body, refusal.status, refusal.headers | headers)
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await self._request_body.discard()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Server(uvicorn.Server):
    """Leaves signals to whoever hosts it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def application(intake: Intake, settings: HttpSettings) -> ASGIApp:
    """The routes of `HttpReceiver` as an ASGI application."""
    room = Room(settings.bodies_bytes)

    async def records(request: Request) -> Response:
        body = Body(request, settings, room)
        try:
            receipt = await _handle(request, body, intake, settings)
        except Refusal as refusal:
            intake.refusals.count(f"HTTP {refusal.status}", refusal.sentence)
            return _Refused(refusal, body)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        finally:
            body.release()
        return JSONResponse(_answer(receipt))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def refuse(request: Request, refusal: Refusal) -> Response:
        intake.refusals.count(f"HTTP {refusal.status}", refusal.sentence)
        return _Refused(refusal, Body(request, settings, room))

    async def elsewhere(_: Request, error: Exception) -> Response:
        refusal = _elsewhere(error)
        intake.refusals.count(f"HTTP {refusal.status}", refusal.sentence)
        return _plain(refusal)

    routes = [
        Route("/records", records, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    handlers = {HTTPException: elsewhere, Exception: _defect}
    routed = Starlette(routes=routes, exception_handlers=handlers)
    # To the address that its sender has made up, in the Host header.
    routed.router.redirect_slashes = False
    return framed(routed, refuse)


def _plain(refusal: Refusal) -> Response:
    headers, kind = refusal.headers, "application/json"
    return Response(refusal.body, refusal.status, headers, kind)


def _elsewhere(error: Exception) -> Refusal:
    """Another path, or a method that a path has not."""
    assert isinstance(error, HTTPException)  # noqa: S101  (Starlette calls it with no other)
    return Refusal(
        error.status_code,
        "There are POST /records, which takes records, and GET /health; use one of them.",
        dict(error.headers or {}),
    )


async def _defect(_: Request, error: Exception) -> Response:
    return _plain(Refusal(500, "It went wrong here; see the receiver's log, and send it again."))


async def _handle(request: Request, body: Body, intake: Intake, settings: HttpSettings) -> Receipt:
    _check_token(request, settings.token)
    content = Content(request, settings.check_json)
    data = await body.read()
    now_ms = time.time_ns() // 1_000_000
    if len(data) < _LARGE_BYTES:
        records = content.records(data, now_ms)
    else:
        records = await asyncio.to_thread(content.records, data, now_ms)
    del data
    offer = _offered(intake, records, settings.wait_s)
    body.release()
    try:
        return await asyncio.shield(offer)
    except (JournalError, ReceiverError) as error:
        raise Refusal(503, str(error)) from error


def _offered(intake: Intake, records: Records, wait_s: float) -> asyncio.Task[Receipt]:
    try:
        offer = intake.offer(records, wait_s)
    except ReceiverError as error:
        raise Refusal(413 if intake.is_open else 503, str(error)) from error
    if isinstance(offer, Later):
        raise come_back(offer.delay_s, "More records come than are processed")
    return offer


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(shown.strip().encode("latin-1"), token.encode())
    if scheme.lower() != "bearer" or not same:
        raise Refusal(
            401,
            "The token is missing or wrong; send the header 'Authorization: Bearer <token>'.",
            {"www-authenticate": "Bearer"},
        )


def _answer(receipt: Receipt) -> dict[str, int]:
    offsets = receipt.offsets
    answer = {"lane": offsets.partition, "first": offsets.start, "until": offsets.until}
    return answer | ({"duplicates": receipt.duplicates} if receipt.duplicates else {})
