"""Declarations of a gate's facts, for ``--json``, the list of gates, pages and metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.gate import GateMoment
from headrace.operate.status.lags import GateLag


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list of gates.

    Attributes:
        header: Name of the column, with its unit.
        text: Text of a snapshot's cell. ``regions/gate_row.html`` adds a link or a bar to a few.
        is_number: Whether the cells are aligned to the right.
        in_table: Whether the command's table has the column: "always", "wide" (from 100 columns
            on), or "never".
        narrow: Shorter text for a narrow table and for the page; None if it is the same.
        is_beside: Whether the page shows the text, smaller, in the cell of the preceding column.
        width: Share of the page's width; unused if `is_beside`.
        sort: Name of the page's sort order; empty if there is none.
        order: Sort key; gates with equal keys are sorted by name.
    """

    header: str
    text: Callable[[Any], str]
    is_number: bool = False
    in_table: str = "always"
    narrow: Callable[[Any], str] | None = None
    is_beside: bool = False
    width: int = 10
    sort: str = ""
    order: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge with a value for each gate.

    Attributes:
        name: Name without the prefix ``headrace_``.
        help: One sentence.
        value: Value from a gate, its lag and the time (ms since the epoch); None without one.
    """

    name: str
    help: str
    value: Callable[[GateMoment, GateLag, int], float | None]


def fact(
    meaning: str,
    value: Callable[[Any], Any],
    column: Column | None = None,
    metric: Metric | None = None,
) -> Any:
    """Declare a field of `GateSnapshot`: its meaning, value, column and metric.

    A new fact only needs a new field.
    """
    metadata = {"meaning": meaning, "value": value, "column": column, "metric": metric}
    return field(metadata=metadata)
