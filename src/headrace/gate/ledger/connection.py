"""Connections to a ledger's database: the URL, the timeouts, and retries in an outage."""

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
"""Option of the URL with the name of a function in the user's program; it returns the password for
each login."""

A_PASSWORD: Final = "the password as a text"  # noqa: S105
"""Description, for error messages, of the value that the ``password_from`` function must return."""

_SHOWN_OPTIONS: Final = frozenset({PASSWORD_FROM, "passfile", "sslkey", "sslkeylogfile"})
"""URL options that are named like secrets, but whose values are only names of functions or
files."""

_HOST: Final = r"[\w.-]+(?::\d+)?"
_HOSTS: Final = re.compile(
    rf"(postgresql(?:\+psycopg)?://(?:[^@/?#]*@)?)((?:{_HOST},)+{_HOST})(|[/?].*)",
    re.ASCII | re.DOTALL,
)
"""Pattern of a URL with several hosts, as libpq accepts. Its groups are the text before the hosts,
the hosts, and the text after the hosts."""


def parse_url(url: str) -> URL:
    """Parse a ledger URL; make a SQLite path absolute, and set psycopg as PostgreSQL's driver.

    LedgerError is raised if the URL is not a ledger URL. Its message contains no part of a
    password, even for a malformed URL in which the password cannot be found.
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
    """Return a complete ledger URL that is valid in any working directory.

    The returned URL contains the password: use :func:`redact_url` for logs and errors. All
    functions of this module raise LedgerError if the URL is not a ledger URL.
    """
    return parse_url(url).render_as_string(hide_password=False)


def redact_url(url: str | URL) -> str:
    """Replace the password and the secret options in a ledger URL by ``***``.

    >>> redact_url("postgresql://app:hunter2@db/orders?sslpassword=hunter3")
    'postgresql+psycopg://app:***@db/orders?sslpassword=***'
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    hidden = {name: "***" if _is_secret(name) else v for name, v in parsed.query.items()}
    text = parsed.set(query=hidden).render_as_string(hide_password=True)
    return text.replace("%2A%2A%2A", "***")


def without_secrets(url: str) -> str:
    """Remove the password and the secret options from a ledger URL.

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
    """Return the password of a URL and the values of its secret options, except empty values."""
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
        # The texts of these exceptions quote the URL. An exception raised here would show them as
        # its context, so None is returned.
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
            f"A ledger cannot be kept in {path!r}, because several processes share a ledger; "
            "write the path of a file: sqlite:///headrace.db."
        )
    return url.set(drivername="sqlite", database=str(Path(path).absolute()))


def _postgresql(url: URL, text: str) -> URL:
    if text.count("@") > 1:  # An error would show the end of the password as a host name.
        raise LedgerError(
            "The ledger URL has more than one '@'; if the user name or the password contains an "
            "'@', write it as %40."
        )
    name = url.query.get(PASSWORD_FROM)
    if name is not None:
        if url.password or "password" in url.query or not isinstance(name, str):
            raise LedgerError(
                f"The ledger URL has more than one password; keep either one {PASSWORD_FROM} or one"
                " password."
            )
        if wrong := wrong_name(f"{PASSWORD_FROM} of the ledger URL", name, A_PASSWORD):
            raise LedgerError(wrong)
    return url.set(drivername="postgresql+psycopg")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a ledger's database, in seconds.

    Attributes:
        retry_s: Longest time for which a call waits for an unreachable database; 0 for no wait.
            Default: 0.
        lock_s: Longest wait for another client's transaction. A ``lock_timeout`` of the URL or of
            the server takes precedence. The ledger's own transactions take milliseconds. Default:
            10.
        connect_s: Longest wait for a PostgreSQL server to accept a connection, if the URL sets no
            ``connect_timeout``. Default: 5.
        clock: Clock that measures the waits; tests replace it.
    """

    retry_s: float = 0
    lock_s: float = 10
    connect_s: int = 5
    clock: Clock = time


NO_RETRIES: Final = Timeouts()

OF_A_QUERY: Final = Timeouts(retry_s=600)
"""Timeouts of a running query. A restart, a failover or an upgrade of a database server takes less
than 600 s, so it does not end the query. If the database stays unreachable, the query fails after
600 s, so its operators learn about the outage soon."""

_BACKOFF: Final = Backoff(first_ms=100, most_ms=2_000)
"""Waits between two attempts. The first wait is enough to replace a single cut connection. The
longest wait bounds the time until a reachable database is noticed."""

_LOG: Final = logging.getLogger("headrace.ledger")
_Answer = TypeVar("_Answer")


class OutageError(LedgerError):
    """Error of a database that cannot be reached or has cut the connection; a retry may help.

    The database's answer was lost, so a write may or may not have taken effect.
    """


def next_wait_s(tries: int, waited_s: float, retry_timeout_s: float) -> float | None:
    """Return the wait before the next attempt (s); None once the retry timeout has passed.

    >>> [next_wait_s(tries, 10, 600) for tries in (1, 2, 5, 6, 60)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    >>> next_wait_s(9, 599.5, 600), next_wait_s(9, 600, 600)
    (0.5, None)
    """
    if waited_s >= retry_timeout_s:
        return None
    return min(_BACKOFF.wait_ms(tries) / 1000, retry_timeout_s - waited_s)


class Retries:
    """Retries of all threads that use one database.

    An outage is logged once at its start and once at its end, even if many threads wait for its
    end.
    """

    def __init__(self, ledger: str, timeouts: Timeouts) -> None:
        """Set up the retries; ``ledger`` is the ledger's name in messages, without secrets."""
        self._ledger: Final = ledger
        self._retry_timeout_s: Final = timeouts.retry_s
        self._clock: Final = timeouts.clock
        self._outage: Final = WarnOnce(_LOG, self._clock.monotonic)

    def __bool__(self) -> bool:
        """Return whether failed calls are repeated: True with a retry timeout above 0."""
        return self._retry_timeout_s > 0

    def wait_out(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Call ``attempt`` until it raises no `OutageError`; return its result.

        Other exceptions are passed on. After the retry timeout, or a cancellation (see
        `cancel_when`), LedgerError is raised. Its message has the last error, the time waited and,
        if cancelled, the reason.
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
                    why = f", because {cancel.reason}" if cancel is not None and cancelled else ""
                    raise LedgerError(
                        f"{str(outage).removesuffix('.')}; Headrace gave up after {waited_s:.0f} s"
                        f"{why}."
                    ) from outage
                self._outage.warn(
                    "%s Headrace retries for up to %g s.", outage, self._retry_timeout_s
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
