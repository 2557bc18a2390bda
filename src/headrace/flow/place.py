"""Where something was declared."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a user's file."""

    file: str
    line: int

    @classmethod
    def of_caller(cls) -> Self:
        """The line that called the function which asks."""
        frame = sys._getframe(2)
        return cls(frame.f_code.co_filename, frame.f_lineno)

    def __str__(self) -> str:
        path = Path(self.file)
        is_below = path.is_relative_to(Path.cwd())
        return f"{path.relative_to(Path.cwd()) if is_below else path}:{self.line}"
