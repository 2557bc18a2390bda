"""Values of the options of Kafka's clients: how to parse them, and how to hide secrets."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import LedgerError, OptionError
from headrace.gate.source.source_options import LEDGERS

Value = str | int | float | bool

REDACTED: Final = "***(redacted)"

PREFIX: Final = "kafka."
"""Prefix of the options of Kafka's client among the options of a source or sink."""

_LONGEST_SHOWN: Final = 80

# Spark's own pattern (spark.redaction.regex), and more names of Kafka's secrets. A certificate
# chain is no secret, but its file often ends with the private key.
_SECRET: Final = re.compile(
    r"secret|password|passphrase|token|access[.]?key|jaas"
    r"|keystore[.](key|certificate[.]chain)$|(^|[.])key[.]pem$|ssl_key$",
    re.IGNORECASE,
)

# More digits than any limit has. Python's int would accept underscores and other scripts' digits.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the ``kafka.*`` options of a source or sink, in lower case and without the prefix.

    >>> client_options({"subscribe": "orders", "Kafka.Client.Id": "a"})
    {'client.id': 'a'}
    """
    return {
        name.lower().removeprefix(PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }


def is_secret(option: str) -> bool:
    """Return whether an option's value is secret. The option's name may lack the prefix ``kafka.``.

    >>> [is_secret(o) for o in ("kafka.sasl.jaas.config", "ssl.keystore.key", "subscribe")]
    [True, True, False]
    """
    return option.lower() in LEDGERS or _SECRET.search(option) is not None


def redact(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with secrets replaced. In a ledger's URL, only the secrets are replaced.

    >>> redact({"subscribe": "orders", "kafka.ssl.key.password": "hunter2"})
    {'subscribe': 'orders', 'kafka.ssl.key.password': '***(redacted)'}
    """
    return {
        option: _redacted(option, value) if is_secret(option) else value
        for option, value in options.items()
    }


def describe(option: str, value: str) -> str:
    """Return an option and its value as text for an error, with the prefix and without secrets.

    >>> describe("client.id", "a")
    "kafka.client.id='a'"
    """
    if is_secret(option):
        return f"{PREFIX}{option}={REDACTED}"
    shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."
    return f"{PREFIX}{option}={shown!r}"


def _redacted(option: str, value: str) -> str:
    if option.lower() not in LEDGERS:
        return REDACTED
    from headrace.gate.ledger.connection import redact_url  # noqa: PLC0415  (no task needs a ledger)

    try:
        return redact_url(value)
    except LedgerError:  # Opening the ledger raises the reason; no part of this URL can be shown.
        return REDACTED


@dataclass(frozen=True, slots=True)
class ValueType:
    """Type of an option's value: a parser, and a description of the allowed values.

    The parser returns None for an invalid value.
    """

    allowed: str
    parse: Callable[[str], Value | None]

    def read(self, option: str, text: str) -> Value:
        """Parse the value of an option; raise `OptionError` for an invalid value."""
        value = self.parse(text)
        if value is None:
            raise OptionError(f"{describe(option, text)} is not valid; it must be {self.allowed}.")
        return value


def integer(least: int, most: int, *, minus_one: int | None = None) -> ValueType:
    """Return the type of whole numbers in a range; -1 is read as ``minus_one``, if that is set."""

    def parse(text: str) -> int | None:
        if not _INTEGER.fullmatch(text):
            return None
        number = int(text)
        if number == -1 and minus_one is not None:
            return minus_one
        return number if least <= number <= most else None

    extra = "" if minus_one is None else ", or -1"
    return ValueType(f"a whole number from {least} to {most}{extra}", parse)


def one_of(*words: str) -> ValueType:
    """Return the type of an option whose allowed values are these words, in upper or lower case."""
    by_lower = {word.lower(): word for word in words}
    return ValueType(" or ".join(words), lambda text: by_lower.get(text.lower()))


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_NUMBERS: Final = re.compile(r"(\d+) to (\d+)(, or -1)?")
_NAMED: Final = {
    "text": ValueType("a text", lambda text: text),
    "not blank": ValueType("a text that is not blank", lambda text: text.strip() or None),
    "number": ValueType("a number", _decimal),
    "true or false": ValueType(
        "true or false", lambda text: {"true": True, "false": False}.get(text.lower())
    ),
    "int": integer(-(2**31), 2**31 - 1),
    "long": integer(-(2**63), 2**63 - 1),
}


def value_type(text: str) -> ValueType:
    """Return the type of an option's value from its description in ``java_options.txt``.

    >>> value_type("0 to 2147483647, or -1").read("connections.max.idle.ms", "-1")
    0
    """
    if named := _NAMED.get(text):
        return named
    if limits := _NUMBERS.fullmatch(text):
        return integer(int(limits[1]), int(limits[2]), minus_one=0 if limits[3] else None)
    return one_of(*text.split(" or "))
