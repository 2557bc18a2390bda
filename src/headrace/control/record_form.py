"""Forms of bad records: which records of a batch that failed are looked at first.

The form of a record is that of its value, not its content. When isolation has convicted a record,
its form is remembered, unless a record of that form was processed. When a later batch fails, its
records of a remembered form are run alone at once, so that nothing that holds them has to be
halved. That shortens the way to them, and not their proof.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from headrace.core.ranges import OffsetRange

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""

MAX_HINTS: Final = 32
"""Records of a batch that are run alone at once, at most; and fewer than a tenth of it."""

MAX_FORMS: Final = 32
"""Forms that are remembered; the oldest goes first."""

_MAX_KEYS: Final = 100
_SCHEMA_ID_BYTES: Final = 5


def form_of(value: bytes | None) -> str:
    """The form of a value: its schema's id, or a JSON object's keys with their values' types.

    >>> form_of(b'{"id": 7, "amount": null}')
    'amount:NoneType,id:int'
    >>> form_of(bytes([0, 0, 0, 0, 7]) + b"abc")
    'schema 7'
    """
    if value is None:
        return "null"
    if not value:
        return "empty"
    if value[0] == 0 and len(value) >= _SCHEMA_ID_BYTES:
        return f"schema {int.from_bytes(value[1:_SCHEMA_ID_BYTES], 'big')}"
    try:
        parsed: Any = json.loads(value)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(parsed, dict):
        return type(parsed).__name__
    keys = sorted(parsed)[:_MAX_KEYS]
    return ",".join(f"{key}:{type(parsed[key]).__name__}" for key in keys)


class BadForms:
    """Forms of the records that were convicted while a query runs, and of none that passed."""

    def __init__(self) -> None:
        self._forms: dict[str, None] = {}

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self._forms)

    def hints(self, forms: Mapping[Place, str]) -> list[OffsetRange]:
        """Records of a bad form in a batch that failed; none where they are too many."""
        bad = set(self._forms)
        places = sorted(place for place, form in forms.items() if form in bad)
        if len(places) > MAX_HINTS or len(places) * 10 >= len(forms):
            return []
        return [OffsetRange(topic, number, at, at + 1) for topic, number, at in places]

    def learn(
        self, forms: Mapping[Place, str], convicted: Collection[Place], unknown: Iterable[Place]
    ) -> None:
        """Remember the forms of the convicted, and forget those of records that passed.

        Args:
            forms: The form of each record of a batch whose isolation has ended.
            convicted: Those that were convicted.
            unknown: Those that neither passed nor were convicted.
        """
        apart = {*convicted, *unknown}
        good = {form for place, form in forms.items() if place not in apart}
        bad = {forms[place] for place in convicted if place in forms}
        self._forms = {form: None for form in [*self._forms, *sorted(bad)] if form not in good}
        for form in list(self._forms)[:-MAX_FORMS]:
            del self._forms[form]
