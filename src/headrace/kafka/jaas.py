"""Java's login configuration (JAAS), as Kafka takes it in ``sasl.jaas.config``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import OptionError

EXAMPLE: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="NAME" password="PASSWORD";'
)

# The words of java.io.StreamTokenizer as Kafka's JaasConfig sets it up.
_TOKEN: Final = re.compile(
    r"""
      (?P<space>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)
    | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\u00a0-\U0010ffff-]*)
    | "(?P<double>(?:[^"\\\r\n]|\\[^\r\n])*)"
    | '(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)'
    | (?P<mark>[=;])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class Login:
    """One login module of a JAAS configuration; the options stay out of its repr.

    Attributes:
        module: the class's name without its package (some platforms shade the packages).
        options: what is set for it.
    """

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Login(module={self.module!r})"


def parse_jaas(text: str) -> Login:
    r"""Read the value of ``sasl.jaas.config``, as Java does.

    Raises:
        OptionError: It is malformed, or has not exactly one login module; nothing of it is shown.

    >>> parse_jaas('a.b.PlainLoginModule required username="u" password="p";').options
    {'username': 'u', 'password': 'p'}
    """
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[0][0] == "mark" or tokens[1][1].lower() not in _FLAGS:
        raise _malformed("does not begin with a login module and the word required")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("mark", ";"):
        setting = tokens[at : at + 3]
        if [kind == "mark" for kind, _ in setting] != [False, True, False] or setting[1][1] != "=":
            raise _malformed('has a setting that is not of the form name="value"')
        options[setting[0][1]] = setting[2][1]
        at += 3
    if at == len(tokens):
        raise _malformed("has no ; at its end")
    if at != len(tokens) - 1:
        raise _malformed("has more than one login module")
    return Login(tokens[0][1].rpartition(".")[2], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _malformed("has an open quote, or a character that must stand in quotes")
        kind = str(match.lastgroup)
        if kind in ("double", "single"):
            tokens.append(("text", _ESCAPE.sub(_unescape, match[kind])))
        elif kind != "space":
            tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _malformed(what: str) -> OptionError:
    return OptionError(
        f"kafka.sasl.jaas.config (its value is not shown) {what}; write it as in Java, for instance"
        f" {EXAMPLE}"
    )
