"""Names of types in a schema that is text of Spark's, which has no parser before Spark runs."""

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"`(?:[^`]|``)*`"  # a name
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # a comment
    r"|\([^()]*\)"  # a type's precision, or its length
    r"|\w+|[^\s\w]",
    re.DOTALL,
)


def types_in(schema: str) -> Iterator[tuple[str, str]]:
    """Each type's name in a schema, behind the name of the field that it is of.

    ::

    >>> list(types_in("id BIGINT NOT NULL, tags ARRAY<STRING>"))
    [('id', 'BIGINT'), ('tags', 'ARRAY'), ('tags', 'STRING')]

    What is no schema has some of these, or none.
    """
    has_names = [True]
    """Whether there is a name before each type, by the level of <>."""
    field, wanted, last = "", "name", ""
    for token in _TOKEN.findall(schema):
        match token, wanted:
            case "<", _:
                has_names.append(last.upper() == "STRUCT")
                wanted = "name" if has_names[-1] else "type"
            case ">", _:
                has_names = has_names[:-1] or [True]
                wanted = ""
            case ",", _:
                wanted = "name" if has_names[-1] else "type"
            case ":", _:
                pass
            case _, "name":
                field, wanted = token.strip("`"), "type"
            case _, "type":
                yield field, token
                wanted = ""
        last = token
