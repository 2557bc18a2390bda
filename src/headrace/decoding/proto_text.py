"""Which message of a ``.proto`` text stands at a path of indexes: a registry's values name it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_][\w.]*|[{};]|[^\s\w]|\d\S*""",
    re.DOTALL,
)


@dataclass(slots=True)
class _Scope:
    """The file, or a message; what else has braces counts as the scope that it is in."""

    name: str
    messages: list["_Scope"] = field(default_factory=list)


def message_at(text: str, path: Sequence[int]) -> str | None:
    """The full name of the message at a path: the place in the file, then in each message.

    >>> message_at('package shop; message Order { message Item {} } message Other {}', [0, 0])
    'shop.Order.Item'

    Returns:
        None if there is no such message, or the text is none of Protocol Buffers.
    """
    words = [each for each in _TOKEN.findall(text) if not each.startswith(("//", "/*", '"', "'"))]
    package = ""
    scopes = [_Scope("")]
    for at, mark in enumerate(words):
        word, name = (words[at - 2], words[at - 1]) if at > 1 else ("", "")
        if mark == "{":
            if word in {"message", "group"}:
                scopes[-1].messages.append(_Scope(name))
                scopes.append(scopes[-1].messages[-1])
            else:
                scopes.append(scopes[-1])
        elif mark == "}":
            if len(scopes) == 1:
                return None
            scopes.pop()
        elif mark == ";" and word == "package" and len(scopes) == 1:
            package = name
    found, names = scopes[0], [package] if package else []
    for place in path:
        if not 0 <= place < len(found.messages):
            return None
        found = found.messages[place]
        names.append(found.name)
    return ".".join(names) if path else None
