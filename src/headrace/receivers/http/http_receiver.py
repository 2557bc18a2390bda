"""Records over HTTP: the receiver for services, devices and shell scripts."""

import asyncio
import contextlib
import hmac
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.clock import wall_clock_ms
from headrace.errors import JournalError, ReceiverError
from headrace.journal.records import Records
from headrace.receivers.connections import Connections, ListeningReceiver
from headrace.receivers.deduplicator import Receipt
from headrace.receivers.http.http_body import RequestBody, RequestFormat
from headrace.receivers.http.http_connection import (
    HttpRejection,
    limited_protocol,
    retry_after,
    with_strict_framing,
)
from headrace.receivers.intake import Intake, RetryAfter
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.settings import HttpSettings

_LARGE_BYTES: Final = 64 * 1024
"""A body from this size on is parsed in a thread, so that the other senders do not wait."""

_PARSED_AT_ONCE: Final = 2
"""Large bodies that are parsed at the same time: each takes its own size once more meanwhile."""


class HttpReceiver(ListeningReceiver):
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
    Retry-After (the rate or the memory is used up: send it again then), 500 (a defect), 503 (it
    could not be stored, or the receiver stops: send it again). ``GET /health`` is 200 while it
    runs.

    Args:
        settings: The limits. Default: those of `HttpSettings`.
        stop_s: How long a stop waits for requests that are being answered (s). Default: 5.
    """

    def __init__(self, settings: HttpSettings | None = None, *, stop_s: int = 5) -> None:
        self.settings = settings or HttpSettings()
        super().__init__(self.settings.host, self.settings.port)
        self._stop_s = stop_s

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled, as `Receiver.receive` says.

        Raises:
            ReceiverError: The port cannot be opened.
        """
        listener = self._take_listener()
        server = _Server(self._config(intake))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await serving

    def _config(self, intake: Intake) -> uvicorn.Config:
        settings = self.settings
        connections = Connections(settings.max_connections)
        return uvicorn.Config(
            application(intake, settings),
            http=limited_protocol(connections, settings, intake.rejections),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=settings.max_header_bytes,
            timeout_keep_alive=int(settings.header_s) + 1,  # longer: the headers are timed anyway
            timeout_graceful_shutdown=self._stop_s,
        )


class _Server(uvicorn.Server):
    """Leaves signals to the host."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Rejected(Response):
    """Answers at once, and ends when its sender has sent all, or would not stop sending."""

    media_type = "application/json"

    def __init__(self, rejection: HttpRejection, body: RequestBody) -> None:
        headers = {} if body.ended else {"connection": "close"}
        super().__init__(rejection.body, rejection.status, rejection.headers | headers)
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await self._request_body.discard()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def application(intake: Intake, settings: HttpSettings) -> ASGIApp:
    """The routes of `HttpReceiver` as an ASGI application."""
    budget = MemoryBudget(settings.bodies_bytes)
    parsing = asyncio.Semaphore(_PARSED_AT_ONCE)

    async def records(request: Request) -> Response:
        body = RequestBody(request, settings, budget)
        try:
            receipt = await _handle(request, body, intake, settings, parsing)
        except HttpRejection as rejection:
            rejection.count(intake.rejections)
            return _Rejected(rejection, body)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        finally:
            body.release()
        return JSONResponse(_answer(receipt))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def reject(request: Request, rejection: HttpRejection) -> Response:
        rejection.count(intake.rejections)
        return _Rejected(rejection, RequestBody(request, settings, budget))

    async def not_routed(_: Request, error: Exception) -> Response:
        """Another path, or a method that a path does not have."""
        assert isinstance(error, HTTPException)  # noqa: S101  (Starlette calls it with no other)
        rejection = HttpRejection(
            error.status_code,
            "There are POST /records, which takes records, and GET /health; use one of them.",
            dict(error.headers or {}),
        )
        rejection.count(intake.rejections)
        return _plain(rejection)

    routes = [
        Route("/records", records, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    handlers = {HTTPException: not_routed, Exception: _defect}
    routed = Starlette(routes=routes, exception_handlers=handlers)
    # It would redirect to the address in the Host header, which the sender may have made up.
    routed.router.redirect_slashes = False
    return with_strict_framing(routed, reject)


def _plain(rejection: HttpRejection) -> Response:
    return Response(rejection.body, rejection.status, rejection.headers, "application/json")


async def _defect(_: Request, error: Exception) -> Response:
    sentence = "The receiver failed; see its log, and send the request again."
    return _plain(HttpRejection(500, sentence))


async def _handle(
    request: Request,
    body: RequestBody,
    intake: Intake,
    settings: HttpSettings,
    parsing: asyncio.Semaphore,
) -> Receipt:
    _check_token(request, settings.token)
    form = RequestFormat(request, settings)
    await body.read(form)
    now_ms = wall_clock_ms()
    if body.size_bytes < _LARGE_BYTES:
        records = form.records(body.take(), now_ms)
    else:
        async with parsing:
            records = await asyncio.to_thread(lambda: form.records(body.take(), now_ms))
    receipt = _submit(intake, records, settings.wait_s)
    body.release()
    try:
        return await asyncio.shield(receipt)
    except (JournalError, ReceiverError) as error:
        raise HttpRejection(503, str(error)) from error


def _submit(intake: Intake, records: Records, wait_s: float) -> asyncio.Task[Receipt]:
    try:
        receipt = intake.try_submit(records, wait_s)
    except ReceiverError as error:
        raise HttpRejection(413 if intake.is_open else 503, str(error)) from error
    if isinstance(receipt, RetryAfter):
        raise retry_after(receipt.delay_s, "Records arrive faster than they are processed")
    return receipt


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(shown.strip().encode("latin-1"), token.encode())
    if scheme.lower() != "bearer" or not is_same:
        raise HttpRejection(
            401,
            "The token is missing or wrong; send the header 'Authorization: Bearer <token>'.",
            {"www-authenticate": "Bearer"},
        )


def _answer(receipt: Receipt) -> dict[str, int]:
    offsets = receipt.offsets
    answer = {"lane": offsets.partition, "first": offsets.start, "until": offsets.until}
    return answer | ({"duplicates": receipt.duplicates} if receipt.duplicates else {})
