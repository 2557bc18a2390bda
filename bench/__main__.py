"""``python -m bench``: measure, and show the figures."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench import (
    backfill,
    connect,
    control,
    dashboard,
    decoding,
    early_end,
    first_batch,
    flow,
    isolation,
    journal,
    json_columns,
    ledger_time,
    memory,
    plan_time,
    planner_time,
    receivers,
    recovery,
    scaling,
    scrape_time,
    signals,
    small_batch,
    throughput,
)
from bench.figures import Figure
from bench.machine import describe_machine
from bench.scale import QUICK, Scale
from bench.stage import Stage, open_stage
from bench.table import table_of


class Name(StrEnum):
    """A benchmark; in this order, for the memory is to be that of fresh processes."""

    MEMORY = "memory"
    THROUGHPUT = "throughput"
    SMALL_BATCH = "small-batch"
    FIRST_BATCH = "first-batch"
    EARLY_END = "early-end"
    CONNECT = "connect"
    JSON = "json"
    DECODING = "decoding"
    RECOVERY = "recovery"
    CONTROL = "control"
    BACKFILL = "backfill"
    ISOLATION = "isolation"
    PLAN = "plan"
    LEDGER = "ledger"
    PLANNER = "planner"
    METRICS = "metrics"
    JOURNAL = "journal"
    RECEIVERS = "receivers"
    SIGNALS = "signals"
    FLOW = "flow"
    DASHBOARD = "dashboard"
    SCALE = "scale"


_KEPT_COLUMNS: Final = 130

Benchmark = Callable[[Stage, Scale], Iterator[Figure]]

BENCHMARKS: Final[dict[Name, Benchmark]] = {
    Name.MEMORY: memory.measure,
    Name.THROUGHPUT: throughput.measure,
    Name.SMALL_BATCH: small_batch.measure,
    Name.FIRST_BATCH: first_batch.measure,
    Name.EARLY_END: early_end.measure,
    Name.CONNECT: connect.measure,
    Name.JSON: json_columns.measure,
    Name.DECODING: decoding.measure,
    Name.RECOVERY: recovery.measure,
    Name.CONTROL: control.measure,
    Name.BACKFILL: backfill.measure,
    Name.ISOLATION: isolation.measure,
    Name.PLAN: plan_time.measure,
    Name.LEDGER: ledger_time.measure,
    Name.PLANNER: planner_time.measure,
    Name.METRICS: scrape_time.measure,
    Name.JOURNAL: journal.measure,
    Name.RECEIVERS: receivers.measure,
    Name.SIGNALS: signals.measure,
    Name.FLOW: flow.measure,
    Name.DASHBOARD: dashboard.measure,
    Name.SCALE: scaling.measure,
}


def main(
    names: Annotated[
        list[Name] | None, typer.Argument(help="Which benchmarks; all if none is named.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each comparison.", show_default="5")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only see that it works, within minutes.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here too.")
    ] = None,
    postgresql: Annotated[
        str | None, typer.Option(help="URL of a PostgreSQL to measure the ledger on too.")
    ] = None,
) -> None:
    """Measure Headrace side by side with Spark's own Kafka connector, and its parts alone."""
    scale = QUICK if quick else Scale()
    if pairs is not None:
        scale = replace(scale, pairs=pairs)
    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # Some batches fail on purpose.
    console, machine = _console(), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")
    found: dict[str, list[Figure]] = {}
    with console.status("Starting a broker and a Spark") as status, open_stage(postgresql) as stage:
        for name in [each for each in Name if not names or each in names]:
            status.update(f"Measuring: {name}")
            found[name] = []
            try:
                for figure in BENCHMARKS[name](stage, scale):
                    found[name].append(figure)
                    status.update(f"Measuring: {name}, after {figure.name}")
            finally:  # what was measured before an interruption is worth seeing
                console.print(table_of(name, found[name]), "")
                if json_file is not None:
                    json_file.write_text(_as_json(machine, found))


def _console() -> Console:
    """The terminal; or, where the output is kept, lines long enough for every figure."""
    console = Console()
    return console if console.is_terminal else Console(width=_KEPT_COLUMNS)


def _as_json(machine: dict[str, str], found: dict[str, list[Figure]]) -> str:
    figures = {name: [figure.to_json() for figure in row] for name, row in found.items()}
    return json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n"


if __name__ == "__main__":
    typer.run(main)
