"""Likeness of records: which records of a batch are suspected first, after what was learnt before.

The *kind* of a failure is its error class, and its message without digits and quoted parts. The
*likeness* of a record is the form of its value, not its content. When isolation has convicted a
record, its kind and its likeness are remembered, unless a record of that likeness was processed.
When a later batch fails with a known kind, its records of a remembered likeness are *accused*:
isolation runs each of them alone at once, and needs less to convict it. An accusation is no proof.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.core.ranges import OffsetRange

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""

FailureKind = tuple[str, str]
"""Error class, and message without what varies: the kind of a failure."""

MAX_ACCUSED: Final = 32
"""Records of a batch that are accused at most; and fewer than a tenth of it."""

MAX_LEARNT: Final = 32
"""Pairs of a kind and a likeness that are remembered; the oldest goes first."""

_MAX_MESSAGE: Final = 200
_MAX_KEYS: Final = 100
_VARYING: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+")
_SCHEMA_ID_BYTES: Final = 5


def kind_of(error_class: str, message: str) -> FailureKind:
    """The kind of a failure.

    >>> kind_of("ValueError", "line 17: 'n/a' is no number")
    ('ValueError', 'line *: * is no number')
    """
    first_line = message.strip().partition("\n")[0]
    return error_class, _VARYING.sub("*", first_line)[:_MAX_MESSAGE]


def likeness_of(value: bytes | None) -> str:
    """The form of a value: its schema's id, or a JSON object's keys with their values' types.

    >>> likeness_of(b'{"id": 7, "amount": null}')
    'amount:NoneType,id:int'
    >>> likeness_of(bytes([0, 0, 0, 0, 7]) + b"abc")
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


class Learnt:
    """Kinds and likenesses of the records that were convicted while a query runs."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[FailureKind, str], None] = {}

    @property
    def kinds(self) -> frozenset[FailureKind]:
        """Kinds of failure of which a record was convicted."""
        return frozenset(kind for kind, _ in list(self._pairs))

    def accused(self, kind: FailureKind, likenesses: Mapping[Place, str]) -> list[OffsetRange]:
        """Records to accuse in a batch that failed with this kind; none where they are too many."""
        if kind not in self.kinds:
            return []
        bad = {likeness for _, likeness in list(self._pairs)}
        places = sorted(place for place, likeness in likenesses.items() if likeness in bad)
        if len(places) > MAX_ACCUSED or len(places) * 10 >= len(likenesses):
            return []
        return [OffsetRange(topic, number, at, at + 1) for topic, number, at in places]

    def learn(
        self,
        likenesses: Mapping[Place, str],
        convicted: Mapping[Place, FailureKind],
        unknown: Iterable[Place] = (),
    ) -> None:
        """Remember the likenesses of the convicted, and forget those of records that passed.

        Args:
            likenesses: The likeness of each record of a batch whose isolation has ended.
            convicted: The kind of failure of each that was convicted.
            unknown: Records that neither passed nor were convicted.
        """
        apart = {*convicted, *unknown}
        good = {likeness for place, likeness in likenesses.items() if place not in apart}
        for pair in [each for each in list(self._pairs) if each[1] in good]:
            self._pairs.pop(pair, None)
        for place, kind in convicted.items():
            if (likeness := likenesses.get(place)) is not None and likeness not in good:
                self._pairs.pop((kind, likeness), None)
                self._pairs[kind, likeness] = None
        for pair in list(self._pairs)[:-MAX_LEARNT]:
            self._pairs.pop(pair, None)
