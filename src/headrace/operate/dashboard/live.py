"""Live pages: regions of HTML that the server renders, and sends again when they change.

A changed region is sent as a server-sent event, and the browser replaces the region. So a browser
without scripts shows the same regions, and each region has only one template, on the server.

One read of the ledger serves all viewers. While a page is viewed, four SQL statements twice a
second find the gates that have changed (``gate/ledger/moments.py``), and only these gates are read
again. After each round, the server rests for 19 times the round's processor time. So the dashboard
uses at most 5 % of a core, and refreshes a larger ledger less often.
"""

import asyncio
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import unquote

from sqlalchemy import make_url

from headrace.core.timing import wall_clock_ms
from headrace.errors import LedgerError, LedgerSchemaError, NoLedgerError
from headrace.gate import Ledger, normalize_url, redact_url
from headrace.operate.dashboard.fleet import Fleet

Answer = TypeVar("Answer")

TRY_AGAIN_S: Final = 1.0
"""If the ledger cannot be opened, it is opened again after this time at the earliest (s)."""


class LedgerLink:
    """Opens the ledger for reading at the first use, and again after an error.

    Until a gated query has created the ledger, an empty ledger takes its place. Methods may be
    called from any thread.
    """

    def __init__(self, url: str) -> None:
        """Parse a ledger's URL without opening the ledger; raise LedgerError if it is invalid."""
        self.url: Final = normalize_url(url)
        self.name: Final = unquote(redact_url(url))
        """URL of the ledger as pages show it, without secrets."""
        parsed = make_url(self.url)
        self._file = parsed.database if parsed.get_backend_name() == "sqlite" else None
        self._lock = threading.Lock()
        self._opened: Ledger | None = None
        self._identity: tuple[int, int] | None = None
        self._failed: tuple[float, LedgerError] | None = None
        self._was_there = False
        self._empty: Ledger | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_made(self) -> bool:
        """Whether the ledger is known to exist, because it has been opened at least once."""
        return self._was_there

    def ask(self, question: Callable[[Ledger], Answer]) -> Answer:
        """Call ``question`` with the ledger and return its result.

        After a LedgerError, the next call opens the ledger again.
        """
        ledger = self._current_or_empty()
        try:
            return question(ledger)
        except LedgerError:
            self._forget(ledger)
            raise

    @contextmanager
    def writing(self) -> Iterator[Ledger]:
        """Open the ledger for writing during the context, without creating or migrating it."""
        with Ledger.join(self.url) as ledger:
            yield ledger

    def refuse_another_schema(self) -> None:
        """Raise LedgerSchemaError if another version of Headrace wrote the ledger's schema.

        An unreachable ledger raises no error.
        """
        try:
            self.ask(lambda ledger: None)
        except LedgerSchemaError:
            raise
        except LedgerError:
            return

    def close(self) -> None:
        """Close the ledger. Delete the empty ledger that was used until the ledger existed."""
        with self._lock:
            ledgers, self._opened, self._empty = (self._opened, self._empty), None, None
            folder, self._folder = self._folder, None
        for ledger in ledgers:
            if ledger is not None:
                ledger.close()
        if folder is not None:
            folder.cleanup()

    def current(self) -> Ledger:
        """Return the ledger, open for reading. Use it at once, because it may be closed later."""
        with self._lock:
            if self._opened is not None and self._identity != self._file_now():
                # The file was deleted or replaced, so the open ledger is out of date.
                self._opened.close()
                self._opened = None
            if self._opened is None:
                self._open()
            assert self._opened is not None  # noqa: S101  (for mypy)
            return self._opened

    def _current_or_empty(self) -> Ledger:
        try:
            return self.current()
        except NoLedgerError:
            if self._was_there:
                raise
        with self._lock:
            if self._empty is None:
                self._folder = tempfile.TemporaryDirectory(prefix="headrace-")
                self._empty = Ledger.open(f"sqlite:///{self._folder.name}/empty.db")
            return self._empty

    def _open(self) -> None:
        if self._failed is not None and time.monotonic() - self._failed[0] < TRY_AGAIN_S:
            error = self._failed[1]
            raise type(error)(str(error)) from error
        try:
            self._identity = self._file_now()
            self._opened = Ledger.open(self.url, create=False)
            self._failed, self._was_there = None, True
        except LedgerError as error:
            self._failed = time.monotonic(), error
            raise

    def _forget(self, ledger: Ledger) -> None:
        with self._lock:
            if self._opened is ledger:
                self._opened = None
        # Not closed: other threads may still be reading from it.

    def _file_now(self) -> tuple[int, int] | None:
        """Return the SQLite file's device and inode; None if there is no file, as on PostgreSQL."""
        if self._file is None:
            return None
        try:
            status = os.stat(self._file)  # noqa: PTH116  (a URL's text, as SQLite takes it)
        except OSError:
            return None
        return status.st_dev, status.st_ino


_LOG: Final = logging.getLogger("headrace.dashboard")

ROUND_S: Final = 0.5
"""Shortest interval between two rounds (s). A round reads the ledger and updates the pages."""

REST: Final = 19
"""After a round, the server rests for the round's processor time multiplied by this number."""

REFRESH_S: Final = 5.0
"""A page is rendered again after this time (s) even if the ledger has not changed, because the
ages that the page shows change, and a gate may have fallen silent."""

KEPT_S: Final = 60.0
"""Time for which a page's state is kept after its last viewer has left (s), in case a viewer
returns."""

MOST_CHANNELS: Final = 500
MOST_VIEWERS: Final = 200
"""Largest number of viewers with live pages; pages of further viewers are not updated."""

HEARTBEAT_S: Final = 5.0
"""Longest interval between two events to a viewer (s), so that both sides notice a lost
connection."""


@dataclass(frozen=True, slots=True)
class View:
    """Content of a page at one moment.

    Attributes:
        regions: HTML of each region, by the identifier of the region's HTML element.
        orders: For each list, by its identifier: the identifiers of the regions in the list, in
            order.
    """

    regions: Mapping[str, str]
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)


Look = Callable[[Ledger, Fleet, int], View]
"""Function that renders a page from the ledger, all gates and the time (ms since the epoch)."""

Revision = Callable[[Fleet], object]
"""Function that returns a value which changes when a page may have something new to show."""


class Channel:
    """A viewed page. For each region, it has the HTML and the page's version at its last change."""

    def __init__(self, look: Look, revision: Revision) -> None:
        self.look: Final = look
        self.revision: Final = revision
        self.viewers = 0
        self.version = 0
        self.used_s = time.monotonic()
        self._seen: object = None
        self._made_s = 0.0
        self._regions: dict[str, tuple[int, str]] = {}
        self._orders: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._view: View | None = None

    def refresh(self, ledger: Ledger, fleet: Fleet) -> View:
        """Return the page's present view; render it again only if its content may have changed."""
        seen, now_s = self.revision(fleet), time.monotonic()
        if self._view is None or seen != self._seen or now_s - self._made_s >= REFRESH_S:
            view = self.look(ledger, fleet, wall_clock_ms())
            self._seen, self._made_s, self._view = seen, now_s, view
            self._publish(view)
        return self._view

    def _publish(self, view: View) -> None:
        version, new = self.version + 1, False
        regions = dict[str, tuple[int, str]]()
        for name, html in view.regions.items():
            region = self._regions.get(name)
            if region is None or region[1] != html:
                region, new = (version, html), True
            regions[name] = region
        orders = dict[str, tuple[int, tuple[str, ...]]]()
        for name, order in view.orders.items():
            before = self._orders.get(name)
            if before is None or before[1] != tuple(order):
                before, new = (version, tuple(order)), True
            orders[name] = before
        self._regions, self._orders = regions, orders
        if new:
            self.version = version

    def since(self, version: int) -> str | None:
        """Return what has changed since a version of the page, as JSON; None if nothing changed."""
        if version >= self.version:
            return None
        regions = {name: html for name, (at, html) in self._regions.items() if at > version}
        orders = {name: order for name, (at, order) in self._orders.items() if at > version}
        return json.dumps({"regions": regions, "orders": orders})


class LiveHub:
    """Reads the ledger once for all viewed pages, and sends changed regions to the viewers."""

    def __init__(self, link: LedgerLink) -> None:
        self.id: Final = secrets.token_hex(4)
        self.fleet: Final = Fleet()
        self.away: str | None = None
        """Error of the last read of the ledger; None if the last read succeeded."""
        self.read_ms: int | None = None
        """Time of the last successful read of the ledger (ms since the epoch); None without one."""
        self._link = link
        self._channels: dict[str, Channel] = {}
        self._viewers = 0
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()
        self._closing = False

    async def view(self, key: str, look: Look, revision: Revision) -> tuple[View | None, str]:
        """Return a page's view and its version; the view is None if the ledger cannot be read."""
        channel = self._channels.setdefault(key, Channel(look, revision))
        channel.used_s = time.monotonic()
        async with self._looking:
            view = await asyncio.to_thread(self._refresh_one, channel)
        return view, f"{self.id}-{channel.version}"

    def _refresh_one(self, channel: Channel) -> View | None:
        def ask(ledger: Ledger) -> View:
            self.fleet.look(ledger)
            return channel.refresh(ledger, self.fleet)

        try:
            view = self._link.ask(ask)
        except LedgerError as error:
            self.away = str(error)
            return None
        self.away, self.read_ms = None, wall_clock_ms()
        return view

    async def run(self) -> None:
        """Update the viewed pages in rounds until cancelled; wait while no page is viewed."""
        while True:
            await self._wanted.wait()
            async with self._looking:
                spent_s = await asyncio.to_thread(self._round)
            async with self._changed:
                self._changed.notify_all()
            self._expire()
            await asyncio.sleep(max(ROUND_S, REST * spent_s))

    def _round(self) -> float:
        """Update every viewed page once. Return the processor time that this took (s)."""
        began_s = time.thread_time()
        watched = [page for page in list(self._channels.values()) if page.viewers]

        def ask(ledger: Ledger) -> None:
            self.fleet.look(ledger)
            for channel in watched:
                try:
                    channel.refresh(ledger, self.fleet)
                except LedgerError:
                    raise
                except Exception:  # noqa: BLE001  (any error of a page)
                    # One page fails, such as the page of a pruned batch; other pages are updated.
                    _LOG.debug("A live page could not be updated.", exc_info=True)

        try:
            self._link.ask(ask)
            self.away, self.read_ms = None, wall_clock_ms()
        except LedgerError as error:
            self.away = str(error)
        return time.thread_time() - began_s

    def _expire(self) -> None:
        idle = sorted(
            (channel.used_s, key) for key, channel in self._channels.items() if not channel.viewers
        )
        too_many = len(self._channels) - MOST_CHANNELS
        for number, (used_s, key) in enumerate(idle):
            if number < too_many or time.monotonic() - used_s > KEPT_S:
                del self._channels[key]

    def can_watch(self) -> bool:
        """Whether the number of live viewers is below `MOST_VIEWERS`."""
        return self._viewers < MOST_VIEWERS

    async def watch(
        self, key: str, look: Look, revision: Revision, seen: str
    ) -> AsyncIterator[str]:
        """Yield server-sent events for a viewer of a page, until the viewer disconnects.

        ``seen`` is the version that the viewer has already.
        """
        channel = self._channels.setdefault(key, Channel(look, revision))
        hub, _, number = seen.partition("-")
        version = int(number) if hub == self.id and number.isdecimal() else 0
        channel.viewers += 1
        self._viewers += 1
        self._wanted.set()
        reported: object = ()
        try:
            yield "retry: 1000\n\n"
            while not self._closing:
                changed, version = channel.since(version), channel.version
                if changed is not None:
                    yield f"id: {self.id}-{version}\nevent: patch\ndata: {changed}\n\n"
                if reported != self.away:
                    reported = self.away
                    yield f"event: ledger\ndata: {json.dumps({'away': self.away})}\n\n"
                try:
                    async with self._changed, asyncio.timeout(HEARTBEAT_S):
                        await self._changed.wait()
                except TimeoutError:
                    yield f"event: beat\ndata: {self.read_ms or 0}\n\n"
        finally:
            channel.viewers -= 1
            channel.used_s = time.monotonic()
            self._viewers -= 1
            if not self._viewers:
                self._wanted.clear()

    async def close(self) -> None:
        """End the event streams of all viewers."""
        self._closing = True
        async with self._changed:
            self._changed.notify_all()
