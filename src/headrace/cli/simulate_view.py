"""What a simulation has found, as tables."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.cli.printing import count, duration
from headrace.simulation import Phase, Result, StageFigures, World, phases

MOST_ROWS: Final = 20
"""Stages that a table shows: of more, those pressed hardest, or with the largest queues."""

_MB: Final = 1_000_000


def view(result: Result) -> RenderableType:
    """Every phase of one run."""
    world = result.world
    title = f"{world.name}, {result.policy}: {len(world.stages)} stages, {world.duration_s:g} s"
    return Group(title, *(_table(world, phase) for phase in phases(result)))


def comparison(results: Sequence[Result]) -> RenderableType:
    """The same phases under several policies, side by side."""
    world = results[0].world
    sources = [stage.name for stage in world.stages if not stage.after]
    read = {name for stage in world.stages for name in stage.after}
    sinks = [stage.name for stage in world.stages if stage.name not in read]
    table = Table(title="Side by side", title_justify="left")
    table.add_column("seconds", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for heading in ("sinks /s", "swing", "MB", "delay", "turns"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption = "swing: of the sources; MB, delay: the most between two stages"
    together = zip(*(phases(result) for result in results), strict=True)
    for same in together:
        for result, phase in zip(results, same, strict=True):
            inner = [phase.of(name) for name in read.union(sinks).difference(sources)]
            table.add_row(
                f"{phase.from_s:g} - {phase.until_s:g}",
                result.policy,
                count(sum(phase.of(name).processed_per_s for name in sinks)),
                f"{max(phase.of(name).swing for name in sources):.2f}",
                f"{max((each.largest_bytes for each in inner), default=0) / _MB:.1f}",
                duration(1000 * max((each.longest_delay_s for each in inner), default=0.0)),
                count(max(each.turns for each in phase.stages)),
            )
    return table


def _table(world: World, phase: Phase) -> Table:
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
    if len(shown) < len(world.stages):
        table.caption = f"and {len(world.stages) - len(shown):,} others; --json has all"
    return table


def _shown(stages: Sequence[StageFigures]) -> list[StageFigures]:
    def weight(each: StageFigures) -> tuple[float, int]:
        return each.most_level, each.largest_bytes

    chosen = {each.stage for each in sorted(stages, key=weight, reverse=True)[:MOST_ROWS]}
    return [each for each in stages if each.stage in chosen]
