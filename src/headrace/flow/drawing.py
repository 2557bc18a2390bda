"""A flow as a drawing: stages as boxes in layers, channels as lines that go down.

A channel that passes by a layer has a place of its own in it, so that no line goes through a box.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from headrace.flow.stage import Graph

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


_GAP: Final = 3
"""Columns between two boxes."""

_BOX_ROWS: Final = 3


@dataclass(frozen=True, slots=True)
class _Node:
    """A stage, or a channel that passes by the stages of a layer."""

    name: str
    is_stage: bool


@dataclass(frozen=True, slots=True)
class _Wire:
    """A channel between two layers: from which columns it comes and to which it goes."""

    channel: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def draw(graph: Graph) -> str:
    """The flow in characters; nothing for a flow without stages.

    The graph has no cycle, and every channel that a stage names is one of its.
    """
    graph = graph.merged()
    layers = _layers(graph)
    if not layers:
        return ""
    canvas, row = Canvas(), 0
    columns = [_columns(graph, layer) for layer in layers]
    row = _draw_wires(canvas, row, _from_outside(graph, layers, columns))
    for number, layer in enumerate(layers):
        for node in layer:
            column = columns[number][node]
            if node.is_stage:
                canvas.box(row, column, _width(graph, node), node.name)
            else:
                canvas.down(column, row, row + _BOX_ROWS - 1)
        below = layers[number + 1] if number + 1 < len(layers) else []
        wires = _between(graph, layer, below, columns[number : number + 2])
        row = _draw_wires(canvas, row + _BOX_ROWS - 1, wires)
    return canvas.text()


def _layers(graph: Graph) -> list[list[_Node]]:
    """The nodes of each layer, each about below those that it hangs on."""
    rows = graph.layers()
    depth = {name: number for number, row in enumerate(rows) for name in row}
    layers = [[_Node(name, is_stage=True) for name in row] for row in rows]
    for channel in graph.links:
        readers = [depth[name] for name in graph.readers(channel)]
        if not readers:
            continue
        first = min((depth[name] for name in graph.writers(channel)), default=min(readers) - 1)
        for number in range(first + 1, max(readers)):
            layers[number].append(_Node(channel, is_stage=False))
    for above, layer in pairwise(layers):
        places = {name: place for place, node in enumerate(above) for name in _made(graph, node)}
        layer.sort(key=lambda node: places.get(_needed(graph, node), len(places)))
    return layers


def _made(graph: Graph, node: _Node) -> tuple[str, ...]:
    """The channels that leave a node."""
    return graph.stages[node.name].writes if node.is_stage else (node.name,)


def _needed(graph: Graph, node: _Node) -> str:
    """The channel that comes to a node."""
    return graph.stages[node.name].reads if node.is_stage else node.name


def _width(graph: Graph, node: _Node) -> int:
    """That of all boxes, so that a chain is one straight line."""
    if not node.is_stage:
        return 1
    return max(max(len(each.name) + 4, 2 * len(each.writes) + 3) for each in graph.stages.values())


def _columns(graph: Graph, layer: Iterable[_Node]) -> dict[_Node, int]:
    columns, column = {}, 0
    for node in layer:
        columns[node] = column
        column += _width(graph, node) + _GAP
    return columns


def _entry(graph: Graph, node: _Node, column: int) -> int:
    """Where a channel comes to a node."""
    return column + _width(graph, node) // 2


def _exits(graph: Graph, node: _Node, column: int) -> dict[str, int]:
    """Where channels leave a node."""
    made = _made(graph, node)
    first = _entry(graph, node, column) - (len(made) - 1)
    return {channel: first + 2 * place for place, channel in enumerate(made)}


def _from_outside(
    graph: Graph, layers: list[list[_Node]], columns: list[dict[_Node, int]]
) -> list[_Wire]:
    """The channels that are read in the first layer, which nobody in the flow writes."""
    wires = []
    for channel in graph.links:
        targets = _targets(graph, channel, layers[0], columns[0])
        if targets:
            wires.append(_Wire(channel, targets[:1], targets))
    return wires


def _targets(
    graph: Graph, channel: str, layer: list[_Node], columns: dict[_Node, int]
) -> tuple[int, ...]:
    return tuple(
        _entry(graph, node, columns[node]) for node in layer if _needed(graph, node) == channel
    )


def _between(
    graph: Graph, above: list[_Node], below: list[_Node], columns: list[dict[_Node, int]]
) -> list[_Wire]:
    """The channels between two layers, and those that leave the flow or enter it there."""
    wires = []
    for channel in graph.links:
        sources = tuple(
            exits[channel]
            for node in above
            if channel in (exits := _exits(graph, node, columns[0][node]))
        )
        targets = _targets(graph, channel, below, columns[1]) if below else ()
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
