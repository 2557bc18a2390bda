"""Secrets of a source's options, which Spark shows in plans, its web UI and its event log.

Spark is given something in the place of each secret. What that stands for travels in the class of
the source, of which Spark shows nothing.
"""

from collections.abc import Mapping
from typing import Final

from headrace.errors import LedgerError, OptionError

LEDGERS: Final = frozenset({"headrace.ledger", "headrace.channel"})
"""The options that are URLs of ledgers, in lower case."""


def revealed(options: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The options as they are meant, from what Spark was given.

    Args:
        options: By name, in any case.
        secrets: By what stands in their place; a ledger's URL by itself without its secrets.

    Raises:
        OptionError: A ledger's URL has a secret in it that Spark shows by now.
    """
    return {
        name: _ledger(name, value, secrets)
        if name.lower() in LEDGERS
        else secrets.get(value, value)
        for name, value in options.items()
    }


def _ledger(option: str, url: str, secrets: Mapping[str, str]) -> str:
    # Here, for most sources have no ledger, and its import takes long.
    from headrace.ledger import normalize_url, without_secrets  # noqa: PLC0415

    try:
        public = without_secrets(url)
        holds_a_secret = public != normalize_url(url)
    except LedgerError:
        return url  # whoever opens it says what is wrong
    if holds_a_secret:
        raise OptionError(
            f"The option {option} has a password in its URL, which Spark would show in its plans;"
            " give the whole URL to headrace.register(spark, ledger=...) and leave the password out"
            " here, or keep it where PostgreSQL's client looks for it (PGPASSFILE, PGPASSWORD)."
        )
    return secrets.get(public, url)
