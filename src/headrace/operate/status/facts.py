"""The facts of a gate, each named once: for ``--json``, the list of gates, pages and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from headrace.errors import OptionError
from headrace.gate import GateMoment, SourceCost
from headrace.operate.status.needs import drained_in, urgency_of
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.trends import Trend
from headrace.operate.status.words import UNKNOWN, count, duration

ARROWS: Final[Mapping[Trend, str]] = {Trend.FALLING: "↓", Trend.STEADY: "→", Trend.RISING: "↑"}


@dataclass(frozen=True, slots=True)
class GateColumn:
    """A column of the list.

    Attributes:
        header: Name of the column, with its unit.
        text: Text of a gate's cell. ``regions/gate_row.html`` adds a link or a bar to a few cells.
        is_number: Whether the cells are aligned to the right.
        in_table: Whether the command's table has the column: "always", "wide" (from 100 columns
            on), or "never".
        narrow: Shorter text for a narrow table and for the page; None if it is the same.
        is_beside: Whether the page shows the text, smaller, in the cell of the preceding column.
        width: Share of the page's width; unused if `is_beside`.
        sort: Name of the page's sort order; empty if there is none.
        order: Sort key.
    """

    header: str
    text: Callable[[GateSnapshot], str]
    is_number: bool = False
    in_table: str = "always"
    narrow: Callable[[GateSnapshot], str] | None = None
    is_beside: bool = False
    width: int = 10
    sort: str = ""
    order: Callable[[GateSnapshot], Any] | None = None


@dataclass(frozen=True, slots=True)
class GateMetric:
    """A gauge with a value for each gate.

    Attributes:
        name: Name without the prefix ``headrace_``.
        help: One sentence.
        value: Value at a time (ms since the epoch); None if the gate has none.
    """

    name: str
    help: str
    value: Callable[[GateMoment, int], float | None]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of a gate. A new fact only needs an entry of `FACTS`.

    Attributes:
        name: Key in ``--json``.
        column: Column in the list of gates; None without one.
        metric: Metric; None without one.
        value: Value for ``--json``; None for a field of `GateSnapshot`.
    """

    name: str
    column: GateColumn | None = None
    metric: GateMetric | None = None
    value: Callable[[GateSnapshot], Any] | None = None


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


@lru_cache(maxsize=10_000)
def _fixed_cost_s(batch_cost: str | None) -> float | None:
    """Return a batch's learnt fixed cost (s); None without one, or if another version wrote it."""
    if batch_cost is None:
        return None
    try:
        return SourceCost.from_text(batch_cost).fixed_s
    except OptionError:
        return None


def _most_per_s(gate: GateMoment, _now_ms: int) -> float | None:
    throttle, limit = gate.rate_limit, gate.operator.limit
    rates = [
        gate.rate_per_s,
        None if throttle is None else throttle.rate_per_s,
        None if limit is None else limit.records_per_s,
    ]
    return min((rate for rate in rates if rate is not None), default=None)


def _ceiling(gate: GateMoment, _now_ms: int) -> int | None:
    return None if gate.ceiling is None else gate.ceiling.records


def _away_s(gate: GateMoment, now_ms: int) -> float:
    outage = gate.waits if gate.has_query else None
    return max(now_ms - outage.since_ms, 0) / 1000 if outage else 0


FACTS: Final = (
    Fact(
        "gate",
        GateColumn(
            "gate", lambda gate: gate.gate, width=17, sort="name", order=lambda gate: gate.gate
        ),
    ),
    Fact(
        "state",
        GateColumn(
            "state", lambda gate: str(gate.state), width=14, sort="urgency", order=urgency_of
        ),
    ),
    Fact(
        "lag",
        GateColumn(
            "lag",
            _lag,
            is_number=True,
            narrow=_short_lag,
            width=12,
            sort="lag",
            order=lambda gate: (-(gate.lag or 0), gate.gate),
        ),
    ),
    Fact("lag_trend", GateColumn("trend", lambda _gate: "", in_table="never")),
    Fact(
        "drain_s",
        GateColumn(
            "drained in",
            lambda gate: _with_arrow(gate.drain_trend, drained_in(gate.drain_s)),
            is_number=True,
            in_table="wide",
            narrow=_short_drain,
            sort="drain",
            order=lambda gate: (gate.drain_s is not None, -(gate.drain_s or 0), gate.gate),
        ),
    ),
    Fact(
        "rate_per_s",
        GateColumn(
            "rate/s",
            lambda gate: count(gate.rate_per_s),
            is_number=True,
            width=13,
            sort="rate",
            order=lambda gate: (-(gate.rate_per_s or 0), gate.gate),
        ),
        GateMetric(
            "rate_limit_records_per_second", "The most that a batch is planned for.", _most_per_s
        ),
    ),
    Fact(
        "processing_rate_per_s",
        GateColumn(
            "processed/s",
            lambda gate: count(gate.processing_rate_per_s),
            is_number=True,
            in_table="never",
            is_beside=True,
        ),
        GateMetric(
            "capacity_records_per_second",
            "How fast the last batch was processed.",
            lambda gate, _now_ms: gate.capacity_per_s,
        ),
    ),
    Fact(
        "batches",
        GateColumn(
            "batch",
            _batch,
            is_number=True,
            width=13,
            sort="batch",
            order=lambda gate: (-_load(gate), gate.gate),
        ),
    ),
    Fact(
        "interval_ms",
        GateColumn(
            "interval",
            lambda gate: duration(gate.interval_ms),
            is_number=True,
            in_table="wide",
            is_beside=True,
        ),
        GateMetric(
            "batch_interval_seconds",
            "The time that a batch should take.",
            lambda gate, _now_ms: gate.interval_ms / 1000,
        ),
    ),
    Fact(
        "fixed_ms",
        metric=GateMetric(
            "batch_fixed_cost_seconds",
            "What a batch costs before its first record.",
            lambda gate, _now_ms: _fixed_cost_s(gate.batch_cost),
        ),
    ),
    Fact(
        "ceiling_records",
        metric=GateMetric(
            "batch_ceiling_records", "The largest batch that the handler takes.", _ceiling
        ),
    ),
    Fact(
        "operator_limits",
        metric=GateMetric(
            "paused",
            "1 while an operator has paused or drained the gate.",
            lambda gate, _now_ms: gate.operator.hold is not None,
        ),
    ),
    Fact(
        "waiting",
        metric=GateMetric(
            "sink_away_seconds", "For how long its batch has waited for its sink; 0: not.", _away_s
        ),
    ),
    Fact(
        "query",
        metric=GateMetric(
            "query_running",
            "1 while a query stands behind the gate.",
            lambda gate, _now_ms: gate.has_query,
        ),
    ),
    Fact(
        "reason",
        GateColumn(
            "limited by", lambda gate: gate.operator_limits or gate.reason or UNKNOWN, width=14
        ),
    ),
)
"""Facts of a gate. Columns appear in this order."""

GATE_COLUMNS: Final = tuple(fact.column for fact in FACTS if fact.column is not None)
GATE_METRICS: Final = tuple(fact.metric for fact in FACTS if fact.metric is not None)


def as_json(gate: GateSnapshot) -> dict[str, Any]:
    """Return a gate's fields and computed facts, as ``headrace status --json`` prints them."""
    added = {fact.name: fact.value(gate) for fact in FACTS if fact.value is not None}
    return asdict(gate) | added
