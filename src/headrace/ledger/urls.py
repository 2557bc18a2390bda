"""Ledger URLs: which ones there are, and how they are shown without their secrets."""

import re
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from headrace.errors import LedgerError

FORMS: Final = "sqlite:///headrace.db or postgresql://user:password@host/database"
_SECRET_OPTION: Final = re.compile("pass|secret|token|key", re.IGNORECASE)
_FILE_OPTIONS: Final = frozenset({"passfile", "sslkey", "sslkeylogfile"})
"""Options of PostgreSQL's client that only name a file."""


def parse_url(url: str) -> URL:
    """Read a ledger URL; a SQLite file becomes absolute, PostgreSQL gets psycopg as its driver.

    Raises:
        LedgerError: It is not the URL of a ledger. The message shows nothing of a password, even
            where the URL is so wrong that one cannot tell which part of it is the password.
    """
    parsed = _understood(url)
    if parsed is None:
        raise LedgerError(f"The ledger URL cannot be understood; write {FORMS}.")
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return _sqlite(parsed)
        case "postgresql" | "postgresql+psycopg":
            return _postgresql(parsed, url)
        case other:
            raise LedgerError(f"A ledger cannot be kept in {other!r}; write {FORMS}.")


def normalize_url(url: str) -> str:
    """Write a ledger URL in full, so that it means the same to a process in another folder.

    The answer holds the password: for a log or an error, use :func:`redact_url`. Like all functions
    of this module it raises a `LedgerError` for an invalid URL of a ledger.
    """
    return parse_url(url).render_as_string(hide_password=False)


def redact_url(url: str | URL) -> str:
    """Write a ledger URL with ``***`` in place of its password and of secrets among its options.

    >>> redact_url("postgresql://app:hunter2@db/orders?sslpassword=hunter3")
    'postgresql+psycopg://app:***@db/orders?sslpassword=***'
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    hidden = {name: "***" if _is_secret(name) else v for name, v in parsed.query.items()}
    text = parsed.set(query=hidden).render_as_string(hide_password=True)
    return text.replace("%2A%2A%2A", "***")


def without_secrets(url: str) -> str:
    """Write a ledger URL in full, but without its password and secret options.

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
    found = [url.password] if url.password else []
    for name, value in url.query.items():
        if _is_secret(name):
            found += [value] if isinstance(value, str) else value
    return tuple(secret for secret in found if secret)


def _is_secret(option: str) -> bool:
    return option not in _FILE_OPTIONS and _SECRET_OPTION.search(option) is not None


def _understood(url: str) -> URL | None:
    try:
        return make_url(url) if "\0" not in url else None
    except (ArgumentError, ValueError):
        # Their text quotes parts of the URL, and would stay with an exception raised here.
        return None


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
    if text.count("@") > 1:  # a part of the password would be taken for the host, and shown
        raise LedgerError(
            "The ledger URL has more than one '@'; write one in its user or password as %40."
        )
    return url.set(drivername="postgresql+psycopg")
