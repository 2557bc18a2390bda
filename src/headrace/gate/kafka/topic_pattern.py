"""Translation of ``subscribePattern``, a regular expression in Java's syntax, to Python's syntax.

Topic names are ASCII, so character classes can be translated exactly. A construct that has another
meaning in Python, and no translation, is refused. So no pattern changes its meaning.
"""

import re
from typing import Final

from headrace.errors import OptionError

_ASCII: Final = "".join(map(chr, range(128)))
_LOWER, _UPPER, _DIGIT, _PUNCTUATION = "a-z", "A-Z", "0-9", r"!-/:-@\[-`{-~"
_ALPHA: Final = _LOWER + _UPPER
_PROPERTIES: Final = {
    **dict.fromkeys(("Lower", "Ll", "Lowercase"), _LOWER),
    **dict.fromkeys(("Upper", "Lu", "Uppercase"), _UPPER),
    **dict.fromkeys(("Alpha", "L", "Alphabetic"), _ALPHA),
    **dict.fromkeys(("Digit", "Nd", "N"), _DIGIT),
    **{"Alnum": _ALPHA + _DIGIT, "XDigit": "0-9a-fA-F", "Punct": _PUNCTUATION},
    **{"Graph": "!-~", "Print": " -~", "ASCII": r"\x00-\x7f", "Cntrl": r"\x00-\x1f\x7f"},
    **{"Space": r"\s", "Blank": r" \t"},
}
r"""Characters of each property, such as ``Digit``, as items of a Python character class."""

_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(?:-[a-zA-Z]*)?[:)]")
_SAME: Final = "ABbDdSsWwafnrtu"
"""Letters that, after a backslash, mean the same in Java and in Python for ASCII names."""


def topic_pattern(text: str) -> re.Pattern[str]:
    r"""Translate and compile a regular expression of Java; raise `OptionError` where that fails.

    >>> topic_pattern(r"\Qa.b\E-[a-z&&[^x]]\z").pattern
    'a\\.b-[abcdefghijklmnopqrstuvwyz]\\Z'
    """
    try:
        return re.compile(_Translation(text).all())
    except (re.error, OverflowError) as error:
        raise OptionError(
            f"subscribePattern is {text!r}; it is not a valid regular expression: {error}."
        ) from error


class _Translation:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignores_case = False
        self._by_case = ""

    def all(self) -> str:
        parts = list(iter(self._next, ""))
        if self._ignores_case and self._by_case:
            raise self._refusal(f"{self._by_case} together with (?i)")
        return "".join(parts)

    def _next(self) -> str:
        character = self._text[self._at : self._at + 1]
        if character == "\\":
            return self._escape(in_class=False) or "(?:)"
        if character == "[":
            return self._class()
        if character == "(":
            return self._open()
        self._at += 1
        return character

    def _open(self) -> str:
        rest = self._text[self._at :]
        if flags := _FLAGS.match(rest):
            self._ignores_case |= "i" in flags[1]
            if "x" in flags[1]:
                raise self._refusal(flags[0])
        if re.match(r"\(\?<[^=!]", rest):
            self._at += 3
            return "(?P<"
        self._at += 1
        return "("

    def _escape(self, *, in_class: bool) -> str:
        """Translate an escape sequence. In a character class, return the items for the class."""
        rest = self._text[self._at :]
        if rest.startswith(r"\Q"):
            quoted, _, _ = rest[2:].partition(r"\E")
            self._at += len(quoted) + (4 if r"\E" in rest else 2)
            return "".join(re.escape(character) for character in quoted)
        if match := re.match(r"\\([pP])(\w|\{(\w+)\})", rest):
            self._at += match.end()
            return self._property(match, in_class=in_class)
        if not in_class and (match := re.match(r"\\(?:k<(\w+)>|[zZ]|[1-9](?!\d))", rest)):
            self._at += match.end()
            name = {r"\z": r"\Z", r"\Z": r"\Z"}.get(match[0], match[0])
            return f"(?P={match[1]})" if match[1] else name
        if match := re.match(r"\\x[0-9a-fA-F]{2}", rest):
            self._at += match.end()
            return match[0]
        if re.match(rf"\\(?:[a-zA-Z0-9](?<![{_SAME}])|b\{{)", rest):
            raise self._refusal((re.match(r"\\(?:\w\{\w*\}?|\d+|\w)", rest) or [rest])[0])
        self._at += 2
        return rest[:2]

    def _property(self, found: re.Match[str], *, in_class: bool) -> str:
        items = _PROPERTIES.get((found[3] or found[2]).removeprefix("Is"))
        if items is None:
            raise self._refusal(found[0])
        self._by_case = found[0]
        if found[1] == "P":
            items = _items(frozenset(_ASCII) - _characters(f"[{items}]"))
        return items if in_class else f"[{items}]"

    def _class(self) -> str:
        """Translate a character class; expand nested classes and intersections to characters."""
        begin = self._at
        self._at += 2 if self._text.startswith("[^", begin) else 1
        caret = self._text[begin + 1 : self._at]
        plain, nested = [""], [frozenset[str]()]
        while not self._text.startswith("]", self._at) or not any((*plain, *nested)):
            if self._at >= len(self._text):
                raise re.error("unterminated character set", self._text, begin)
            if self._text.startswith("&&&", self._at):
                raise self._refusal("&&&")
            if self._text.startswith("&&", self._at):
                self._at += 2
                plain.append("")
                nested.append(frozenset())
            elif self._text.startswith("[", self._at):
                nested[-1] |= _characters(self._class()) or frozenset({""})
            else:
                plain[-1] += self._item()
        self._at += 1
        if not any(nested) and len(plain) == 1:
            return f"[{caret}{plain[0]}]"
        self._by_case = self._text[begin : self._at]
        operands = [
            characters | (_characters(f"[{items}]") if items else frozenset())
            for items, characters in zip(plain, nested, strict=True)
        ]
        if not all(operands):  # In Java, && without a right side has a special meaning.
            raise self._refusal(self._by_case)
        both = frozenset.intersection(*operands) - {""}
        kept = frozenset(_ASCII) - both if caret else both
        return f"[{_items(kept)}]" if kept else "(?!)"

    def _item(self) -> str:
        character = self._text[self._at]
        if character == "\\":
            return self._escape(in_class=True)
        if self._text.startswith("-[", self._at):
            raise self._refusal("-[ in a class")
        self._at += 1
        return character if character == "-" else re.escape(character)

    def _refusal(self, construct: str) -> OptionError:
        return OptionError(
            f"subscribePattern is {self._text!r}, and {construct} of Java's regular expressions has"
            " no translation; write it in another way."
        )


def _characters(python_class: str) -> frozenset[str]:
    pattern = re.compile(python_class)
    return frozenset(filter(pattern.fullmatch, _ASCII))


def _items(characters: frozenset[str]) -> str:
    return "".join(re.escape(character) for character in sorted(characters))
