"""A picture as a PNG file, of twice the size, so that it is sharp where it is shown large."""

from pathlib import Path
from typing import Final

from headrace.cli.simulate_picture import Box, Curve, Label, Picture
from headrace.errors import SetupError

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise SetupError(
        "A picture in PNG needs the package pillow, which is not installed; run: "
        "pip install 'headrace[plot]', or draw an SVG."
    ) from error

SCALE: Final = 2
"""Points of the file for each pixel of the picture."""

_SMOOTH: Final = 2
"""It is drawn so many times larger, and then reduced: Pillow's lines are jagged."""

_DRAWN: Final = SCALE * _SMOOTH


def write_png(picture: Picture, path: Path) -> None:
    """Write it; the font is Pillow's own, for a machine may have none.

    Raises:
        OSError: The file cannot be written.
    """
    drawn = Image.new("RGB", (picture.width * _DRAWN, picture.height * _DRAWN), "white")
    draw = ImageDraw.Draw(drawn)
    for shape in picture.shapes:
        _draw(draw, shape)
    with path.open("wb") as file:
        drawn.reduce(_SMOOTH).save(file, "PNG")


def _draw(draw: ImageDraw.ImageDraw, shape: Box | Curve | Label) -> None:
    match shape:
        case Box():
            corner = (shape.left + shape.width, shape.top + shape.height)
            draw.rectangle([_at(shape.left, shape.top), _at(*corner)], shape.colour)
        case Curve():
            draw.line([_at(*point) for point in shape.points], shape.colour, _DRAWN, joint="curve")
        case Label():
            draw.text(
                _at(shape.x, shape.y),
                shape.text,
                shape.colour,
                ImageFont.load_default(shape.size * _DRAWN),
                anchor="rs" if shape.is_end else "ls",
                stroke_width=1 if shape.is_bold else 0,
            )


def _at(x: float, y: float) -> tuple[float, float]:
    return x * _DRAWN, y * _DRAWN
