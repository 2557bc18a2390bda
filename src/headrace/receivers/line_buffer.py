"""Lines of one sender: cut out of what it sends, checked, and made records with their ids."""

from collections.abc import Iterator
from typing import Final

import pyarrow.compute as pc

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.json_text import MalformedError, check_lines, ids_of_lines
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.settings import TcpSettings

_MOST_LINES: Final = 16_384
"""Lines that are made records at once: empty ones take 24 times their bytes then."""


def some_lines_at_once(whole: bytes) -> Iterator[bytes]:
    r"""Whole lines in as many parts as keep a part's records small.

    >>> [len(part) for part in some_lines_at_once(b"\n" * 40_000)]
    [16384, 16384, 7232]
    """
    if whole.count(b"\n") <= _MOST_LINES:
        yield whole
        return
    start = 0
    while start < len(whole):
        end = whole.find(b"\n", start + _MOST_LINES - 1) + 1 or len(whole)
        yield whole[start:end]
        start = end


class LineBuffer:
    """Splits what one sender sends into whole lines, and keeps the last one until it is whole.

    Its memory comes from the budget for the unfinished lines of all senders.
    """

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        self._max_bytes = settings.max_line_bytes
        self._check_json = settings.check_json
        self._id_field = settings.id_field
        self._budget = budget
        self._rest = bytearray()
        self._taken = 0
        self._has_memory = True

    @property
    def next_number(self) -> int:
        """The number of the line that comes next or is unfinished; the first is line 1."""
        return self._taken + 1

    @property
    def is_unfinished(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest)

    def add(self, data: bytes) -> bytes:
        """The lines that these bytes make whole, if any; call `check` when they are processed."""
        end = data.rfind(b"\n") + 1
        whole = bytes(self._rest) + data[:end] if end else b""
        if end:
            self.close()
        rest = data[end:]
        self._has_memory = self._budget.try_acquire(len(rest))
        if self._has_memory:
            self._rest += rest
        return whole

    def records(self, whole: bytes, timestamp_ms: int) -> tuple[Records, ReceiverError | None]:
        """Make records of whole lines, up to the first one that is rejected.

        Returns the records, and what is wrong with the line that comes after them, if anything is.
        """
        records, error = Records.of_lines(whole, timestamp_ms=timestamp_ms), None
        if len(whole) > self._max_bytes:
            sizes = pc.binary_length(records.batch.column("value"))
            place = pc.index(pc.greater(sizes, self._max_bytes), True).as_py()
            if place >= 0:
                records, error = records.slice(0, place), self._too_long(self._taken + place + 1)
        if self._check_json or self._id_field is not None:
            records, error = self._checked(whole, records, error)
        self._taken += records.count
        return records, error

    def _checked(
        self, whole: bytes, records: Records, error: ReceiverError | None
    ) -> tuple[Records, ReceiverError | None]:
        """The records up to the first that is not JSON or has no id, with their ids."""
        ids: list[str] = []
        try:
            if self._id_field is None:
                check_lines(whole, self.next_number)
            else:
                ids = ids_of_lines(whole, self._id_field, self.next_number)
        except MalformedError as malformed:
            ids = malformed.ids
            if malformed.place < records.count or error is None:
                records = records.slice(0, malformed.place)
                error = ReceiverError(f"{malformed} Send every line as JSON.")
        if self._id_field is not None:
            records = records.with_ids(ids[: records.count])
        return records, error

    def check(self) -> None:
        """Raise ReceiverError if the unfinished line is too long, or there is no memory for it."""
        if len(self._rest) > self._max_bytes + 1:  # "\r" may come before its end
            raise self._too_long(self.next_number)
        if not self._has_memory:
            raise ReceiverError(
                "The unfinished lines of all senders have no more than the"
                f" {self._budget.max_bytes} bytes of unfinished_bytes; send line"
                f" {self.next_number} again later."
            )

    def close(self) -> None:
        """Drop the unfinished line."""
        self._budget.release(len(self._rest))
        self._rest = bytearray()

    def _too_long(self, number: int) -> ReceiverError:
        return ReceiverError(
            f"Line {number} is longer than the {self._max_bytes} bytes that a line may have;"
            " send it in parts, or raise max_line_bytes."
        )
