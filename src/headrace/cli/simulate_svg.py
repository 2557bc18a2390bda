"""A picture as an SVG file that loads nothing."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from headrace.cli.simulate_picture import Box, Curve, Label, Picture


def write_svg(picture: Picture, path: Path) -> None:
    """Write it.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text("\n".join(_lines(picture)) + "\n", encoding="utf-8")


def _lines(picture: Picture) -> Iterator[str]:
    width, height = picture.width, picture.height
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for shape in picture.shapes:
        yield _element(shape)
    yield "</svg>"


def _element(shape: Box | Curve | Label) -> str:
    match shape:
        case Box():
            return (
                f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.width:.1f}"'
                f' height="{shape.height:.1f}" fill="{shape.colour}">'
                f"<title>{escape(shape.about)}</title></rect>"
            )
        case Curve():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            return f'<polyline points="{points}" fill="none" stroke="{shape.colour}"/>'
        case Label():
            weight = ' font-weight="bold"' if shape.is_bold else ""
            anchor = ' text-anchor="end"' if shape.is_end else ""
            return (
                f'<text x="{shape.x:.0f}" y="{shape.y:.0f}" fill="{shape.colour}"'
                f' font-size="{shape.size}"{weight}{anchor}>{escape(shape.text)}</text>'
            )
