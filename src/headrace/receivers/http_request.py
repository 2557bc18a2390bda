"""What RFC 9112 asks of a server beyond what h11 and uvicorn see to."""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.receivers.refusal import Refusal

_ABSOLUTE: Final = re.compile(rb"https?://[^/]*(/.*)?", re.IGNORECASE | re.DOTALL)

_AMBIGUOUS: Final = (
    "The request has both Content-Length and Transfer-Encoding, so that where it ends depends on"
    " who reads it; send one of them."
)


def framed(application: ASGIApp, refuse: Callable[[Request, Refusal], Response]) -> ASGIApp:
    """An application whose requests end where everybody on their way says that they end.

    A request with both Content-Length and Transfer-Encoding is refused, and its connection closed
    (RFC 9112 6.1): a proxy that goes by the other one would take a part of it for the next request.
    A target in absolute form, as a proxy is sent, is that of its path (3.2.2).

    Args:
        application: The application.
        refuse: Makes the answer to a request whose body is not read; it closes the connection.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            answer = refuse(Request(scope, receive), Refusal(400, _AMBIGUOUS))
            await answer(scope, receive, send)
            return
        if absolute := _ABSOLUTE.fullmatch(scope["raw_path"]):
            path: bytes = absolute[1] or b"/"
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii"))}
        await application(scope, receive, send)

    return run
