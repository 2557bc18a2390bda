"""Schemas as they are compared: what two ends of a channel say of the values on it."""

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.flow.stage import Schema

_SAME: Final = {
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
}
"""Other words that Spark's DDL has for its types."""


def normalized(schema: "Schema") -> str:
    """A schema in the one way in which it is compared.

    >>> normalized("id LONG,  `name` string") == normalized("id: bigint, name: STRING")
    True
    """
    if not isinstance(schema, str):
        fields = (f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        schema = ", ".join(fields)
    text = re.sub(r"\s*([<>,:()])\s*", r"\1", schema.replace("`", "").strip())
    text = re.sub(r"[\s:]+", " ", text).lower()
    text = re.sub(r"(?<=[ <])[a-z]+", lambda word: _SAME.get(word[0], word[0]), text)
    return text.replace(",", ", ")
