"""The dashboard's web application, with routes for pages, forms, live events and metrics."""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from headrace import __version__
from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError, LedgerError, SetupError
from headrace.operate.dashboard.action_forms import perform
from headrace.operate.dashboard.failure_pages import (
    batch_page,
    failures_page,
    group_page,
    letter_page,
)
from headrace.operate.dashboard.gate_page import batches_page, gate_page, partitions_page, series_of
from headrace.operate.dashboard.live import LedgerLink, LiveHub
from headrace.operate.dashboard.overview_page import (
    COLUMNS_CSS,
    actions_page,
    flows_page,
    overview_page,
    receivers_page,
    verify_page,
)
from headrace.operate.dashboard.pages import NotFoundError, Page, Query, Site, environment
from headrace.operate.dashboard.security import (
    DashboardSettings,
    Guard,
    RefusedError,
    Session,
    Sessions,
    check_form,
    new_token,
)
from headrace.operate.metrics import OPENMETRICS_TYPE, PROMETHEUS_TYPE
from headrace.operate.metrics.scrape import MetricsMemory, exposition
from headrace.operate.status.gate_actions import FORMS_CSS

_LOG: Final = logging.getLogger("headrace.dashboard")

_STATIC: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "uplot.css": "text/css; charset=utf-8",
    "uplot.js": "text/javascript; charset=utf-8",
    "uplot-LICENSE.txt": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

PAGES: Final[tuple[tuple[str, Callable[[Site, str, Query], Page]], ...]] = (
    ("/gate/", gate_page),
    ("/batches", batches_page),
    ("/partitions", partitions_page),
    ("/failures/alike", group_page),
    ("/failures", failures_page),
    ("/batch/", batch_page),
    ("/letter/", letter_page),
    ("/flows", flows_page),
    ("/receivers", receivers_page),
    ("/verify", verify_page),
    ("/actions", actions_page),
    ("/", overview_page),
)
"""Paths of the pages, each with the function that returns the page. A path that ends with ``/`` is
followed by a name, which the function receives."""


_MOST_OUTCOMES: Final = 100
"""The server keeps the outcomes of at most this many actions, to show them on the next page."""


class _AnyPath(PathConvertor):
    """Route parameter for a path with any characters, line ends included, as in gates' names."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyPath())


class Dashboard:
    """The web application and its state: link to the ledger, live pages, sessions, outcomes."""

    def __init__(self, settings: DashboardSettings) -> None:
        """Build the application without opening the ledger; raise LedgerError for a wrong URL."""
        self.settings: Final = settings
        self.token: Final = settings.token or new_token()
        self.link: Final = LedgerLink(settings.ledger)
        self.hub: Final = LiveHub(self.link)
        self.sessions: Final = Sessions(self.token)
        self._outcomes: Final = OrderedDict[str, tuple[str, str, str]]()
        self.port = settings.port
        self._memory: Final = MetricsMemory(self.hub.fleet.lags)
        self._scraping: Final = threading.Lock()
        self._site: Final = Site(environment(), self.link, settings.source_options)
        routes = [
            Route("/static/{name}", self._static),
            Route("/live", self._live),
            Route("/series/{name:any}", self._series),
            Route("/metrics", self._metrics),
            Route("/sign-in", self._sign_in_page, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/act/{what}", self._act, methods=["POST"]),
            Route("/done/{name}", self._done, methods=["GET"]),
            Route("/{path:any}", self._page, methods=["GET"]),
        ]
        starlette = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={
                RefusedError: self._refused,  # type: ignore[dict-item]
                HTTPException: self._http_error,  # type: ignore[dict-item]
                HeadraceError: self._headrace_error,  # type: ignore[dict-item]
                Exception: self._defect,
            },
        )
        self.app: Final = Guard(starlette, settings, self._refused)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self.hub.run())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            self.link.close()

    # Reading

    async def _page(self, request: Request) -> Response:
        if (refused := self._reader_only(request)) is not None:
            return refused
        page = self._find(request.scope["path"], dict(request.query_params))
        view, seen = await self.hub.view(page.key, page.look, page.revision)
        values: dict[str, Any] = {"page": page, "seen": seen, "view": view}
        if view is None:
            return self._respond(request, "away.html", 503, away=self.hub.away, **values)
        if page.beside is not None:
            beside = page.beside
            values |= await asyncio.to_thread(self.link.ask, beside)
        return self._respond(request, page.template, **values)

    def _find(self, path: str, query: Query) -> Page:
        for begins, make in PAGES:
            has_name = begins.endswith("/") and begins != "/"
            if path == begins or (has_name and path.startswith(begins)):
                return make(self._site, path.removeprefix(begins), query)
        raise NotFoundError("The dashboard has no page at this address.")

    async def _live(self, request: Request) -> Response:
        if (refused := self._reader_only(request)) is not None:
            return refused
        if not self.hub.can_watch():
            raise RefusedError(
                503, "Too many browsers have the dashboard open; load the page again later."
            )
        at = urlsplit(request.query_params.get("at", "/"))
        page = self._find(unquote(at.path), dict(parse_qsl(at.query)))
        seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        events = self.hub.watch(page.key, page.look, page.revision, seen)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _series(self, request: Request) -> Response:
        if (refused := self._reader_only(request)) is not None:
            return refused
        name, query = request.path_params["name"], dict(request.query_params)
        now_ms = wall_clock_ms()
        series = await asyncio.to_thread(
            self.link.ask, lambda ledger: series_of(ledger, name, query, now_ms)
        )
        return JSONResponse(series, headers={"cache-control": "no-store"})

    async def _metrics(self, request: Request) -> Response:
        if (refused := self._reader_only(request)) is not None:
            return refused
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        query = request.query_params

        def scrape() -> bytes:
            with self._scraping:
                return exposition(
                    self.link.current,
                    memory=self._memory,
                    openmetrics=openmetrics,
                    per_partition="per-partition" in query,
                    kafka_exporter_names="kafka-exporter-names" in query,
                )

        text = await asyncio.to_thread(scrape)
        kind = OPENMETRICS_TYPE if openmetrics else PROMETHEUS_TYPE
        return Response(text, headers={"content-type": kind, "cache-control": "no-store"})

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise NotFoundError("The dashboard has no file at this address.")
        data = resources.files("headrace.operate.dashboard").joinpath("static", name).read_bytes()
        if name == "dashboard.css":
            data += (COLUMNS_CSS + FORMS_CSS).encode()
        headers = {"cache-control": "public, max-age=86400", "etag": f'"{__version__}"'}
        return Response(data, media_type=_STATIC[name], headers=headers)

    def _reader_only(self, request: Request) -> Response | None:
        """Return the sign-in page if the client may not read pages; None if it may.

        Raise RefusedError if the client may not read pages and does not accept HTML.
        """
        if self.settings.is_local or self._session(request) is not None:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.sessions.is_token(token.strip()):
            return None
        if "text/html" not in request.headers.get("accept", ""):
            raise RefusedError(401, "Sign in, or send the token as `Authorization: Bearer TOKEN`.")
        target = _address(request)
        return self._respond(request, "sign_in.html", 401, next=target, sentence=None)

    # Signing in

    @property
    def _cookie(self) -> str:
        # All ports of a host share cookies, so the name includes the port.
        return f"headrace_session_{self.port}"

    def _session(self, request: Request) -> Session | None:
        return self.sessions.of(request.cookies.get(self._cookie))

    async def _sign_in_page(self, request: Request) -> Response:
        target = _own_path(request.query_params.get("next", "/"))
        return self._respond(request, "sign_in.html", next=target, sentence=None)

    async def _sign_in(self, request: Request) -> Response:
        form: Mapping[str, str] = request.scope["headrace.form"]
        target = _own_path(form.get("next", "/"))
        try:
            token, address = form.get("token", "").strip(), _client(request)
            cookie = self.sessions.sign_in(token, form.get("who", ""), address)
        except RefusedError as refused:
            return self._respond(
                request, "sign_in.html", refused.status, next=target, sentence=refused.sentence
            )
        answer = RedirectResponse(target, status_code=303)
        answer.set_cookie(
            self._cookie,
            cookie,
            httponly=True,
            samesite="strict",
            secure=self.settings.certificate is not None,
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        check_form(self._session(request), request.scope["headrace.form"])
        self.sessions.sign_out(request.cookies.get(self._cookie))
        answer = RedirectResponse("/", status_code=303)
        answer.delete_cookie(self._cookie)
        return answer

    # Actions

    async def _act(self, request: Request) -> Response:
        form: Mapping[str, str] = request.scope["headrace.form"]
        session = check_form(self._session(request), form)
        action = request.path_params["what"]
        outcome = await asyncio.to_thread(perform, self._site, action, form, session.who)
        _LOG.info("Action %s by %s: %s", action, session.who, outcome)
        # The outcome has a page of its own, so loading it again does not act again.
        name = secrets.token_urlsafe(9)
        self._outcomes[name] = session.form_token, outcome, _own_path(form.get("next", "/"))
        while len(self._outcomes) > _MOST_OUTCOMES:
            self._outcomes.popitem(last=False)
        return RedirectResponse(f"/done/{name}", status_code=303)

    async def _done(self, request: Request) -> Response:
        token, sentence, next_page = self._outcomes.get(request.path_params["name"], ("", "", ""))
        session = self._session(request)
        if session is None or session.form_token != token:
            return RedirectResponse("/actions", status_code=303)
        return self._respond(request, "done.html", sentence=sentence, next=next_page)

    # Responses

    def _respond(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        html = self._site.templates.get_template(template).render(
            session=self._session(request),
            ledger=self.link.name,
            version=__version__,
            now_ms=wall_clock_ms(),
            here=_address(request),
            **{"page": None, "seen": None, "view": None} | values,
        )
        return HTMLResponse(html, status, headers={"cache-control": "no-store"})

    def _refused(self, request: Request, refused: RefusedError) -> Response:
        answer = self._respond(request, "refused.html", refused.status, sentence=refused.sentence)
        if refused.status in (408, 413):
            answer.headers["connection"] = "close"
        return answer

    def _http_error(self, request: Request, error: HTTPException) -> Response:
        return self._refused(request, RefusedError(error.status_code, f"{error.detail}."))

    def _headrace_error(self, request: Request, error: HeadraceError) -> Response:
        status = 503 if isinstance(error, LedgerError) else 400
        if isinstance(error, NotFoundError):
            status = 404
        return self._refused(request, RefusedError(status, str(error)))

    def _defect(self, request: Request, error: Exception) -> Response:
        _LOG.error("The dashboard failed to serve the page %s.", _address(request), exc_info=error)
        sentence = "The dashboard failed to serve this page; its log has the details."
        return self._refused(request, RefusedError(500, sentence))


def _client(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _address(request: Request) -> str:
    query = request.scope["query_string"]
    sent: bytes = request.scope["raw_path"] + (b"?" + query if query else b"")
    return sent.decode("ascii", "replace")


def _own_path(target: str) -> str:
    """Return ``target`` if it is a path of the dashboard, else ``/``.

    So a redirect never leads to another site.
    """
    is_own = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isprintable() else "/"


STOP_S: Final = 2
"""When the server stops, it waits at most this long for unfinished responses (s)."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(settings: DashboardSettings, started: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C.

    Args:
        settings: Address and access rights of the dashboard.
        started: Called with the dashboard's URL once it accepts requests.

    Raises:
        SetupError: The port cannot be opened.
        LedgerError: The URL in the settings is not the URL of a ledger.
        LedgerSchemaError: Another version of Headrace wrote the ledger's schema.
    """
    dashboard = Dashboard(settings)
    dashboard.link.refuse_another_schema()
    listener = open_listener(settings.host, settings.port)
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    dashboard.port = listener.getsockname()[1]
    server = _Server(
        uvicorn.Config(
            dashboard.app,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
            timeout_graceful_shutdown=STOP_S,
        ),
        lambda: started(f"{scheme}://{host}:{dashboard.port}/"),
        dashboard,
    )
    with contextlib.closing(listener):
        server.run(sockets=[listener])


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise SetupError if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SetupError(
            f"The dashboard cannot listen on {host} port {port}: {error.strerror or error}; name"
            " another port with --port, or 0 for a free port."
        ) from error
    return listener


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, answers: Callable[[], None], dashboard: Dashboard
    ) -> None:
        super().__init__(config)
        self._answers = answers
        self._dashboard = dashboard

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server in good order on SIGTERM and Ctrl-C.

        Uvicorn's own method raises the signal once more after the stop. The command would then end
        with a traceback or by the signal.
        """
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._answers()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dashboard.hub.close()
        await super().shutdown(sockets)
