"""One gate in full: how it fares, its history, its partitions, its batches, what limits it."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import urlencode

from headrace.control import LawName, OperatorLimits
from headrace.dashboard.chart_series import SPAN, SPANS, named_range
from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import (
    Page,
    Query,
    Site,
    refuse_a_long_name,
    refuse_no_gate,
    whole_number,
)
from headrace.dashboard.rendering import path
from headrace.ledger import Kind, Ledger
from headrace.status.attention import BY_OPERATORS, Need
from headrace.status.draining import drain_state
from headrace.status.gate_history import GateHistory
from headrace.status.observer import Observer
from headrace.status.sentences import headline
from headrace.status.snapshot import GateSnapshot, PartitionSnapshot, take_snapshot

ROWS: Final = 100
"""Batches, or partitions, on a page."""


def batches_page(site: Site, _name: str, query: Query) -> Page:
    """The live batches of ``gate``, the newest first; those planned before ``before`` (ms)."""
    gate = query.get("gate", "")
    before_ms = whole_number(query.get("before", ""))

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = ledger.gates.get(gate)
        if record is None:
            return View({"list": site.render("no_gate.html", name=gate)})
        found = ledger.batches.newest(
            gate, ROWS + 1, until_ms=before_ms, kind=Kind.LIVE, children=False
        )
        batches, more = found[:ROWS], None
        if len(found) > ROWS:
            more = f"/batches?{urlencode({'gate': gate, 'before': batches[-1].created_time_ms})}"
        losses = ledger.history.losses_of([each.batch_key for each in batches])
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
            more=more,
            more_words="The next ones",
        )
        return View({"list": html})

    return _page(f"/batches?{gate}&{before_ms}", "Batches of", gate, look)


def partitions_page(site: Site, _name: str, query: Query) -> Page:
    """The partitions that the newest batch of ``gate`` reads, those with the largest lag first."""
    gate = query.get("gate", "")
    skip = whole_number(query.get("skip", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = ledger.gates.get(gate)
        if record is None:
            return View({"list": site.render("no_gate.html", name=gate)})
        newest = ledger.batches.newest(gate, 1, kind=Kind.LIVE, children=False)
        ranges = ledger.batches.ranges(newest[0].batch_key) if newest else ()
        history = GateHistory(record, newest, ranges=ranges)
        partitions = by_lag(take_snapshot(history, now_ms).partitions)
        more = None
        if len(partitions) > skip + ROWS:
            more = f"/partitions?{urlencode({'gate': gate, 'skip': skip + ROWS})}"
        shown = partitions[skip : skip + ROWS]
        return View({"list": site.render("partition_rows.html", rows=shown, more=more)})

    return _page(f"/partitions?{gate}&{skip}", "Partitions of", gate, look)


def by_lag(partitions: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
    """Partitions, those with the largest lag first."""

    def order(each: PartitionSnapshot) -> tuple[int, int, str, int]:
        return -(each.lag or 0), -each.admitted, each.topic, each.partition

    return sorted(partitions, key=order)


def _page(key: str, title: str, gate: str, look: Any) -> Page:
    refuse_a_long_name(gate)

    return Page(
        key=key,
        title=f"{title} {gate}",
        template="gate_list.html",
        look=look,
        revision=lambda fleet: fleet.revisions.get(gate),
        about={"gate": gate},
        beside=partial(_refuse_none, gate),
    )


def _refuse_none(gate: str, ledger: Ledger) -> dict[str, Any]:
    refuse_no_gate(ledger, gate)
    return {}


BATCHES: Final = 20
ACTIONS: Final = 5
WORST: Final = 8
"""Rows of partitions below the heat map."""

MOST_CELLS: Final = 2_000
"""Partitions in the heat map."""

HEATS: Final = 6


def gate_page(site: Site, name: str, query: Query) -> Page:
    """Everything about one gate."""
    refuse_a_long_name(name)
    span = query.get("span", SPAN)
    span, zoomed = span if span in SPANS else SPAN, named_range(query)
    series = {"span": span}
    if zoomed is not None:
        series |= {"from": str(zoomed[0]), "until": str(zoomed[1])}

    return Page(
        key=f"/gate/{name}",
        title=name,
        template="gate.html",
        look=partial(_look_at_gate, site, name),
        revision=lambda fleet: (fleet.revisions.get(name), fleet.elsewhere[:1]),
        about={
            "gate": name,
            "span": span,
            "spans": tuple(SPANS),
            "zoomed": zoomed,
            "series": f"/series{path(name)}?{urlencode(series)}",
        },
        beside=partial(_refuse_none, name),
    )


def _look_at_gate(site: Site, name: str, ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
    gate = ledger.gates.get(name)
    if gate is None:
        return View({"state": site.render("no_gate.html", name=name)})
    history = GateHistory.read(ledger, gate)
    snapshot = Observer(ledger, fleet.lags).snapshots([history], wait_s=0)[0]
    limits = ledger.operator_limits.of(name)
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
                cells=_cells(partitions),
                worst=by_lag(partitions)[:WORST],
                gate=name,
                number=len(partitions),
            ),
            "batches": _last_batches(site, history, snapshot),
            "law": site.render("gate_law.html", other=_other(snapshot), **values),
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
    waits, has_ceiling = snapshot.waiting is not None, snapshot.ceiling is not None
    return site.render(
        "gate_state.html",
        headline=beyond_state(snapshot),
        needs=_other_needs(snapshot),
        headline_has_limits=snapshot.state in BY_OPERATORS,
        impossible=impossible_actions(
            limits, waits=waits, has_ceiling=has_ceiling, runs=snapshot.query is not None
        ),
        **values,
    )


def _last_batches(site: Site, history: GateHistory, snapshot: GateSnapshot) -> Any:
    has_more = len(history.batches) > BATCHES
    return site.render(
        "gate_batches.html",
        heading="The last batches",
        rows=list(zip(history.batches, snapshot.batches, strict=True))[:BATCHES],
        interval_ms=history.gate.interval_ms,
        more=f"/batches?{urlencode({'gate': snapshot.gate})}" if has_more else None,
        more_words="All batches",
    )


def impossible_actions(
    operator_limits: OperatorLimits, *, waits: bool, has_ceiling: bool = False, runs: bool = True
) -> list[str]:
    """The actions that would change nothing now, by the names of their forms."""
    changes = {
        "pause": not operator_limits.paused,
        "drain": not operator_limits.draining,
        "resume": operator_limits.hold is not None,
        "stop": runs and operator_limits.stop is None,
        "unlimit": operator_limits.limit is not None,
        "retry-sink": waits,
        "lift-ceiling": has_ceiling,
    }
    return [action for action, is_possible in changes.items() if not is_possible]


def _other_needs(snapshot: GateSnapshot) -> list[Need]:
    """Return the gate's needs, beyond its headline."""
    said = headline(snapshot)
    return [each for each in snapshot.needs if each.sentence != said]


def beyond_state(snapshot: GateSnapshot) -> str:
    """The headline without the name of the state, which stands before it as a mark."""
    text, state = headline(snapshot), str(snapshot.state)
    return text[len(state) :].lstrip(": ") if text.lower().startswith(state) else text


def _other(snapshot: GateSnapshot) -> str | None:
    return None if snapshot.law is None else str(LawName(snapshot.law).other)


def _cells(partitions: Sequence[PartitionSnapshot]) -> list[tuple[PartitionSnapshot, int]]:
    """Partitions in order, each with how hot it is: its lag as a part of the largest, 0 to 5."""
    largest = max((each.lag or 0 for each in partitions), default=0)
    ordered = sorted(partitions, key=lambda each: (each.topic, each.partition))[:MOST_CELLS]
    return [
        (each, 0 if not each.lag else min(1 + each.lag * (HEATS - 1) // (largest + 1), HEATS - 1))
        for each in ordered
    ]
