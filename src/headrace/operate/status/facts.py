"""How a fact of a gate is declared: once, for ``--json``, the list of gates, pages and metrics."""

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
        text: The text of a snapshot's cell. A few cells have more on the page (a link, a bar): see
            ``regions/gate_row.html``.
        is_number: Whether the cells are aligned to the right.
        in_table: Whether the command's table has it: "always", "wide" (from 100 columns on), or
            "never".
        narrow: The text where there is less room: in a narrower table, and on the page; None if it
            is the same.
        is_beside: Whether the page shows it in the cell of the column before it, smaller.
        width: Its share of the page's width; of a column beside another nothing.
        sort: Name of the order by which the page can sort; empty if there is none.
        order: The key of that order; gates alike in it are sorted by name.
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
        name: Its name, without the prefix ``headrace_``.
        help: One sentence.
        value: The value of a gate with its lag, at a time (ms since the epoch); None for none.
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
    """Declare a field of `GateSnapshot`: its meaning, its value at a moment, how lists show it.

    Another fact is another field, and nothing else.
    """
    metadata = {"meaning": meaning, "value": value, "column": column, "metric": metric}
    return field(metadata=metadata)
