"""How the values of the Java client's options are read, and what may become of an option."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import OptionError
from headrace.kafka.redaction import shown

Value = str | int | float | bool

# More digits than any limit has; Python's int would take underscores and other scripts' digits.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        allowed: what is allowed, in words.
        parse: reads the text; None for what is not allowed.
    """

    allowed: str
    parse: Callable[[str], Value | None]

    def read(self, option: str, text: str) -> Value:
        """The value of an option.

        Raises:
            OptionError: The text is not allowed.
        """
        value = self.parse(text)
        if value is None:
            raise OptionError(f"{shown(option, text)} is not valid; it must be {self.allowed}.")
        return value


def whole(least: int, most: int, *, minus_one: int | None = None) -> Kind:
    """A whole number from least to most; -1 too if something stands for it."""

    def parse(text: str) -> int | None:
        if not _WHOLE.fullmatch(text):
            return None
        number = int(text)
        if number == -1 and minus_one is not None:
            return minus_one
        return number if least <= number <= most else None

    extra = "" if minus_one is None else ", or -1"
    return Kind(f"a whole number from {least} to {most}{extra}", parse)


def one_of(*words: str) -> Kind:
    """One of these words, in any case; read as it is written here."""

    def parse(text: str) -> str | None:
        return next((word for word in words if word.lower() == text.lower()), None)

    return Kind(" or ".join(words), parse)


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_BOOLEANS: Final = {"true": True, "false": False}
TEXT: Final = Kind("a text", lambda text: text)
NUMBER: Final = Kind("a number", _decimal)
BOOLEAN: Final = Kind("true or false", lambda text: _BOOLEANS.get(text.lower()))
INT: Final = whole(-(2**31), 2**31 - 1)
LONG: Final = whole(-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Translated:
    """Passed on under librdkafka's name, its value read as the kind says."""

    to: str
    kind: Kind
    note: str = ""


@dataclass(frozen=True, slots=True)
class Combined:
    """Translated together with others, by the module of its subject."""

    to: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted, and without a part in what is read: `because` says why it cannot matter."""

    kind: Kind
    because: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Not accepted: `instead` says why, and what to use."""

    instead: str


Fate = Translated | Combined | NoEffect | Refused
