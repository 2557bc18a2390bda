"""Functions for ``password_from`` of a ledger's URL: one whose password changes, and wrong ones."""

from typing import Any, NoReturn

SECRET = "hunter2"  # noqa: S105

current = SECRET
calls = 0
outages = 0


def password() -> str:
    """The password of now; an outage first, as often as ``outages`` says."""
    global calls, outages  # noqa: PLW0603
    calls += 1
    if outages:
        outages -= 1
        raises()
    return current


def raises() -> NoReturn:
    raise ConnectionError(f"no answer for the key {SECRET}")


def in_bytes() -> Any:
    return SECRET.encode()


def nothing() -> str:
    return ""


def cut_off() -> str:
    return f"{SECRET}\0"


def exits() -> NoReturn:
    raise SystemExit(SECRET)


def half_a_character() -> str:
    return f"{SECRET}\ud800"


def needs(name: str) -> str:
    return name
