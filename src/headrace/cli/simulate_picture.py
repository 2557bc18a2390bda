"""What a picture is made of, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; whoever points at it may be told what it is."""

    left: float
    top: float
    width: float
    height: float
    colour: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line from point to point."""

    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text that begins, or ends, at a place on its base line."""

    text: str
    x: float
    y: float
    colour: str = "#000000"
    size: int = 12
    is_bold: bool = False
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes, the first ones behind the others, on white.

    Lengths are those of a screen's pixels, from the upper left corner. Colours are ``#rrggbb``.
    """

    width: int
    height: int
    shapes: Sequence[Box | Curve | Label]
