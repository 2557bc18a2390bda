"""``headrace flow``: flows that a user declares, drawn with stages as boxes in layers, and run."""

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from rich.text import Text

from headrace.cli.exits import ExitStatus, stopped_by_signals
from headrace.cli.printing import logged, print_json, printable, write_picture
from headrace.cli.shared_options import AsJson, Picture, load_flow, start_spark
from headrace.errors import HeadraceError
from headrace.flow import Flow
from headrace.flow.stage import Graph
from headrace.ledger import ErrorReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow import RunningFlow

_GAP: Final = 3
"""Columns between two boxes."""

_BOX_ROWS: Final = 3

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = " │││─┘┐┤─└┌├─┴┬┼"
"""By the sides on which a line leaves a character."""


class Canvas:
    """A sheet of characters, as large as what is drawn on it; columns and rows count from 0."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], int] = {}
        self._letters: dict[tuple[int, int], str] = {}

    def across(self, row: int, one: int, other: int) -> None:
        """Draw a line along a row between two columns."""
        first, last = sorted((one, other))
        for column in range(first, last):
            self._add(row, column, _RIGHT)
            self._add(row, column + 1, _LEFT)

    def down(self, column: int, first: int, last: int) -> None:
        """Draw a line along a column between two rows."""
        for row in range(first, last):
            self._add(row, column, _DOWN)
            self._add(row + 1, column, _UP)

    def box(self, row: int, column: int, width: int, text: str) -> None:
        """Draw a box of three rows around a text."""
        last = column + width - 1
        for edge in (row, row + 2):
            self.across(edge, column, last)
        for side in (column, last):
            self.down(side, row, row + 2)
        self.write(row + 1, column + (width - len(text)) // 2, text)

    def write(self, row: int, column: int, text: str) -> None:
        """Write a text over whatever is there."""
        for place, letter in enumerate(text, start=column):
            self._letters[row, place] = letter

    def text(self) -> str:
        """All that was drawn, without spaces at the ends of lines."""
        places = self._lines.keys() | self._letters.keys()
        rows = max((row for row, _ in places), default=-1) + 1
        columns = max((column for _, column in places), default=-1) + 1
        lines = ("".join(self._at(row, column) for column in range(columns)) for row in range(rows))
        return "\n".join(line.rstrip() for line in lines)

    def _at(self, row: int, column: int) -> str:
        return self._letters.get((row, column), _LINES[self._lines.get((row, column), 0)])

    def _add(self, row: int, column: int, side: int) -> None:
        self._lines[row, column] = self._lines.get((row, column), 0) | side


class _Node(NamedTuple):
    """A stage, or a channel that passes by the stages of a layer."""

    name: str
    reads: str
    writes: tuple[str, ...]
    is_stage: bool


class _Wire(NamedTuple):
    """A channel between two layers: from which columns it comes and to which it goes."""

    channel: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def draw(graph: Graph) -> str:
    """The flow in characters; nothing for a flow without stages.

    The graph has no cycle, and every channel that a stage names is one of its.
    """
    graph = graph.merged()
    # One width for all boxes, so that a chain is one straight line.
    width = max(
        (max(len(each.name) + 4, 2 * len(each.writes) + 3) for each in graph.stages.values()),
        default=0,
    )
    layers = [_columns(layer, width) for layer in _layers(graph)]
    canvas, row = Canvas(), 0
    for above, below in pairwise([{}, *layers, {}]):
        row = _draw_wires(canvas, row, _wires(graph, above, below, width))
        for node, column in below.items():
            if node.is_stage:
                canvas.box(row, column, width, node.name)
            else:
                canvas.down(column, row, row + _BOX_ROWS - 1)
        row += _BOX_ROWS - 1
    return canvas.text()


def _layers(graph: Graph) -> list[list[_Node]]:
    """The nodes of each layer, each about below those that it reads from."""
    rows = graph.layers()
    depth = {name: number for number, row in enumerate(rows) for name in row}
    stages = graph.stages
    layers = [
        [_Node(name, stages[name].reads, stages[name].writes, is_stage=True) for name in row]
        for row in rows
    ]
    for channel in graph.links:
        readers = [depth[name] for name in graph.readers(channel)]
        if not readers:
            continue
        first = min((depth[name] for name in graph.writers(channel)), default=min(readers) - 1)
        for number in range(first + 1, max(readers)):
            layers[number].append(_Node(channel, channel, (channel,), is_stage=False))
    for above, layer in pairwise(layers):
        places = {name: place for place, node in enumerate(above) for name in node.writes}
        layer.sort(key=lambda node: places.get(node.reads, len(places)))
    return layers


def _columns(layer: list[_Node], width: int) -> dict[_Node, int]:
    columns, column = {}, 0
    for node in layer:
        columns[node] = column
        column += (width if node.is_stage else 1) + _GAP
    return columns


def _wires(
    graph: Graph, above: dict[_Node, int], below: dict[_Node, int], width: int
) -> list[_Wire]:
    """The channels between two layers, and those that leave the flow or enter it there."""

    def middle(node: _Node, column: int) -> int:
        return column + (width // 2 if node.is_stage else 0)

    wires = []
    for channel in graph.links:
        sources = tuple(
            middle(node, column) - (len(node.writes) - 1) + 2 * node.writes.index(channel)
            for node, column in above.items()
            if channel in node.writes
        )
        targets = tuple(
            middle(node, column) for node, column in below.items() if node.reads == channel
        )
        if sources or targets:
            wires.append(_Wire(channel, sources or targets[:1], targets))
    return wires


def _draw_wires(canvas: Canvas, row: int, wires: list[_Wire]) -> int:
    """Draw channels below a row, each along a row of its own; the row of what comes below."""
    if not wires:
        return row + 1
    wires, shift = _untangled(wires)
    last = row + len(wires) + 1
    right = max(column for wire in wires for column in (*wire.sources, *wire.targets)) + 2
    for number, wire in enumerate(wires, start=row + 1):
        targets = [target + shift for target in wire.targets]
        for source in wire.sources:
            canvas.down(source, row, number)
        for target in targets:
            canvas.down(target, number, last)
            canvas.write(last, target, "▼")
        ends = [*wire.sources, *targets]
        canvas.across(number, min(ends), max(ends))
        canvas.write(number, right + shift, wire.channel)
    return last + 1


def _untangled(wires: list[_Wire]) -> tuple[list[_Wire], int]:
    """Wires from top to bottom, so that no line runs along another one's, and how far to shift."""
    left, ordered = list(wires), []
    while left:
        # One may go below those that come from where it goes to.
        free = next((w for w in left if not _covers(w, [o for o in left if o is not w])), None)
        if free is None:
            return wires, 1
        left.remove(free)
        ordered.append(free)
    return ordered, 0


def _covers(wire: _Wire, others: list[_Wire]) -> bool:
    """Whether one of the others comes from above to where this one goes down."""
    return any(set(wire.targets) & set(other.sources) for other in others)


MOST_CHARACTERS: Final = 2000
"""Most characters of what a query failed with."""

flow = typer.Typer(
    help="Draw and run flows: stages in a chain.", no_args_is_help=True, add_completion=False
)

FlowName = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW", help="Where the flow is, such as shop.flows:orders.")
]


@flow.command("show")
def show_flow(name: FlowName, *, svg: Picture = None, as_json: AsJson = False) -> None:
    """Check a flow and draw it, without starting anything."""
    shown = load_flow(name)
    drawing = draw(shown.graph)
    if svg is not None:
        width = max(map(len, drawing.splitlines())) + 2
        write_picture(Text(drawing), svg, f"headrace flow show {name}", width)
    if as_json:
        print_json(_described(shown))
    else:
        typer.echo(drawing)


@flow.command("run")
def run_flow(
    name: FlowName,
    *,
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Only this stage; several may be named. The others run elsewhere."),
    ] = None,
) -> None:
    """Run a flow in a Spark application of its own, whole or in part, until Ctrl-C.

    A batch that is interrupted then is run again when the flow is started again.
    Ctrl-C once more ends it at once. The log, on the standard error, has each change of pressure.
    Exit status 0: it was ended so, or by SIGTERM.
    Exit status 1: a stage failed, or the flow is wrong.
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
        spark.sparkContext.setLogLevel("OFF")  # or Spark would log at length what it interrupts
        running.stop()

    try:
        with stopped_by_signals(stop):
            running.await_termination()
            running.stop()  # which waits for one that is stopping it
    except KeyboardInterrupt:
        # A regular exit of Python would wait for a handler that still runs, for as long as it
        # likes.
        os._exit(ExitStatus.INTERRUPTED)


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
