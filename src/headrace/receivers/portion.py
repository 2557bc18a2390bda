"""Records with their size, so that it is worked out once on their way."""

from dataclasses import dataclass
from typing import Final

from headrace.journal.records import Records

_RECORD_BYTES: Final = 40
"""What a record takes besides its own bytes: offsets of its columns, timestamp. Without it, empty
records would be lent memory without end."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Some records.

    Attributes:
        records: The records.
        count: How many.
        bytes: What their keys, values and headers have.
    """

    records: Records
    count: int
    bytes: int

    @classmethod
    def of(cls, records: Records) -> "Portion":
        """These records, with their size."""
        return cls(records, records.count, records.bytes)

    @property
    def memory_bytes(self) -> int:
        """What they take in memory, a little more rather than less."""
        return self.bytes + _RECORD_BYTES * self.count

    def first(self, count: int) -> "Portion":
        """The first so many of them, or all."""
        return self if count >= self.count else Portion.of(self.records.slice(0, count))

    def after(self, first: "Portion") -> "Portion":
        """Those that come after these first ones."""
        rest = self.records.slice(first.count, self.count)
        return Portion(rest, self.count - first.count, self.bytes - first.bytes)
