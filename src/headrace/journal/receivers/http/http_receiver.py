"""Receiver of records over HTTP, for services, devices and shell scripts."""

import asyncio
import math
from typing import Final

from headrace.core.timing import wall_clock_ms
from headrace.errors import JournalError, ReceiverError
from headrace.journal.receivers.access import Access, Tokens
from headrace.journal.receivers.connections import Connections, ListeningReceiver
from headrace.journal.receivers.deduplicator import Receipt
from headrace.journal.receivers.http.http_body import (
    RequestBody,
    RequestFormat,
)
from headrace.journal.receivers.http.http_connection import IDLE_S, HttpServer, Routes
from headrace.journal.receivers.http.http_message import (
    JSON,
    HttpAnswer,
    HttpRejection,
    HttpRequest,
    json_answer,
    retry_after,
)
from headrace.journal.receivers.http.status_routes import status_routes
from headrace.journal.receivers.intake import Intake, RetryAfter
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.settings import HttpSettings
from headrace.journal.records import Records

_LARGE_BYTES: Final = 64 * 1024
"""A body of at least this size (bytes) is parsed in a thread, so that other senders do not wait."""

_PARSED_AT_ONCE: Final = 2
"""Maximum number of large bodies that are parsed at the same time. While a body is parsed, it takes
twice its size in memory."""


_MANY_PARTS: Final = 256
"""A body with at least this many record separators is parsed in a thread, even if it is small."""


class HttpReceiver(ListeningReceiver[HttpSettings]):
    """Receiver of records by ``POST /records``, which answers 200 when the records are durable.

    ========================== ================================================================
    Content-Type               records in the body
    ========================== ================================================================
    application/json           one record, or for an array one record for each element
    application/x-ndjson       one record for each line; each line is JSON
    application/octet-stream   one record
    text/plain                 one record
    ========================== ================================================================

    The header ``Headrace-Key`` sets the key of all records in the request. With the header
    ``Headrace-Message-Id`` it is safe to repeat an unanswered request: its records are stored only
    once, as long as the receiver remembers the id (see `IntakeSettings`). A body may be compressed
    (Content-Encoding gzip or deflate). JSON is stored unchanged.

    A successful answer is ``{"lane": 0, "first": 500, "until": 520}``, with ``"duplicates": 20``
    if 20 of the records were already stored. Any other answer is ``{"error": ...}`` with one
    sentence, and no record of the request is acknowledged: 400 (malformed), 401 (token), 404 and
    405 (another path or method), 408 (too slow), 411 (no declared length), 413 and 431 (too large),
    415 and 501 (unsupported), 429 with Retry-After (the rate or the memory is used up; repeat the
    request later), 500 (a bug), 503 (not stored, the journal is at its cap, all connections are in
    use, or the receiver stops; repeat the request). With a certificate in the settings, all
    connections use TLS. `status_routes` describes ``GET /health``, ``/ready`` and ``/metrics``.

    Args:
        settings: Address and limits. Default: ``HttpSettings()``.
        stop_s: Time for which a stop waits for the answers to requests in progress (s). Default: 5.
        idle_s: Time for which a connection may be idle after an answer (s). Default: 75.
    """

    scheme = "http"
    path = "/records"

    def __init__(
        self,
        settings: HttpSettings | None = None,
        *,
        stop_s: int = 5,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(settings or HttpSettings())
        self._stop_s = stop_s
        self._idle_s = idle_s

    async def receive(self, intake: Intake) -> None:
        """Serve HTTP requests until cancelled; on cancellation, answer the requests in progress.

        Raises:
            OptionError: The token file, or a file with a certificate or key, cannot be used.
            ReceiverError: The port cannot be opened.
        """
        listener, access = self._take_listener()
        is_secured = self.settings.tls.certificate_file is not None
        most = intake.settings.connections(self.settings.max_connections, is_secured=is_secured)
        connections = Connections(most)
        bodies = MemoryBudget(intake.settings.bodies_bytes)
        server = HttpServer(
            routes(intake, self.settings, access, bodies),
            _USAGE,
            self.settings,
            connections=connections,
            rejections=intake.rejections,
            idle_s=self._idle_s,
        )
        await server.serve(listener, access, self._stop_s)


_USAGE: Final = (
    "This path or method is unknown; send records with POST /records, or use GET /health, /ready or"
    " /metrics."
)


def routes(intake: Intake, settings: HttpSettings, access: Access, bodies: MemoryBudget) -> Routes:
    """Return the request handlers of `HttpReceiver`; all bodies share the memory of ``bodies``."""
    parsing = asyncio.Semaphore(_PARSED_AT_ONCE)

    async def take(request: HttpRequest) -> HttpAnswer:
        body = RequestBody(request, bodies, settings)
        try:
            _check_token(request, access.tokens, intake)
            form = RequestFormat(request, settings)
            await body.read(form)
            records = await _parsed(form, body, parsing)
            receipt = await _stored(records, form.message_id, body, intake, settings.wait_s)
        except HttpRejection as rejection:
            rejection.count(intake.rejections)
            headers = rejection.headers
            if not request.is_whole:
                headers = headers | {"connection": "close"}
            return HttpAnswer(rejection.status, rejection.body, JSON, headers)
        finally:
            body.release()
        return _acknowledged(receipt)

    return {"/records": {"POST": take}, **status_routes(intake)}


def _acknowledged(receipt: Receipt) -> HttpAnswer:
    offsets = receipt.offsets
    answer = {"lane": offsets.partition, "first": offsets.start, "until": offsets.until}
    if receipt.duplicates:
        answer["duplicates"] = receipt.duplicates
    return json_answer(answer)


async def _parsed(form: RequestFormat, body: RequestBody, parsing: asyncio.Semaphore) -> Records:
    now_ms = wall_clock_ms()
    if body.size_bytes < _LARGE_BYTES and form.parts < _MANY_PARTS:
        return form.records(body.take(), now_ms)
    if body.size_bytes < _LARGE_BYTES:
        return await asyncio.to_thread(lambda: form.records(body.take(), now_ms))
    async with parsing:
        return await asyncio.to_thread(lambda: form.records(body.take(), now_ms))


async def _stored(
    records: Records,
    message_id: str | None,
    body: RequestBody,
    intake: Intake,
    wait_s: float,
) -> Receipt:
    receipt = _submit(intake, records, message_id, wait_s)
    body.release()
    try:
        return await asyncio.shield(receipt)
    except (JournalError, ReceiverError) as error:
        raise HttpRejection(503, str(error)) from error


def _submit(
    intake: Intake, records: Records, message_id: str | None, wait_s: float
) -> asyncio.Task[Receipt]:
    try:
        receipt = intake.try_submit(records, wait_s, message_id)
    except ReceiverError as error:
        raise HttpRejection(413 if intake.is_open else 503, str(error)) from error
    if isinstance(receipt, RetryAfter):
        if receipt.refusing is not None:
            raise HttpRejection(
                503, receipt.refusing, {"retry-after": str(math.ceil(receipt.delay_s))}
            )
        raise retry_after(receipt.delay_s, "Records arrive faster than the rate limit allows")
    return receipt


def _check_token(request: HttpRequest, tokens: Tokens, intake: Intake) -> None:
    if not tokens.names:
        return
    scheme, _, shown = request.value("authorization").partition(" ")
    name = tokens.name_of(shown.strip().encode("latin-1"))
    if scheme.lower() != "bearer" or name is None:
        raise HttpRejection(
            401,
            "The token is missing or wrong; send the header 'Authorization: Bearer <token>'.",
            {"www-authenticate": "Bearer"},
        )
    intake.token_uses[name] += 1
