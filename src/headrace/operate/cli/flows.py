"""``headrace flow``: lists the stages of a flow that a user declares, and runs the flow."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group

from headrace.errors import HeadraceError
from headrace.flow import Flow
from headrace.gate import ErrorReport
from headrace.operate.cli.exits import ExitStatus, stopped_by_signals
from headrace.operate.cli.printing import logged, print_json, show, table
from headrace.operate.cli.shared_options import AsJson, load_flow, start_spark
from headrace.operate.status.words import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow import RunningFlow

MOST_CHARACTERS: Final = 2000
"""The command's error quotes at most this many characters of a query's error."""

flow = typer.Typer(
    help="List and run flows: stages in a chain.", no_args_is_help=True, add_completion=False
)

FlowName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FLOW", help="Module and name of the flow, such as shop.flows:orders."
    ),
]


@flow.command("show")
def show_flow(name: FlowName, *, as_json: AsJson = False) -> None:
    """Check a flow and list its stages and channels, without starting anything."""
    shown = load_flow(name)
    if as_json:
        print_json(_described(shown))
    else:
        show(_listed(shown))


@flow.command("run")
def run_flow(
    name: FlowName,
    *,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this stage; can be repeated. Other processes run the other stages.",
        ),
    ] = None,
) -> None:
    """Run all or some stages of a flow in a Spark application of its own, until Ctrl-C.

    Ctrl-C stops the flow, and the flow's next start runs interrupted batches again.
    A second Ctrl-C ends the process at once.
    The log, on standard error, has each change of pressure between stages.
    Exit status 0: Ctrl-C or SIGTERM stopped the flow.
    Exit status 1: a stage failed, or the flow is invalid.
    """
    # Imported here, so that `headrace flow show` does not wait for Spark.
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415

    wanted = load_flow(name)
    spark = start_spark(f"headrace flow {wanted.name}")
    try:
        running = wanted.start(spark, stages=stage)
        typer.echo(f"Flow {wanted.name} runs: {', '.join(running.queries)}. Ctrl-C ends it.")
        with logged(sys.stderr, of="headrace"):
            _run_until_stopped(spark, running)
    except StreamingQueryException as failure:
        notes = " ".join(getattr(failure, "__notes__", ()))
        why = printable(ErrorReport.of(failure).line)[:MOST_CHARACTERS].rstrip(".")
        raise HeadraceError(f"A query failed with {why}. {notes}") from failure
    finally:
        spark.stop()


def _run_until_stopped(spark: "SparkSession", running: "RunningFlow") -> None:
    def stop() -> None:
        typer.echo("The flow stops; Ctrl-C once more ends it at once.", err=True)
        spark.sparkContext.setLogLevel("OFF")  # Spark would log long traces of interrupted jobs
        running.stop()

    try:
        with stopped_by_signals(stop):
            running.await_termination()
            running.stop()  # waits for a stop that is under way
    except KeyboardInterrupt:
        # A regular exit of Python would wait for a running handler, without a time limit.
        os._exit(ExitStatus.INTERRUPTED)


def _listed(shown: Flow) -> Group:
    graph = shown.graph
    stages = [graph.stages[name] for layer in graph.layers() for name in layer]
    return Group(
        table(
            stages,
            ("stage", lambda stage: stage.name),
            ("reads", lambda stage: stage.reads),
            ("writes", lambda stage: ", ".join(stage.writes)),
            wide=False,
        ),
        "",
        table(
            graph.links.values(),
            ("channel", lambda link: link.name),
            ("where", lambda link: link.channel.location),
            wide=False,
        ),
    )


def _described(shown: Flow) -> dict[str, object]:
    graph = shown.graph
    return {
        "flow": shown.name,
        "stages": [
            {
                "stage": stage.name,
                "gate": shown.gate(stage.name),
                "reads": stage.reads,
                "writes": list(stage.writes),
                "upstream": list(graph.upstream(stage.name)),
                "downstream": list(graph.downstream(stage.name)),
                "declared": stage.declared_at,
            }
            for stage in graph.stages.values()
        ],
        "channels": [
            {
                "channel": link.name,
                "where": link.channel.location,
                "declared": link.declared_at,
            }
            for link in graph.links.values()
        ],
    }
