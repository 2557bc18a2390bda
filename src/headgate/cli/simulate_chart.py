"""What a simulation has found, as curves in an SVG file that loads nothing."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from headgate.errors import OptionError
from headgate.simulation import Result, Series

WIDTH: Final = 960
PANEL: Final = 180
"""The height of a panel."""

MOST_CURVES: Final = 8
"""Stages that are drawn: of more, those whose queues were the largest."""

_LEFT, _RIGHT, _TOP, _GAP = 80, 20, 60, 60
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
_PANELS: Final[tuple[tuple[str, Callable[[Series], Sequence[float]]], ...]] = (
    ("admitted, records/s", lambda series: series.admitted_per_s),
    ("waiting, MB", lambda series: [size / 1e6 for size in series.waiting_bytes]),
    ("delay, s", lambda series: series.delay_s),
)


def write_chart(results: Sequence[Result], path: Path) -> None:
    """Draw rates, queues and delays of one run, or of several below one another.

    Raises:
        OptionError: The file cannot be written.
    """
    try:
        path.write_text("\n".join(_svg(results)) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"The picture {path} cannot be written: {error.strerror}; name another file."
        ) from error


def _svg(results: Sequence[Result]) -> Iterator[str]:
    height_of_one = _TOP + len(_PANELS) * (PANEL + _GAP)
    height = height_of_one * len(results)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    for number, result in enumerate(results):
        names = _drawn(result)
        yield from _legend(result, names, number * height_of_one)
        for place, (title, values) in enumerate(_PANELS):
            top = number * height_of_one + _TOP + place * (PANEL + _GAP)
            curves = [values(result.series[name]) for name in names]
            yield from _panel(title, result, curves, top)
    yield "</svg>"


def _drawn(result: Result) -> list[str]:
    """Sources have no queue of the flow's own, but are drawn first: it is they who are slowed."""
    names = list(result.world.order)
    sources = [stage.name for stage in result.world.stages if not stage.after]
    inner = sorted(set(names) - set(sources), key=lambda n: (-result.largest_bytes[n], n))
    chosen = {*(sources + inner)[:MOST_CURVES]}
    return [name for name in names if name in chosen]


def _legend(result: Result, names: Sequence[str], top: int) -> Iterator[str]:
    yield (
        f'<text x="{_LEFT}" y="{top + 20}" font-size="15" font-weight="bold">'
        f"{escape(result.world.name)}: {escape(result.policy)}</text>"
    )
    step = (WIDTH - _LEFT - _RIGHT) / MOST_CURVES
    for number, name in enumerate(names):
        shown = name if len(name) <= 14 else name[:13] + "…"
        yield (
            f'<text x="{_LEFT + number * step:.0f}" y="{top + 40}" fill="{_COLOURS[number]}">'
            f"{escape(shown)}</text>"
        )


def _panel(
    title: str, result: Result, curves: Sequence[Sequence[float]], top: int
) -> Iterator[str]:
    width, until_s = WIDTH - _LEFT - _RIGHT, result.times_s[-1] or 1.0
    most = max((max(curve) for curve in curves), default=0.0) or 1.0
    yield f'<text x="{_LEFT}" y="{top - 4}">{escape(title)}</text>'
    for disturbance in result.world.disturbances:
        from_x = _LEFT + width * min(disturbance.from_s, until_s) / until_s
        until_x = _LEFT + width * min(disturbance.until_s, until_s) / until_s
        yield (
            f'<rect x="{from_x:.1f}" y="{top}" width="{until_x - from_x:.1f}" height="{PANEL}"'
            f' fill="#f2f2f2"><title>{escape(disturbance.kind)}'
            f" {escape(disturbance.stage)}</title></rect>"
        )
    yield (
        f'<path d="M{_LEFT},{top} V{top + PANEL} H{WIDTH - _RIGHT}" fill="none" stroke="#666"/>'
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{top + PANEL}" text-anchor="end">0</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{top + PANEL + 16}" text-anchor="end">{until_s:g} s</text>'
        f'<text x="{_LEFT}" y="{top + PANEL + 16}">0 s</text>'
    )
    for number, curve in enumerate(curves):
        points = " ".join(
            f"{_LEFT + width * at_s / until_s:.1f},{top + PANEL * (1 - value / most):.1f}"
            for at_s, value in zip(result.times_s, curve, strict=True)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{_COLOURS[number]}"/>'
