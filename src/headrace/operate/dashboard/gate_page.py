"""Pages of a gate: state, history, partitions, batches and operator limits."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final

from headrace.gate import Ledger, OperatorAction, OperatorLimits, SeriesPoint
from headrace.operate.dashboard.fleet import Fleet
from headrace.operate.dashboard.live import View
from headrace.operate.dashboard.pages import (
    Page,
    Query,
    Site,
    address,
    path,
    refuse_a_long_name,
    refuse_no_gate,
    whole_number,
)
from headrace.operate.dashboard.timeline import timeline_of
from headrace.operate.status.actions import drain_state
from headrace.operate.status.gate_actions import FORMS, impossible_actions
from headrace.operate.status.moment import read_histories, snapshots_of, take_snapshot
from headrace.operate.status.needs import BY_OPERATORS, headline
from headrace.operate.status.parts import PartitionSnapshot
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.states import GateHistory, Need
from headrace.operate.status.words import plural

SPANS: Final[Mapping[str, int | None]] = {
    "15 min": 900_000,
    "1 h": 3_600_000,
    "6 h": 21_600_000,
    "24 h": 86_400_000,
    "7 d": 604_800_000,
    "all": None,
}
"""Time spans that a viewer can choose for a gate's charts: name and length (ms), counted back from
now. None stands for the whole history in the ledger."""

SPAN: Final = "15 min"
"""Default time span of a gate's charts, a key of `SPANS`."""

POINTS: Final = 900
"""A chart has at most this many points. The time range is divided into this many periods, and the
batches of a period are combined into one point."""

SHORTEST_MS: Final = 60_000
"""Shortest time range of the charts (ms), for a gate that has just begun."""

SHORTEST_RANGE_MS: Final = 1_000
"""Shortest time range that a page's address can name (ms)."""

CLOCKS_APART_MS: Final = 60_000
"""A chart that ends now includes batches that were planned up to this time (ms) after now, because
a planner's clock may be ahead of this machine's clock."""


def named_range(query: Query) -> tuple[int, int] | None:
    """Return the time range that a page's address names (ms since the epoch), or None.

    >>> named_range({"from": "60000", "until": "90000"})
    (60000, 90000)
    """
    since_ms, until_ms = whole_number(query.get("from", "")), whole_number(query.get("until", ""))
    if since_ms is None or until_ms is None or not since_ms < until_ms < 2**53:
        return None
    return since_ms, max(until_ms, since_ms + SHORTEST_RANGE_MS)


def chart_range(
    query: Query, now_ms: int, oldest_ms: Callable[[int], int | None], newest_ms: int | None
) -> tuple[int, int]:
    """Return the time range of the charts (ms since the epoch).

    ``query`` names the range with ``from`` and ``until``, or names a span of `SPANS`. The range of
    a span begins with the first batch in the span, so that a gate that is three minutes old fills
    its charts. The range ends now. If more than half of the charts would then be empty, as after
    the end of a query, it ends with the last batch.

    ``oldest_ms`` takes a time, and returns the time at which the first batch after it was planned.
    ``newest_ms`` is the time at which the last batch was planned. Both are None without a batch.
    """
    named = named_range(query)
    if named is not None:
        return named
    span_ms = SPANS.get(query.get("span", ""), SPANS[SPAN])

    def up_to(until_ms: int) -> tuple[int, int]:
        earliest_ms = 0 if span_ms is None else until_ms - span_ms
        first_ms = oldest_ms(earliest_ms)
        since_ms = until_ms if first_ms is None else first_ms
        return max(min(since_ms, until_ms - SHORTEST_MS), earliest_ms), until_ms

    since_ms, until_ms = up_to(now_ms)
    if newest_ms is None or 2 * newest_ms >= since_ms + until_ms:
        return since_ms, until_ms
    return up_to(newest_ms + SHORTEST_RANGE_MS)


def series_of(ledger: Ledger, name: str, query: Query, now_ms: int) -> dict[str, Any]:
    """Return the history of a gate as columns for charts, with marks for events.

    In ``query``, ``from`` and ``until`` (ms since the epoch) name a time range. Without them,
    ``span`` is the length of the range up to now. With ``after`` (ms since the epoch), points
    before this time are left out.
    """
    gate = refuse_no_gate(ledger, name)
    newest = ledger.batches.newest(name, 1)
    newest_ms = newest[0].created_time_ms if newest else None
    since_ms, until_ms = chart_range(
        query, now_ms, lambda ms: ledger.moments.oldest_ms(name, ms), newest_ms
    )
    bucket_ms = max((until_ms - since_ms) // POINTS, 1)
    start_ms = max(since_ms, whole_number(query.get("after", "")) or 0)
    start_ms -= start_ms % bucket_ms
    # A planner's clock may be ahead of this machine's; its newest batch belongs in the charts.
    ahead_ms = CLOCKS_APART_MS if until_ms == now_ms else 0
    points = ledger.moments.series(name, start_ms, until_ms + ahead_ms, bucket_ms)
    return {
        "since_ms": since_ms,
        "until_ms": until_ms,
        "is_now": until_ms == now_ms,
        "interval_ms": gate.interval_ms,
        "time": [row.time_ms / 1000 for row in points],
        "lag": [row.lag for row in points],
        "rate": [row.rate_per_s for row in points],
        "capacity": [row.capacity_per_s for row in points],
        "batch": [None if p.duration_ms is None else p.duration_ms / 1000 for p in points],
        "marks": _marks(
            points,
            [
                row
                for row in ledger.operator_limits.history(name, 100)
                if start_ms <= row.time_ms <= until_ms
            ],
            (until_ms - since_ms) // 60,
        ),
    }


def _marks(
    points: Sequence[SeriesPoint], actions: Sequence[OperatorAction], apart_ms: int
) -> list[dict[str, Any]]:
    marks = _failures(points, apart_ms)
    marks += [
        {"time": here.time_ms / 1000, "kind": "restart", "text": "another checkpoint"}
        for before, here in pairwise(points)
        if before.checkpoint_id != here.checkpoint_id
    ]
    marks += [
        {"time": action.time_ms / 1000, "kind": "action", "text": f"{action.kind} by {action.by}"}
        for action in actions
    ]
    return marks


def _failures(points: Sequence[SeriesPoint], apart_ms: int) -> list[dict[str, Any]]:
    """Return marks for failed batches; failures less than ``apart_ms`` apart share a mark."""
    groups: list[tuple[int, int, int]] = []
    for point in points:
        if not point.failed:
            continue
        if groups and point.time_ms - groups[-1][1] < apart_ms:
            first, _, number = groups.pop()
            groups.append((first, point.time_ms, number + point.failed))
        else:
            groups.append((point.time_ms, point.time_ms, point.failed))
    return [
        {"time": first / 1000, "kind": "failed", "text": f"{plural(number, 'batch')} failed"}
        for first, _, number in groups
    ]


ROWS: Final = 100
"""Largest number of rows on the page of a gate's batches, and on the page of its partitions."""


def batches_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of a gate's batches, the newest first.

    In ``query``, ``gate`` names the gate. With ``before`` (ms since the epoch), the page has only
    batches that were planned before that time.
    """
    gate = query.get("gate", "")
    before_ms = whole_number(query.get("before", ""))

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = refuse_no_gate(ledger, gate)
        rows = ledger.batches.newest(gate, ROWS + 1, until_ms=before_ms)
        batches, has_more = rows[:ROWS], len(rows) > ROWS
        last_ms = batches[-1].created_time_ms if has_more else None
        losses = ledger.history.losses_of([batch.batch_key for batch in batches])
        history = GateHistory(
            record,
            batches,
            ledger.rates.history(gate, ROWS),
            losses=tuple(chain.from_iterable(losses.values())),
        )
        shown = take_snapshot(history, now_ms).batches
        html = site.render(
            "gate_batches.html",
            heading=None,
            rows=list(zip(batches, shown, strict=True)),
            interval_ms=record.interval_ms,
            more=address("/batches", gate=gate, before=last_ms) if has_more else None,
            more_words="The next ones",
        )
        return View({"list": html})

    return _page(f"/batches?{gate}&{before_ms}", "Batches of", gate, look)


def partitions_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of the partitions of a gate's newest batch.

    Partitions are sorted by the number of records that the batch did not admit, largest first.
    """
    gate = query.get("gate", "")
    skip = whole_number(query.get("skip", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = refuse_no_gate(ledger, gate)
        newest = ledger.batches.newest(gate, 1)
        ranges = ledger.batches.ranges(newest[0].batch_key) if newest else ()
        history = GateHistory(record, newest, ranges=ranges)
        partitions = by_lag(take_snapshot(history, now_ms).partitions)
        shown, end = partitions[skip : skip + ROWS], skip + ROWS
        more = address("/partitions", gate=gate, skip=end) if len(partitions) > end else None
        return View({"list": site.render("partition_rows.html", rows=shown, more=more)})

    return _page(f"/partitions?{gate}&{skip}", "Partitions of", gate, look)


def by_lag(partitions: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
    """Sort partitions by the number of records that the batch did not admit, largest first."""

    def order(each: PartitionSnapshot) -> tuple[int, int, str, int]:
        return -(each.left or 0), -each.admitted, each.topic, each.partition

    return sorted(partitions, key=order)


def _page(key: str, title: str, gate: str, look: Any) -> Page:
    refuse_a_long_name(gate)
    about = {"gate": gate, "all": "/"}
    return Page(key, f"{title} {gate}", look, lambda fleet: fleet.revisions.get(gate), about)


BATCHES: Final = 20
ACTIONS: Final = 5
WORST: Final = 8
"""The table below the heat map shows this many partitions, the ones with the largest lags."""

MOST_CELLS: Final = 2_000
"""Largest number of partitions that the heat map shows."""

HEATS: Final = 6


def gate_page(site: Site, name: str, query: Query) -> Page:
    """Return the page of the gate ``name``; ``query`` has the time range of its charts."""
    refuse_a_long_name(name)
    span = query.get("span", SPAN)
    span, zoomed = span if span in SPANS else SPAN, named_range(query)
    begin, end = zoomed or (None, None)
    about = {
        "gate": name,
        "forms": FORMS,
        "span": span,
        "spans": tuple(SPANS),
        "zoomed": zoomed,
        "series": address(f"/series{path(name)}", span=span, **{"from": begin}, until=end),
    }
    return Page(
        f"/gate/{name}",
        name,
        partial(_look_at_gate, site, name),
        lambda fleet: (fleet.revisions.get(name), fleet.elsewhere[:1]),
        about,
        "gate.html",
    )


def _look_at_gate(site: Site, name: str, ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
    (history,) = read_histories(ledger, [refuse_no_gate(ledger, name)])
    (snapshot,) = snapshots_of(ledger, [history], fleet.lags, wait_s=0)
    limits = history.operator_limits or ledger.operator_limits.of(name)
    newest, partitions = snapshot.newest, snapshot.partitions
    values: dict[str, Any] = {
        "gate": snapshot,
        "operator_limits": limits,
        "now_ms": now_ms,
        "drain": drain_state(ledger, name) if limits.draining else None,
        "lag_s": snapshot.lag_seconds,
    }
    return View(
        {
            "state": _state(site, snapshot, limits, values),
            "facts": site.render("gate_facts.html", **values),
            "newest": site.render("newest.html", newest=newest.planned_ms if newest else 0),
            "partitions": site.render(
                "partitions.html",
                cells=cells_of(partitions),
                worst=by_lag(partitions)[:WORST],
                gate=name,
                number=len(partitions),
                planned_ms=newest.planned_ms if newest else None,
            ),
            "timeline": site.render("timeline.html", timeline=timeline_of(history, now_ms)),
            "batches": _last_batches(site, history, snapshot),
            "law": site.render("gate_law.html", **values),
            "history": site.render(
                "operator_limits.html",
                actions=ledger.operator_limits.history(name, ACTIONS),
                gate=name,
            ),
        }
    )


def _state(
    site: Site, snapshot: GateSnapshot, limits: OperatorLimits, values: Mapping[str, Any]
) -> Any:
    return site.render(
        "gate_state.html",
        headline=beyond_state(snapshot),
        needs=_other_needs(snapshot),
        headline_has_limits=snapshot.state in BY_OPERATORS,
        impossible=impossible_actions(limits, snapshot),
        **values,
    )


def _last_batches(site: Site, history: GateHistory, snapshot: GateSnapshot) -> Any:
    has_more = len(history.batches) > BATCHES
    return site.render(
        "gate_batches.html",
        heading="The last batches",
        rows=list(zip(history.batches, snapshot.batches, strict=True))[:BATCHES],
        interval_ms=history.gate.interval_ms,
        more=address("/batches", gate=snapshot.gate) if has_more else None,
        more_words="All batches",
    )


def _other_needs(snapshot: GateSnapshot) -> list[Need]:
    sentence = headline(snapshot)
    return [need for need in snapshot.needs if need.sentence != sentence]


def beyond_state(snapshot: GateSnapshot) -> str:
    """Return a gate's headline without the state's name, which the page shows as a label."""
    text, state = headline(snapshot), str(snapshot.state)
    return text[len(state) :].lstrip(": ") if text.lower().startswith(state) else text


def cells_of(partitions: Sequence[PartitionSnapshot]) -> list[tuple[PartitionSnapshot, int]]:
    """Return partitions, sorted by topic and number, each with its shade in the heat map.

    The more records of the partition the batch did not admit, the higher is the shade. Shade 0
    means that no records are left.
    """
    largest = max((cell.left or 0 for cell in partitions), default=0)
    ordered = sorted(partitions, key=lambda cell: (cell.topic, cell.partition))[:MOST_CELLS]
    return [
        (cell, min(1 + cell.left * (HEATS - 1) // (largest + 1), HEATS - 1) if cell.left else 0)
        for cell in ordered
    ]
