"""What the paths that take records differ in: how a body is read, and how it is answered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.errors import SetupError
from headrace.receivers.deduplicator import Receipt
from headrace.receivers.http.http_body import BodyFormat, RequestFormat
from headrace.receivers.http.http_connection import HttpRejection
from headrace.receivers.settings import HttpSettings

_JSON: Final = "application/json"

_PARSED_AT_ONCE: Final = 2
"""Large bodies that are parsed at the same time: each takes its own size once more meanwhile."""


@dataclass(frozen=True)
class Exchange:
    """How the requests of one path are read and answered.

    Attributes:
        form: What reads a request's body; raises HttpRejection for a wrong header.
        success: The answer when the records are durable, if there were any.
        failure: The body of any other answer, and its content type.
        turn: How many large bodies are read at a time, each in a thread.
    """

    form: Callable[[Request], BodyFormat]
    success: Callable[[Request, Receipt | None], Response]
    failure: Callable[[Request, HttpRejection], tuple[bytes, str]]
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARSED_AT_ONCE))


def records_exchange(settings: HttpSettings) -> Exchange:
    """``POST /records``."""

    def success(_: Request, receipt: Receipt | None) -> Response:
        assert receipt is not None  # noqa: S101  (a body without records is rejected)
        offsets = receipt.offsets
        answer = {"lane": offsets.partition, "first": offsets.start, "until": offsets.until}
        if receipt.duplicates:
            answer["duplicates"] = receipt.duplicates
        return JSONResponse(answer)

    return Exchange(
        lambda request: RequestFormat(request, settings),
        success,
        lambda _, rejection: (rejection.body, _JSON),
    )


def logs_exchange(settings: HttpSettings) -> Exchange:
    """``POST /v1/logs``, of which one at a time is decoded: no budget counts that memory."""

    def form(request: Request) -> BodyFormat:
        try:
            from headrace.receivers.http import otlp  # noqa: PLC0415  # it needs an extra
        except SetupError as error:
            raise HttpRejection(501, str(error)) from error
        return otlp.OtlpFormat(request, settings)

    def success(request: Request, _: Receipt | None) -> Response:
        from headrace.receivers.http import otlp  # noqa: PLC0415

        content, media_type = otlp.success(request)
        return Response(content, media_type=media_type)

    def failure(request: Request, rejection: HttpRejection) -> tuple[bytes, str]:
        if rejection.status == 501:
            return rejection.body, _JSON
        from headrace.receivers.http import otlp  # noqa: PLC0415

        return otlp.failure(request, rejection.sentence)

    return Exchange(form, success, failure, asyncio.Semaphore(1))
