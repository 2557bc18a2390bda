"""``python -m bench.worlds``: seven jobs under both laws, drawn for ``docs/internals.md``.

It also prints the figures of five stages, one of them slow, that ``docs/benchmarks.md`` shows.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.simulation import (
    Disturbance,
    Load,
    Pause,
    Policy,
    Result,
    Scenario,
    Series,
    SimulatedStage,
    Slow,
    phases,
    run,
)
from headrace.gate.control.laws import EstimatorSettings

FOLDER: Final = Path(__file__).parents[1] / "docs/images/worlds"


def _slow(factor: float, *times_s: tuple[float, float]) -> list[Disturbance]:
    return [Slow("orders", from_s, until_s, factor) for from_s, until_s in times_s]


def _minutely(lasts_s: int) -> list[tuple[float, float]]:
    return [(from_s, from_s + lasts_s) for from_s in (60, 120, 180, 240)]


_STEADY: Final[dict[str, Any]] = {
    "load": Load(((0, 8_000),)),
    "backlog": 4_000_000,
    "capacity_per_s": 20_000,
}

WORLDS: Final[dict[str, tuple[float, dict[str, Any], list[Disturbance]]]] = {
    # A backlog waits; after two minutes the job is four times slower for two minutes.
    "fixed-cost": (
        360,
        _STEADY
        | {"load": Load(((0, 6_000),)), "backlog": 2_000_000, "fixed_ms": 600, "noise": 0.1},
        _slow(0.25, (120, 240)),
    ),
    # After three quiet minutes of 200 records/s come 15 000/s for two minutes, more than fit.
    "flood": (
        420,
        {
            "load": Load(((0, 200), (180, 15_000), (300, 200))),
            "capacity_per_s": 15_000,
            "fixed_ms": 250,
            "noise": 0.1,
        },
        [],
    ),
    # Every minute another job takes half of the processors for 15 s.
    "neighbour": (
        300,
        _STEADY | {"fixed_ms": 200, "noise": 0.05},
        _slow(0.5, *_minutely(15)),
    ),
    # Batch times differ by 20 %; the job is twice as slow for two minutes.
    "noise": (360, _STEADY | {"fixed_ms": 300, "noise": 0.2}, _slow(0.5, (120, 240))),
    # The sink stands still for 4 s every minute, as a table does while it is compacted.
    "pauses": (
        300,
        _STEADY | {"fixed_ms": 200, "noise": 0.05},
        [Pause("orders", from_s, until_s) for from_s, until_s in _minutely(4)],
    ),
    # The job is twice as fast and twice as slow in turns of 20 s.
    "saw": (
        240,
        _STEADY | {"fixed_ms": 200, "noise": 0.1},
        _slow(0.5, *((from_s, from_s + 20) for from_s in range(20, 240, 40))),
    ),
    # To 12 partitions with a cap each one is added, with far more than its cap lets through.
    "added-partition": (
        300,
        {
            "load": Load(((0, 10_800),)),
            "capacity_per_s": 14_000,
            "fixed_ms": 100,
            "noise": 0.05,
            "partitions": 12,
            "partition_cap_per_s": 1_000,
            "added": (60, 1_200_000),
        },
        [],
    ),
}
"""By its picture's name, how long a world lasts (s), its one stage, and what goes wrong."""

FIVE: Final = ("ingest", "parse", "enrich", "score", "store")


def picture(world: str) -> str:
    """Draw a world under both laws, PID first, as SVG."""
    duration_s, settings, disturbances = WORLDS[world]
    results = []
    for law in ("pid", "learned"):
        stage = SimulatedStage("orders", estimator=EstimatorSettings(law), **settings)
        scenario = Scenario((stage,), duration_s, tuple(disturbances), name=world)
        results.append((str(law), run(scenario, Policy.HOP_BY_HOP, Random(0))))
    return chart_svg(results)


def five_stages(policy: Policy) -> list[str]:
    """Return a policy's figures while the fourth of five stages is four times slower.

    The sink's records/s, the swing of the source, the largest queue between stages, and turns.
    """
    stages = tuple(
        SimulatedStage(
            name,
            120_000,
            after=FIVE[place - 1 : place] if place else (),
            load=None if place else Load(((0, 100_000),)),
            interval_ms=500,
        )
        for place, name in enumerate(FIVE)
    )
    scenario = Scenario(stages, 480, (Slow("score", 60, 360, 0.25),))
    slow = phases(run(scenario, policy, Random(0)))[1]
    largest = max(slow.of(each).largest_bytes for each in FIVE[1:])
    return [
        f"{slow.of('store').processed_per_s:,.0f}".replace(",", " "),
        f"{slow.of('ingest').swing:.2f}",
        f"{largest / _MB:,.0f} MB".replace(",", " "),
        str(max(each.turns for each in slow.stages)),
    ]


_MB: Final = 1_000_000

MOST_CURVES: Final = 8
"""Stages that are drawn: of more, those whose queues were the largest."""

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 960, 180, 80, 20, 60, 60
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
_PANELS: Final[tuple[tuple[str, Callable[[Series], Sequence[float]]], ...]] = (
    ("admitted, records/s", lambda series: series.admitted_per_s),
    ("waiting, MB", lambda series: [size / _MB for size in series.waiting_bytes]),
    ("delay, s", lambda series: series.delay_s),
)


def chart_svg(results: Sequence[tuple[str, Result]]) -> str:
    """Draw rates, queues and delays of runs below one another, as SVG."""
    height_of_one = _TOP + len(_PANELS) * (_PANEL + _GAP)
    height = height_of_one * len(results)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (law, result) in enumerate(results):
        names, above = _drawn(result), number * height_of_one
        title = f"{result.scenario.name}: {result.policy}, {law}"
        lines.append(_label(title, _LEFT, above + 20, ' font-size="15" font-weight="bold"'))
        for place, name in enumerate(names):
            left = _LEFT + place * (_WIDTH - _LEFT - _RIGHT) / MOST_CURVES
            shown = name if len(name) <= 14 else name[:13] + "…"
            lines.append(_label(shown, left, above + 40, f' fill="{_COLOURS[place]}"'))
        for place, (heading, values) in enumerate(_PANELS):
            curves = [values(result.series[name]) for name in names]
            lines += _panel(heading, result, curves, above + _TOP + place * (_PANEL + _GAP))
    return "\n".join([*lines, "</svg>", ""])


def _drawn(result: Result) -> list[str]:
    """Sources have no queue of the flow's own, but are drawn first: it is they who are slowed."""
    names = list(result.scenario.order)
    sources = [stage.name for stage in result.scenario.stages if not stage.after]
    inner = sorted(set(names) - set(sources), key=lambda n: (-result.largest_bytes[n], n))
    chosen = {*(sources + inner)[:MOST_CURVES]}
    return [name for name in names if name in chosen]


def _panel(
    heading: str, result: Result, curves: Sequence[Sequence[float]], top: int
) -> Iterator[str]:
    until_s, right, bottom = result.times_s[-1] or 1.0, _WIDTH - _RIGHT, top + _PANEL
    most = max((max(curve) for curve in curves), default=0.0) or 1.0

    def x_at(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * min(at_s, until_s) / until_s

    yield _label(heading, _LEFT, top - 4)
    for disturbance in result.scenario.disturbances:
        from_x, until_x = x_at(disturbance.from_s), x_at(disturbance.until_s)
        yield (
            f'<rect x="{from_x:.1f}" y="{top}" width="{until_x - from_x:.1f}" height="{_PANEL}"'
            f' fill="#f2f2f2"><title>{disturbance.kind} {escape(disturbance.stage)}</title></rect>'
        )
    yield _polyline([(_LEFT, top), (_LEFT, bottom), (right, bottom)], "#666666")
    at_end = ' text-anchor="end"'
    yield _label(f"{most:,.0f}" if most >= 100 else f"{most:.3g}", _LEFT - 6, top + 10, at_end)
    yield _label("0", _LEFT - 6, bottom, at_end)
    yield _label(f"{until_s:g} s", right, bottom + 16, at_end)
    yield _label("0 s", _LEFT, bottom + 16)
    for colour, curve in zip(_COLOURS, curves, strict=False):
        points = zip(result.times_s, curve, strict=True)
        yield _polyline([(x_at(s), top + _PANEL * (1 - n / most)) for s, n in points], colour)


def _polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{listed}" fill="none" stroke="{colour}"/>'


def _label(text: str, x: float, y: float, attributes: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{attributes}>{escape(text)}</text>'


if __name__ == "__main__":
    for name in WORLDS:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")
    for policy in Policy:
        print(f"| `{policy}` | {' | '.join(five_stages(policy))} |")
