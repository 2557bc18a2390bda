"""``headrace simulate``: what gates and flows would do, before they do it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from headrace.cli.printing import write_svg
from headrace.cli.shared_options import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.cli.simulate_view import chart_svg, comparison, view
from headrace.control import LawName
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, GateRecord, Kind, Ledger, redact_url
from headrace.simulation import Load, Policy, Result, Scenario, phases, read_scenario, run
from headrace.status.trends import batch_cost_of, newest_run

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
    """The scenario with what came to a gate, as its ledger has it, for what comes to a source.

    Where the gate has learnt what its batches cost, the source has its interval, cost and noise.
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
    """What a gate has learnt of its job, as a simulated stage has it; nothing where it has not."""
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
    """What came between the plans of one run's batches, the oldest first; the last rate stays.

    There are at least two, with known lags. What others between them took counts as lost.
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
