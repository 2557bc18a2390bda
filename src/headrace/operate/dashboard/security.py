"""Access control of the dashboard: host names, sessions, tokens of forms, response headers."""

import asyncio
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.options import require_whole
from headrace.errors import OptionError

SHORTEST_TOKEN: Final = 16
"""Smallest length of a sign-in token (characters). Shorter tokens could be guessed."""

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Host names under which a browser on this machine reaches this machine."""


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Address and access rights of the dashboard.

    Attributes:
        ledger: URL of the ledger.
        host: Address to listen on. If other machines can reach the address, a token is required,
            and reading needs the token too.
        port: Port to listen on; 0 takes a free one.
        token: Token with which operators sign in. Default: None, with which nobody can sign in.
        allowed_hosts: Further host names under which browsers may request the dashboard, such as
            the name of a proxy. Other names are refused, against DNS rebinding: a foreign page may
            point its own name at the dashboard's address.
        certificate: Certificate for HTTPS, as a PEM file; None serves HTTP.
        key: Private key of the certificate, as a PEM file.
        source_options: Options of the stream, for sending dead letters again.
    """

    ledger: str
    host: str = "127.0.0.1"
    port: int = 8480
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_whole("The dashboard's port", self.port, 0, 65_535)
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise OptionError(
                f"The token has {len(self.token)} characters; give at least {SHORTEST_TOKEN}"
                " characters, such as the output of `openssl rand -hex 32`."
            )
        if self.token is None and not self.is_local:
            raise OptionError(
                f"The dashboard would listen on {self.host} without a token, and other machines"
                " can reach this address; give a token with --token-file or"
                " HEADRACE_DASHBOARD_TOKEN."
            )
        if (self.certificate is None) != (self.key is None):
            raise OptionError(
                "Only one of --tls-certificate and --tls-key is given; give both, or neither."
            )

    @property
    def is_local(self) -> bool:
        """Whether the dashboard is reachable from this machine only."""
        return is_loopback(self.host)

    @property
    def names(self) -> frozenset[str]:
        """Host names, in lower case, under which requests are accepted."""
        own = LOOPBACK if self.is_local else {self.host}
        return frozenset(host.lower().strip("[]") for host in {*own, *self.allowed_hosts})


def is_loopback(host: str) -> bool:
    """Whether a server that listens on an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def new_token() -> str:
    """Return a random token of 32 bytes, in hexadecimal digits."""
    return secrets.token_hex(32)


SESSION_S: Final = 12 * 3_600
"""Time for which an operator stays signed in (s)."""

MOST_SESSIONS: Final = 1_000

MOST_BODY: Final = 64 * 1024
"""Largest body of a request (bytes). A form usually has a few hundred bytes."""

DISCARDED: Final = 64 * 1024 * 1024
"""If a body is too large, at most this many bytes of it are read and dropped, so that the sender
gets the response."""

DISCARD_S: Final = 5.0

MOST_FAILED: Final = 10
"""A network that sends this many wrong tokens within a minute cannot sign in until a minute after
the first of these tokens."""

MOST_ADDRESSES: Final = 10_000
"""Largest number of networks whose wrong tokens are remembered; the oldest network is forgotten
first."""

MOST_NAME: Final = 100
"""Largest length of an operator's name (characters); a longer name is cut."""

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_READING: Final = frozenset({"GET", "HEAD"})


class RefusedError(Exception):
    """Error for a request that the dashboard refuses, with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status: Final = status
        self.sentence: Final = sentence


@dataclass(frozen=True, slots=True)
class Session:
    """Session of an operator who has signed in.

    Attributes:
        who: The operator's name, which the ledger keeps with each action.
        form_token: Token that each form of the session must contain, against forged requests.
        until_s: End of the session, by the monotonic clock (s).
    """

    who: str
    form_token: str
    until_s: float


class Sessions:
    """Keeps the sessions of operators who have signed in, in memory only."""

    def __init__(self, token: str, seconds: Callable[[], float] = time.monotonic) -> None:
        self._token = token.encode()
        self._seconds = seconds
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def sign_in(self, token: str, who: str, address: str) -> str:
        """Begin a session of the operator ``who``. Return its cookie.

        Raise RefusedError for a wrong token, an empty name, and a network that sent `MOST_FAILED`
        wrong tokens within a minute.
        """
        now_s, who = self._seconds(), " ".join(who.split())[:MOST_NAME]
        failed = self._failed.get(_network(address))
        if failed and len(failed) == MOST_FAILED and now_s - failed[0] < 60:
            raise RefusedError(
                429, "There were too many wrong tokens within a minute; try again in a minute."
            )
        if not self.is_token(token):
            self._note_failed(_network(address), now_s)
            raise RefusedError(
                403,
                "The token is wrong; give the token with which `headrace dashboard` was started,"
                " or that it printed at its start.",
            )
        if not who:
            raise RefusedError(
                400, "The name is empty; give your name, which is kept with each of your actions."
            )
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session(who, secrets.token_urlsafe(32), now_s + SESSION_S)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def _note_failed(self, network: str, now_s: float) -> None:
        self._failed.setdefault(network, deque(maxlen=MOST_FAILED)).append(now_s)
        self._failed.move_to_end(network)
        while len(self._failed) > MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def is_token(self, token: str) -> bool:
        """Whether a token is the dashboard's token. The comparison takes constant time."""
        return hmac.compare_digest(token.encode("utf-8", "backslashreplace"), self._token)

    def of(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None without a cookie, or after the session's end."""
        session = self._sessions.get(cookie or "")
        if session is not None and session.until_s <= self._seconds():
            self.sign_out(cookie)
            return None
        return session

    def sign_out(self, cookie: str | None) -> None:
        """End the session of a cookie."""
        self._sessions.pop(cookie or "", None)


def _network(address: str) -> str:
    """Return the network of an address: an IPv4 address itself, or the /64 of an IPv6 address.

    A sender can use all addresses of its /64 network. Any other text is returned as it is.

    >>> _network("192.0.2.7"), _network("2001:db8::7"), _network("a socket")
    ('192.0.2.7', '2001:db8::/64', 'a socket')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else str(ip_network(f"{address}/64", strict=False))


class Guard:
    """ASGI application that refuses unsafe requests, and adds `HEADERS` to every response.

    It refuses requests whose Host is not one of the dashboard's names, requests whose body is too
    large, and forms that another site sends.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: DashboardSettings,
        refuse: Callable[[Request, RefusedError], Response],
    ) -> None:
        self._app = app
        self._names = settings.names
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application; add `HEADERS` to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        request = Request(scope, receive)
        try:
            check_host(request.headers, self._names)
            if request.method not in _READING:
                check_origin(request.headers)
                scope["headrace.form"] = await _form(request)
        except RefusedError as refused:
            await self._refuse(request, refused)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def check_host(headers: Headers, names: frozenset[str]) -> None:
    """Raise RefusedError unless a request has exactly one Host, which is one of ``names``."""
    named = headers.getlist("host")
    host = _host_of(named[0]) if len(named) == 1 else None
    if host is None or host not in names:
        raise RefusedError(
            421,
            f"This dashboard is not {named[0] if named else 'without a Host'!r}; ask for it as"
            f" {' or '.join(sorted(names))}, or start it with --allow-host for that name.",
        )


def _host_of(text: str) -> str | None:
    try:
        return urlsplit(f"//{text}").hostname
    except ValueError:
        return None


def check_origin(headers: Headers) -> None:
    """Raise RefusedError if Origin or Sec-Fetch-Site shows that another site sent a request."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    if foreign or site not in (None, "same-origin", "none"):
        raise RefusedError(403, "Another site has sent this form; use the dashboard's own pages.")


async def _form(request: Request) -> dict[str, str]:
    """Return a form's fields. Raise RefusedError for a body that is late, too large, or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(DISCARD_S):
            async for piece in request.stream():
                size += len(piece)
                if size <= MOST_BODY:
                    body += piece
                if size > DISCARDED:
                    break
    except TimeoutError:
        raise RefusedError(408, "The form did not arrive in time; send it again.") from None
    if size > MOST_BODY:
        raise RefusedError(
            413, f"The request has more than {MOST_BODY // 1024} KiB; forms have less than that."
        )
    if kind != "application/x-www-form-urlencoded":
        raise RefusedError(415, "A form is sent as application/x-www-form-urlencoded.")
    try:
        fields = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, max_num_fields=1_000, errors="strict"
        )
    except ValueError:
        raise RefusedError(400, "The form cannot be read; send it from the page.") from None
    if len(dict(fields)) != len(fields):
        raise RefusedError(400, "The form has a field twice; send it from the page.")
    return dict(fields)


def check_form(session: Session | None, form: Mapping[str, str]) -> Session:
    """Return ``session``; raise RefusedError if it is None or if the form lacks its form token."""
    if session is None:
        raise RefusedError(401, "Sign in first: each action is kept with the name of its operator.")
    token = form.get("form_token", "").encode("utf-8", "backslashreplace")
    if not hmac.compare_digest(token, session.form_token.encode()):
        raise RefusedError(
            403, "This form is from another session or an old page; load the page again."
        )
    return session
