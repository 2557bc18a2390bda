"""Which offsets a lane has and which file has them, as its files' names tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from headrace.journal.names import BLOCK, END, LOST, START, file_name, parsed


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """A lane's files by their first offsets.

    Attributes:
        start: Where the lane begins; what is below was pruned, whatever of it is still there.
        firsts: The first offset of each file, ascending. Each file ends where the next begins;
            where the last one ends it says itself.
        lost: The first offsets of those whose records are lost. Where a crash of a repair has left
            both a block and the word that it is lost, that word counts.
        marks: The offsets that the lane is known to have reached, ascending.
    """

    start: int
    firsts: npt.NDArray[np.int64]
    lost: frozenset[int]
    marks: tuple[int, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """What these names say; foreign ones say nothing."""
        found: dict[str, set[int]] = {BLOCK: set(), LOST: set(), START: {0}, END: set()}
        for name in names:
            if (known := parsed(name)) is not None:
                found[known[1]].add(known[0])
        start = max(found[START])
        firsts = np.array(sorted(found[BLOCK] | found[LOST]), np.int64)
        lost = frozenset(first for first in found[LOST] if first >= start)
        marks = tuple(sorted(found[END]))
        return cls(start, firsts[np.searchsorted(firsts, start) :], lost, marks)

    @property
    def last(self) -> int | None:
        """The first offset of the last file; None where there is none."""
        return int(self.firsts[-1]) if len(self.firsts) else None

    @property
    def mark(self) -> int:
        """The highest offset that the lane is known to have reached."""
        return max(self.start, *self.marks, 0)

    def holding(self, offset: int) -> int | None:
        """The first offset of the file that holds an offset; the last file may end before it."""
        place = int(np.searchsorted(self.firsts, offset, side="right")) - 1
        return int(self.firsts[place]) if place >= 0 else None

    def file_at(self, first: int) -> str:
        """The name of the file that begins at an offset."""
        return file_name(first, LOST if first in self.lost else BLOCK)
