"""Declares the facts of `GateSnapshot` with their columns and metrics."""

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
        text: Returns the text of a gate's cell. ``regions/gate_row.html`` adds links and bars.
        is_number: Whether the cells are aligned to the right.
        in_table: Whether ``headrace status`` shows the column: "always", "wide" (on a terminal of
            100 or more characters), or "never".
        narrow: Returns a shorter text for narrow terminals and the page; None: they show ``text``.
        is_beside: Whether the page shows the text, smaller, in the cell of the preceding column.
        width: Share of the page's width; unused if `is_beside`.
        sort: Name of the page's sort order by this column; empty if the page has none.
        order: Returns a gate's sort key. Gates with equal keys are sorted by name.
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
        help: Help text of the metric: one sentence.
        value: Returns the value from a gate, its lag and the time (ms since the epoch); None if
            there is no value.
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
    """Declare a field of `GateSnapshot`.

    ``meaning`` documents the field, ``value`` computes it from a `Moment`, and ``column`` and
    ``metric`` publish it.
    """
    metadata = {"meaning": meaning, "value": value, "column": column, "metric": metric}
    return field(metadata=metadata)
