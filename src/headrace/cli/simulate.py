"""``headrace simulate``: what gates and flows would do, before they do it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from headrace.cli.printing import count, duration, write_svg
from headrace.cli.shared_options import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.control import LawName
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, GateRecord, Kind, Ledger, redact_url
from headrace.simulation import (
    Load,
    Phase,
    Policy,
    Result,
    Scenario,
    Series,
    StageFigures,
    phases,
    read_scenario,
    run,
)
from headrace.status.trends import batch_cost_of, newest_run

MOST_ROWS: Final = 20
"""Stages that a table shows: of more, those throttled hardest, or with the largest queues."""

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


def view(result: Result) -> RenderableType:
    """Every phase of one run."""
    scenario = result.scenario
    count = len(scenario.stages)
    stages = "1 stage" if count == 1 else f"{count} stages"
    title = f"{scenario.name}, {_name_of(result)}: {stages}, {scenario.duration_s:g} s"
    return Group(title, *(_table(scenario, phase) for phase in phases(result)))


def comparison(results: Sequence[Result]) -> RenderableType:
    """The same phases under several policies and laws, side by side."""
    scenario = results[0].scenario
    sources = [stage.name for stage in scenario.stages if not stage.after]
    read = {name for stage in scenario.stages for name in stage.after}
    sinks = [stage.name for stage in scenario.stages if stage.name not in read]
    table = Table(title="Side by side", title_justify="left")
    names: dict[str, Callable[[Result], str]] = {
        "policy": lambda result: result.policy,
        "law": lambda result: ", ".join(result.scenario.laws),
    }
    compared = {
        heading: name for heading, name in names.items() if len(set(map(name, results))) > 1
    }
    for heading in ("seconds", *compared):
        table.add_column(heading, no_wrap=True)
    for heading in ("sinks /s", "swing", "MB", "delay", "turns"):
        table.add_column(heading, justify="right", no_wrap=True)
    is_chain = len(scenario.stages) > 1
    where = "the most between two stages" if is_chain else "the most that waited"
    table.caption = f"swing: of the sources; MB, delay: {where}"
    together = zip(*(phases(result) for result in results), strict=True)
    for same in together:
        for result, phase in zip(results, same, strict=True):
            inner = [phase.of(name) for name in read.union(sinks).difference(sources)]
            waiting = inner if is_chain else phase.stages
            table.add_row(
                f"{phase.from_s:g} - {phase.until_s:g}",
                *(name(result) for name in compared.values()),
                count(sum(phase.of(name).processed_per_s for name in sinks)),
                f"{max(phase.of(name).swing for name in sources):.2f}",
                f"{max((each.largest_bytes for each in waiting), default=0) / _MB:,.1f}",
                duration(1000 * max((each.longest_delay_s for each in waiting), default=0.0)),
                count(max(each.turns for each in phase.stages)),
            )
    return table


def _name_of(result: Result) -> str:
    return f"{result.policy}, {' and '.join(result.scenario.laws)}"


def _table(scenario: Scenario, phase: Phase) -> Table:
    table = Table(title=f"{phase.from_s:g} s to {phase.until_s:g} s", title_justify="left")
    table.add_column("stage")
    for heading in ("records/s", "could", "MB", "delay", "swing", "turns", "level"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = _shown(phase.stages)
    for each in shown:
        table.add_row(
            each.stage,
            count(each.processed_per_s),
            count(each.capacity_per_s),
            f"{each.largest_bytes / _MB:.1f}",
            duration(1000 * each.longest_delay_s),
            f"{each.swing:.2f}",
            count(each.turns),
            f"{each.most_level:.2f}",
        )
    if len(shown) < len(scenario.stages):
        table.caption = f"and {len(scenario.stages) - len(shown):,} others; --json has all"
    return table


def _shown(stages: Sequence[StageFigures]) -> list[StageFigures]:
    def weight(each: StageFigures) -> tuple[float, int]:
        return each.most_level, each.largest_bytes

    chosen = {each.stage for each in sorted(stages, key=weight, reverse=True)[:MOST_ROWS]}
    return [each for each in stages if each.stage in chosen]


def chart_svg(results: Sequence[Result]) -> str:
    """Rates, queues and delays of one run, or of several below one another, as SVG."""
    height_of_one = _TOP + len(_PANELS) * (_PANEL + _GAP)
    height = height_of_one * len(results)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, result in enumerate(results):
        names, above = _drawn(result), number * height_of_one
        title = f"{result.scenario.name}: {_name_of(result)}"
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


DEFAULT_POLICY: Final = [Policy.HOP_BY_HOP]

MOST_BATCHES: Final = 10_000
"""The newest batches of a gate's history that are used."""


def simulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario: a TOML file.")],
    *,
    seed: Annotated[int, typer.Option(help="Of what chance does: noise, lost signals.")] = 0,
    policy: Annotated[
        list[Policy],
        typer.Option(help="Who slows down when a stage is overloaded; several are compared."),
    ] = DEFAULT_POLICY,
    law: Annotated[
        list[LawName] | None,
        typer.Option(
            help="The law that every stage learns its rate by; several are compared."
            " Default: each stage's own."
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE=GATE",
            help="What came to this gate, as its ledger has it, comes to that source, whose batches"
            " cost what that gate's do.",
        ),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per policy, each on a line of its own.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw rates, queues and delays too.", dir_okay=False)
    ] = None,
) -> None:
    """Run gates and flows in simulated time, on the control code itself.

    The same file, seed and policy give the same figures, always.
    """
    scenario = read_scenario(file)
    if history is not None:
        scenario = with_history(scenario, history, ledger)
    # Each policy and each law meets the same chance.
    results = [
        run(each, who, Random(seed))  # noqa: S311
        for who in dict.fromkeys(policy)
        for each in under_laws(scenario, law or [])
    ]
    if svg is not None:
        write_svg(chart_svg(results), svg)
    if as_json:
        for result in results:
            typer.echo(json.dumps(_json_of(result, seed)))
        return
    console = Console()
    for result in results:
        console.print(view(result))
    if len(results) > 1:
        console.print(comparison(results))


def under_laws(scenario: Scenario, laws: Sequence[LawName]) -> list[Scenario]:
    """The scenario under each law, or under its stages' own where none is named."""
    return [
        replace(
            scenario,
            stages=tuple(
                replace(stage, estimator=replace(stage.estimator, name=name))
                for stage in scenario.stages
            ),
        )
        for name in dict.fromkeys(laws)
    ] or [scenario]


def with_history(scenario: Scenario, choice: str, url: str) -> Scenario:
    """Return the scenario with a gate's arrivals, as its ledger has them, as the load of a source.

    If the gate has learnt the cost of its batches, the source has its interval, cost and noise.
    ``choice`` is ``source=gate``. The gate's newest run must have two batches whose lag is known.
    """
    name, _, gate = choice.partition("=")
    sources = [stage.name for stage in scenario.stages if stage.load is not None]
    if not gate or name not in sources:
        raise OptionError(
            f"--history is {choice!r}; it must be a source and a gate, such as"
            f" {sources[0]}=orders, and the sources are {', '.join(sources)}."
        )
    with Ledger.open(url, create=False) as ledger:
        (record,) = gates_of(ledger, gate, url)
        batches = ledger.batches.newest(gate, MOST_BATCHES, kind=Kind.LIVE, children=False)
    known = [batch for batch in reversed(newest_run(batches)) if batch.lag is not None]
    if len(known) < 2:
        raise OptionError(
            f"The gate {gate!r} in {redact_url(url)} has no history to go by; it takes two batches"
            " of one run, so name a gate that has run."
        )
    came = {"load": load_of(known), "backlog": known[0].lag or 0, **_job_of(record)}
    stages = tuple(
        replace(stage, **came) if stage.name == name else stage for stage in scenario.stages
    )
    return replace(scenario, stages=stages)


def _job_of(gate: GateRecord) -> dict[str, Any]:
    """Return a gate's learnt job as settings of a simulated stage; empty if none was learnt."""
    cost = batch_cost_of(gate)
    if cost is None:
        return {}
    return {
        "interval_ms": gate.interval_ms,
        "fixed_ms": round(cost.fixed_s * 1000),
        "capacity_per_s": 1 / cost.record_s,
        "noise": min(cost.noise, 0.5),
    }


def load_of(batches: Sequence[BatchRecord]) -> Load:
    """Return the arrivals between the plans of one run's batches; the last rate stays.

    There are at least two batches, the oldest first, with known lags. Records that others between
    them took count as lost.
    """
    began_ms = batches[0].created_time_ms
    points = []
    for before, after in pairwise(batches):
        came = (after.lag or 0) - (before.lag or 0) + before.planned_records
        lasted_ms = after.created_time_ms - before.created_time_ms
        per_s = max(came, 0) * 1000 / lasted_ms
        points.append(((before.created_time_ms - began_ms) / 1000, per_s))
    return Load(tuple(points))


def _json_of(result: Result, seed: int) -> dict[str, object]:
    return {
        "policy": result.policy,
        "laws": result.scenario.laws,
        "seed": seed,
        "phases": [asdict(phase) for phase in phases(result)],
        "rate_limit_changes": [asdict(change) for change in result.changes],
        "signals": result.signals,
        "largest_bytes": result.largest_bytes,
        "times_s": result.times_s,
        "series": {name: asdict(series) for name, series in result.series.items()},
    }
