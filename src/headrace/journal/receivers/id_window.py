"""Window of remembered message ids, and the format in which the journal stores message ids."""

import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.journal.records import Records

MAX_ID_CHARACTERS: Final = 200
"""Maximum length of a sender's message id (characters), because each remembered id takes memory."""

_SEPARATOR: Final = "\0"
"""Separator in the journal's column of message ids, between an id and record numbers. A sender's
message id may not contain it."""

_SEVERAL: Final = re.compile(f"(.*){_SEPARATOR}([0-9]+){_SEPARATOR}([0-9]+)", re.DOTALL)


def is_message_id(text: str) -> bool:
    """Whether a sender may use this message id.

    It must have 1 to `MAX_ID_CHARACTERS` characters, and no U+0000. Ids are compared exactly, so
    case, spaces and accents count.
    """
    return 0 < len(text) <= MAX_ID_CHARACTERS and _SEPARATOR not in text


class IdRange(NamedTuple):
    """Range of a message's records, from number ``first`` to ``until - 1``, counted from 0.

    For a record without a message id, ``message_id`` is None.
    """

    message_id: str | None
    first: int
    until: int

    @property
    def records(self) -> int:
        """Number of records in the range."""
        return self.until - self.first

    def part(self, first: int, until: int) -> "IdRange":
        """Return the part of this range that lies between ``first`` and ``until``."""
        return IdRange(self.message_id, max(self.first, first), min(self.until, until))


def ranges_of(ids: Sequence[str | None]) -> list[tuple[int, IdRange]]:
    """Parse a block's column of message ids.

    Return the row number of each message's first record, and the message's range. `named` writes
    the column. If a message has several records, only its first record in the block has the id,
    followed by the number of this record and the count of records.
    """
    return [(place, _range_of(text)) for place, text in enumerate(ids) if text is not None]


def _range_of(text: str) -> IdRange:
    if (several := _SEVERAL.fullmatch(text)) is None:
        return IdRange(text, 0, 1)
    first = int(several[2])
    return IdRange(several[1], first, first + int(several[3]))


def named(records: Records, ranges: Sequence[IdRange]) -> Records:
    """Return the records with a column of message ids, in the format that `ranges_of` parses.

    The ranges must cover exactly these records, in order. A message id takes the same memory and
    journal space for any number of records.
    """
    texts: list[str] = []
    ends = np.zeros(records.count + 1, np.int32)
    place = size_bytes = 0
    for message_id, first, until in ranges:
        count = until - first
        numbers = "" if (first, count) == (0, 1) else f"{_SEPARATOR}{first}{_SEPARATOR}{count}"
        texts.append(f"{message_id}{numbers}")
        size_bytes += len(texts[-1].encode())
        ends[place + 1 : place + 1 + count] = size_bytes
        place += count
    valid = pa.py_buffer(np.packbits(np.diff(ends) > 0, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer("".join(texts).encode())]
    return records.with_ids(pa.Array.from_buffers(pa.string(), records.count, buffers))


_ID_BYTES: Final = 380
"""Memory of a remembered id in addition to its text: dict entry, one `Part`, and offsets (bytes).
"""

_PART_BYTES: Final = 250
"""Memory of each further `Part` of a message whose records are not contiguous in the lane (bytes).
"""


def id_bytes(message_id: str) -> int:
    """Return an upper estimate of the memory of one remembered message id (bytes)."""
    return _ID_BYTES + sys.getsizeof(message_id)


class Part(NamedTuple):
    """Contiguous records of a message, from number ``first`` to ``until - 1``.

    ``place`` is the offset range of these records in the lane. While they are being stored, it is
    the delivery that stores them.
    """

    first: int
    until: int
    place: object

    def within(self, first: int, until: int) -> "Part":
        """Return the records of this part that lie between ``first`` and ``until``."""
        first, until = max(self.first, first), min(self.until, until)
        place = self.place
        if isinstance(place, OffsetRange):
            start = place.start + first - self.first
            place = OffsetRange(place.topic, place.partition, start, start + until - first)
        return Part(first, until, place)

    def joined(self, following: "Part") -> "Part | None":
        """Return this part and the following part as one, or None if they are not contiguous.

        Contiguous parts have contiguous record numbers, and contiguous offsets or the same owner.
        """
        here, next_place = self.place, following.place
        if self.until != following.first:
            return None
        if not isinstance(here, OffsetRange) or not isinstance(next_place, OffsetRange):
            return Part(self.first, following.until, here) if here is next_place else None
        if here.until != next_place.start:
            return None
        place = OffsetRange(here.topic, here.partition, here.start, next_place.until)
        return Part(self.first, following.until, place)


class Window:
    """Window of the newest message ids, with the offsets of each message's records.

    While records are being stored, the window has their owner (a `Delivery`) in place of the
    offsets. Each message takes one entry, for any number of records.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: OrderedDict[str, tuple[Part, ...]] = OrderedDict()
        self.size_bytes = 0

    def parts(self, asked: IdRange) -> list[Part]:
        """Return the remembered parts of a range, in the order of record numbers."""
        _, first, until = asked
        remembered = self._messages.get(asked.message_id or "", ())
        return [
            part.within(first, until)
            for part in remembered
            if part.first < until and part.until > first
        ]

    def remember(self, of: IdRange, place: object) -> None:
        """Remember the place of these records: their offsets, or the owner that is storing them.

        Drop the oldest messages if the window exceeds its memory limit.
        """
        self._replace(of, (Part(of.first, of.until, place),))
        self._messages.move_to_end(of.message_id or "")
        while self.size_bytes > self._max_bytes:
            message_id, parts = self._messages.popitem(last=False)
            self.size_bytes -= _bytes_of(message_id, parts)

    def resolve(self, of: IdRange, owner: object, offsets: OffsetRange | None) -> None:
        """Set the offsets of those records of a range that ``owner`` was storing.

        ``offsets`` are the offsets of the whole range. If they are None, forget these records.
        """
        for part in self.parts(of):
            if part.place is owner:
                by = () if offsets is None else (Part(of.first, of.until, offsets),)
                of_part = of.part(part.first, part.until)
                self._replace(
                    of_part, tuple(replacement.within(*of_part[1:]) for replacement in by)
                )

    def _replace(self, of: IdRange, by: tuple[Part, ...]) -> None:
        message_id = of.message_id or ""
        remembered = self._messages.get(message_id, ())
        if remembered:
            self.size_bytes -= _bytes_of(message_id, remembered)
        before = [part.within(part.first, of.first) for part in remembered if part.first < of.first]
        after = [part.within(of.until, part.until) for part in remembered if part.until > of.until]
        parts: list[Part] = []
        for part in (*before, *by, *after):
            if part.first >= part.until:
                continue
            if parts and (joined := parts[-1].joined(part)):
                parts[-1] = joined
            else:
                parts.append(part)
        if parts:
            self._messages[message_id] = tuple(parts)
            self.size_bytes += _bytes_of(message_id, parts)
        else:
            self._messages.pop(message_id, None)


def _bytes_of(message_id: str, parts: Sequence[Part]) -> int:
    return id_bytes(message_id) + (len(parts) - 1) * _PART_BYTES
