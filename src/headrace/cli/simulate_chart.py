"""What a simulation has found, as curves."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.cli.simulate_picture import Box, Curve, Label, Picture
from headrace.simulation import Result, Series

WIDTH: Final = 960
PANEL: Final = 180
"""The height of a panel."""

MOST_CURVES: Final = 8
"""Stages that are drawn: of more, those whose queues were the largest."""

_LEFT, _RIGHT, _TOP, _GAP = 80, 20, 60, 60
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
_SHADE, _AXES = "#f2f2f2", "#666666"
_PANELS: Final[tuple[tuple[str, Callable[[Series], Sequence[float]]], ...]] = (
    ("admitted, records/s", lambda series: series.admitted_per_s),
    ("waiting, MB", lambda series: [size / 1e6 for size in series.waiting_bytes]),
    ("delay, s", lambda series: series.delay_s),
)


def chart(results: Sequence[Result]) -> Picture:
    """Rates, queues and delays of one run, or of several below one another."""
    height_of_one = _TOP + len(_PANELS) * (PANEL + _GAP)
    shapes: list[Box | Curve | Label] = []
    for number, result in enumerate(results):
        names, above = _drawn(result), number * height_of_one
        shapes += _legend(result, names, above)
        for place, (title, values) in enumerate(_PANELS):
            top = above + _TOP + place * (PANEL + _GAP)
            curves = [values(result.series[name]) for name in names]
            shapes += _panel(title, result, curves, top)
    return Picture(WIDTH, height_of_one * len(results), shapes)


def _drawn(result: Result) -> list[str]:
    """Sources have no queue of the flow's own, but are drawn first: it is they who are slowed."""
    names = list(result.world.order)
    sources = [stage.name for stage in result.world.stages if not stage.after]
    inner = sorted(set(names) - set(sources), key=lambda n: (-result.largest_bytes[n], n))
    chosen = {*(sources + inner)[:MOST_CURVES]}
    return [name for name in names if name in chosen]


def _legend(result: Result, names: Sequence[str], top: int) -> Iterator[Label]:
    title = f"{result.world.name}: {result.policy}"
    yield Label(title, _LEFT, top + 20, size=15, is_bold=True)
    step = (WIDTH - _LEFT - _RIGHT) / MOST_CURVES
    for number, name in enumerate(names):
        shown = name if len(name) <= 14 else name[:13] + "…"
        yield Label(shown, _LEFT + number * step, top + 40, _COLOURS[number])


def _panel(
    title: str, result: Result, curves: Sequence[Sequence[float]], top: int
) -> Iterator[Box | Curve | Label]:
    until_s, right, bottom = result.times_s[-1] or 1.0, WIDTH - _RIGHT, top + PANEL
    most = max((max(curve) for curve in curves), default=0.0) or 1.0

    def x_at(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * min(at_s, until_s) / until_s

    yield Label(title, _LEFT, top - 4)
    for disturbance in result.world.disturbances:
        from_x, until_x = x_at(disturbance.from_s), x_at(disturbance.until_s)
        about = f"{disturbance.kind} {disturbance.stage}"
        yield Box(from_x, top, until_x - from_x, PANEL, _SHADE, about)
    yield Curve([(_LEFT, top), (_LEFT, bottom), (right, bottom)], _AXES)
    yield Label(f"{most:,.4g}", _LEFT - 6, top + 10, is_end=True)
    yield Label("0", _LEFT - 6, bottom, is_end=True)
    yield Label(f"{until_s:g} s", right, bottom + 16, is_end=True)
    yield Label("0 s", _LEFT, bottom + 16)
    for number, curve in enumerate(curves):
        points = [
            (x_at(at_s), top + PANEL * (1 - value / most))
            for at_s, value in zip(result.times_s, curve, strict=True)
        ]
        yield Curve(points, _COLOURS[number])
