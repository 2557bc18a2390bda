"""Access to a ledger's database: the URL, the timeouts, and the retries during an outage."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from headrace.core.backoff import Backoff
from headrace.core.named_functions import wrong_name
from headrace.core.timing import Clock, WarnOnce, cancellation
from headrace.errors import LedgerError

FORMS: Final = "sqlite:///headrace.db or postgresql://user:password@host/database"
_SECRET_OPTION: Final = re.compile("pass|secret|token|key", re.IGNORECASE)
PASSWORD_FROM: Final = "password_from"  # noqa: S105
"""Option of the URL: a function of the program that returns the password of each login."""

A_PASSWORD: Final = "the password as a text"  # noqa: S105
"""Expected return value of the ``password_from`` function, in words for an error."""

_SHOWN_OPTIONS: Final = frozenset({PASSWORD_FROM, "passfile", "sslkey", "sslkeylogfile"})
"""Options whose names look like secrets, but whose values name a function or a file."""

_HOST: Final = r"[\w.-]+(?::\d+)?"
_HOSTS: Final = re.compile(
    rf"(postgresql(?:\+psycopg)?://(?:[^@/?#]*@)?)((?:{_HOST},)+{_HOST})(|[/?].*)",
    re.ASCII | re.DOTALL,
)
"""URL with several hosts, as PostgreSQL's own client accepts: text before the hosts, hosts, text
after."""


def parse_url(url: str) -> URL:
    """Parse a ledger URL: a SQLite path becomes absolute, PostgreSQL gets the driver psycopg.

    LedgerError is raised for a URL that is not a ledger's. The message contains no part of a
    password, even if a malformed URL does not show which part is the password.
    """
    parsed = _understood(url)
    if parsed is None:
        raise LedgerError(f"The ledger URL cannot be understood; write {FORMS}.")
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return _sqlite(parsed)
        case "postgresql" | "postgresql+psycopg":
            return _postgresql(parsed, url)
        case driver:
            raise LedgerError(f"A ledger cannot be kept in {driver!r}; write {FORMS}.")


def normalize_url(url: str) -> str:
    """Return a ledger URL in full, valid for a process in another folder.

    The returned URL contains the password: use :func:`redact_url` for logs and errors. Like all
    functions of this module, `normalize_url` raises `LedgerError` for a URL that is not a ledger's.
    """
    return parse_url(url).render_as_string(hide_password=False)


def redact_url(url: str | URL) -> str:
    """Return a ledger URL with ``***`` for its password and for the secrets in its options.

    >>> redact_url("postgresql://app:hunter2@db/orders?sslpassword=hunter3")
    'postgresql+psycopg://app:***@db/orders?sslpassword=***'
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    hidden = {name: "***" if _is_secret(name) else v for name, v in parsed.query.items()}
    text = parsed.set(query=hidden).render_as_string(hide_password=True)
    return text.replace("%2A%2A%2A", "***")


def without_secrets(url: str) -> str:
    """Return a ledger URL in full, but without its password and secret options.

    >>> without_secrets("postgresql://app:hunter2@db/orders?sslpassword=hunter3&sslmode=require")
    'postgresql+psycopg://app@db/orders?sslmode=require'
    """
    parsed = parse_url(url)
    if not secrets_of(parsed):
        return parsed.render_as_string(hide_password=False)
    shown = {name: value for name, value in parsed.query.items() if not _is_secret(name)}
    bare = URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database, shown
    )
    return bare.render_as_string(hide_password=False)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return the secrets of a URL: the password, and the values of secret options."""
    secrets = [url.password] if url.password else []
    for name, value in url.query.items():
        if _is_secret(name):
            secrets += [value] if isinstance(value, str) else value
    return tuple(secret for secret in secrets if secret)


def _is_secret(option: str) -> bool:
    return option not in _SHOWN_OPTIONS and _SECRET_OPTION.search(option) is not None


def _understood(url: str) -> URL | None:
    several = _HOSTS.fullmatch(url)
    before, hosts, after = several.groups() if several else (url, "", "")
    try:
        parsed = make_url(before + after) if "\0" not in url else None
    except (ArgumentError, ValueError):
        # The text of these errors quotes the URL, and would stay the context of an exception
        # raised here.
        return None
    if parsed is None or "," in (parsed.host or ""):
        return None
    named = [("host", host) for host in hosts.split(",") if host]
    return parsed.update_query_pairs(named, append=True)


def _sqlite(url: URL) -> URL:
    if url.host or url.username or url.query:
        raise LedgerError(
            "The URL of a SQLite ledger is three slashes and a path, without options: write "
            "sqlite:///headrace.db, or sqlite:////var/lib/headrace.db for an absolute path."
        )
    path = url.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise LedgerError(
            f"A ledger cannot be kept in {path!r}, for it is shared between processes; "
            "write the path of a file: sqlite:///headrace.db."
        )
    return url.set(drivername="sqlite", database=str(Path(path).absolute()))


def _postgresql(url: URL, text: str) -> URL:
    if text.count("@") > 1:  # An error would show the end of the password as a machine's name.
        raise LedgerError(
            "The ledger URL has more than one '@'; write one in its user or password as %40."
        )
    name = url.query.get(PASSWORD_FROM)
    if name is not None:
        if url.password or "password" in url.query or not isinstance(name, str):
            raise LedgerError(
                f"The ledger URL has more than one password; leave {PASSWORD_FROM} or the other one"
                " out."
            )
        if wrong := wrong_name(f"{PASSWORD_FROM} of the ledger URL", name, A_PASSWORD):
            raise LedgerError(wrong)
    return url.set(drivername="postgresql+psycopg")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a ledger's database (s).

    Attributes:
        retry_s: Wait for an unreachable database, each time; 0 for none. Default: 0.
        lock_s: Wait for another client's transaction, if neither the URL nor the server sets
            ``lock_timeout``. The ledger's own transactions take milliseconds. Default: 10.
        connect_s: Wait for the answer of a PostgreSQL server, if the URL sets no
            ``connect_timeout``. Default: 5.
        clock: Clock of the waits.
    """

    retry_s: float = 0
    lock_s: float = 10
    connect_s: int = 5
    clock: Clock = time


NO_RETRIES: Final = Timeouts()

OF_A_QUERY: Final = Timeouts(retry_s=600)
"""Timeouts of a running query. The wait is longer than a restart, a failover or an upgrade of a
database server takes, so none of these ends a query. It is short enough that operators of a
query learn the same morning that a database is gone for good."""

_BACKOFF: Final = Backoff(first_ms=100, most_ms=2_000)
"""Waits between two tries. The first wait replaces a single cut connection; the longest is the
delay until a database that is reachable again is noticed."""

_LOG: Final = logging.getLogger("headrace.ledger")
_Answer = TypeVar("_Answer")


class OutageError(LedgerError):
    """Error of a database that cannot be reached, or has cut the connection; waiting may help.

    The outcome of a write is unknown then: its answer was lost.
    """


def next_wait_s(tries: int, waited_s: float, retry_timeout_s: float) -> float | None:
    """Return the wait before the next try (s), or None after the retry timeout.

    >>> [next_wait_s(tries, 10, 600) for tries in (1, 2, 5, 6, 60)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    >>> next_wait_s(9, 599.5, 600), next_wait_s(9, 600, 600)
    (0.5, None)
    """
    if waited_s >= retry_timeout_s:
        return None
    return min(_BACKOFF.wait_ms(tries) / 1000, retry_timeout_s - waited_s)


class Retries:
    """Retries of all calls that use one database; from any thread.

    However many threads wait, the log has one line for the begin of an outage and one for its end.
    """

    def __init__(self, ledger: str, timeouts: Timeouts) -> None:
        """Prepare the retries of a ledger, which is named without its secrets."""
        self._ledger: Final = ledger
        self._retry_timeout_s: Final = timeouts.retry_s
        self._clock: Final = timeouts.clock
        self._outage: Final = WarnOnce(_LOG, self._clock.monotonic)

    def __bool__(self) -> bool:
        """Return whether failed calls are tried again at all."""
        return self._retry_timeout_s > 0

    def wait_out(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Call ``attempt`` until the database can be reached, or the retry timeout has passed.

        `OutageError` leads to another try; any other exception is passed on. After the timeout, or
        a cancellation (see `cancel_when`), the last error is raised as a LedgerError. Its message
        has the time waited and, if cancelled, the reason.
        """
        try:
            return attempt()
        except OutageError as outage:
            return self._again(attempt, outage)

    def _again(self, attempt: Callable[[], _Answer], outage: OutageError) -> _Answer:
        began_s, tries, cancel = self._clock.monotonic(), 0, cancellation()
        try:
            while True:
                waited_s = self._clock.monotonic() - began_s
                tries += 1
                wait_s = next_wait_s(tries, waited_s, self._retry_timeout_s)
                cancelled = cancel is not None and cancel.is_requested()
                if wait_s is None or cancelled:
                    until = f", until {cancel.reason}" if cancel is not None and cancelled else ""
                    raise LedgerError(
                        f"{str(outage).removesuffix('.')}; it was waited for {waited_s:.0f} s"
                        f"{until}."
                    ) from outage
                self._outage.warn(
                    "%s It is tried again for up to %g s.", outage, self._retry_timeout_s
                )
                self._clock.sleep(wait_s)
                try:
                    answer = attempt()
                except OutageError as again:
                    outage = again
                else:
                    if (took_s := self._outage.clear()) is not None:
                        message = "The ledger %s is reachable again after %.1f s."
                        _LOG.info(message, self._ledger, took_s)
                    return answer
        finally:
            self._outage.clear()
