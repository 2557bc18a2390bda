"""The list of gates, described once: for the command's table and for the dashboard's page.

Another column is another entry here. Its value is a field of `GateSnapshot`, which ``--json`` has
by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.operate.status.attention import urgency_of
from headrace.operate.status.sentences import drained_in
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.trends import Trend
from headrace.operate.status.words import UNKNOWN, count, duration

ARROWS: Final[Mapping[Trend, str]] = {Trend.FALLING: "↓", Trend.STEADY: "→", Trend.RISING: "↑"}


@dataclass(frozen=True, slots=True)
class GateColumn:
    """A column of the list.

    Attributes:
        header: Name of the column, with its unit.
        text: The text of a gate's cell. A few cells have more on the page (a link, a bar): see
            ``regions/gate_row.html``.
        is_number: Whether the cells are aligned to the right.
        in_table: Whether the command's table has it: "always", "wide" (from 100 columns on), or
            "never".
        narrow: The text where there is less room: in a narrower table, and on the page; None if it
            is the same.
        is_beside: Whether the page shows it in the cell of the column before it, smaller.
        sort: Name of the order by which the page can sort; empty if there is none.
        order: The key of that order.
    """

    header: str
    text: Callable[[GateSnapshot], str]
    is_number: bool = False
    in_table: str = "always"
    narrow: Callable[[GateSnapshot], str] | None = None
    is_beside: bool = False
    sort: str = ""
    order: Callable[[GateSnapshot], Any] | None = None


def _lag(gate: GateSnapshot) -> str:
    if gate.lag_now is not None:
        return f"{count(gate.lag_now)} now"
    if gate.lag_is_old and gate.lag is None and gate.left_over == 0:
        return f"none {duration(gate.lag_age_ms)} ago"
    if gate.lag_is_old and gate.lag is not None:
        return f"{count(gate.lag)} {duration(gate.lag_age_ms)} ago"
    return _with_arrow(gate.lag_trend, count(gate.lag))


def _short_lag(gate: GateSnapshot) -> str:
    if gate.lag_now is not None:
        return count(gate.lag_now)
    arrow = f" {ARROWS[gate.lag_trend]}" if gate.lag_trend else ""
    return f"{count(gate.lag)}{arrow}"


def _short_drain(gate: GateSnapshot) -> str:
    arrow = f"{ARROWS[gate.drain_trend]} " if gate.drain_trend and gate.left_over else ""
    return f"{arrow}{drained_in(gate.drain_s)}"


def _with_arrow(trend: Trend | None, text: str) -> str:
    return text if trend is None else f"{ARROWS[trend]} {trend} {text}"


def _batch_ms(gate: GateSnapshot) -> int | None:
    return gate.newest.duration_ms if gate.newest else None


def _batch(gate: GateSnapshot) -> str:
    so_far = " so far" if gate.newest is not None and gate.newest.running else ""
    return f"{duration(_batch_ms(gate))}{so_far}"


def _load(gate: GateSnapshot) -> float:
    return (_batch_ms(gate) or 0) / max(gate.interval_ms, 1)


GATE_COLUMNS: Final = (
    GateColumn("gate", lambda each: each.gate, sort="name", order=lambda each: each.gate),
    GateColumn("state", lambda each: str(each.state), sort="urgency", order=urgency_of),
    GateColumn(
        "lag",
        _lag,
        is_number=True,
        narrow=_short_lag,
        sort="lag",
        order=lambda each: (-(each.lag or 0), each.gate),
    ),
    GateColumn("trend", lambda _each: "", in_table="never"),
    GateColumn(
        "drained in",
        lambda each: _with_arrow(each.drain_trend, drained_in(each.drain_s)),
        is_number=True,
        in_table="wide",
        narrow=_short_drain,
        sort="drain",
        order=lambda each: (each.drain_s is not None, -(each.drain_s or 0), each.gate),
    ),
    GateColumn(
        "rate/s",
        lambda each: count(each.rate_per_s),
        is_number=True,
        sort="rate",
        order=lambda each: (-(each.rate_per_s or 0), each.gate),
    ),
    GateColumn(
        "processed/s",
        lambda each: count(each.processing_rate_per_s),
        is_number=True,
        in_table="never",
        is_beside=True,
    ),
    GateColumn(
        "batch",
        _batch,
        is_number=True,
        sort="batch",
        order=lambda each: (-_load(each), each.gate),
    ),
    GateColumn(
        "interval",
        lambda each: duration(each.interval_ms),
        is_number=True,
        in_table="wide",
        is_beside=True,
    ),
    GateColumn("limited by", lambda each: each.operator_limits or each.reason or UNKNOWN),
)
"""The columns in their order; the last one takes the width that is left."""
