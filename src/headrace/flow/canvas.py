"""Lines and boxes of characters."""

from typing import Final

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = " │││─┘┐┤─└┌├─┴┬┼"
"""By the sides on which a line leaves a character."""


class Canvas:
    """A sheet of characters, as large as what is drawn on it; columns and rows count from 0."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], int] = {}
        self._letters: dict[tuple[int, int], str] = {}

    def across(self, row: int, one: int, other: int) -> None:
        """Draw a line along a row between two columns."""
        first, last = sorted((one, other))
        for column in range(first, last):
            self._add(row, column, _RIGHT)
            self._add(row, column + 1, _LEFT)

    def down(self, column: int, first: int, last: int) -> None:
        """Draw a line along a column between two rows."""
        for row in range(first, last):
            self._add(row, column, _DOWN)
            self._add(row + 1, column, _UP)

    def box(self, row: int, column: int, width: int, text: str) -> None:
        """Draw a box of three rows around a text."""
        last = column + width - 1
        for edge in (row, row + 2):
            self.across(edge, column, last)
        for side in (column, last):
            self.down(side, row, row + 2)
        self.write(row + 1, column + (width - len(text)) // 2, text)

    def write(self, row: int, column: int, text: str) -> None:
        """Write a text over whatever is there."""
        for place, letter in enumerate(text, start=column):
            self._letters[row, place] = letter

    def text(self) -> str:
        """All that was drawn, without spaces at the ends of lines."""
        places = self._lines.keys() | self._letters.keys()
        rows = max((row for row, _ in places), default=-1) + 1
        columns = max((column for _, column in places), default=-1) + 1
        lines = ("".join(self._at(row, column) for column in range(columns)) for row in range(rows))
        return "\n".join(line.rstrip() for line in lines)

    def _at(self, row: int, column: int) -> str:
        return self._letters.get((row, column), _LINES[self._lines.get((row, column), 0)])

    def _add(self, row: int, column: int, side: int) -> None:
        self._lines[row, column] = self._lines.get((row, column), 0) | side
