"""The first page: what needs somebody now, then all gates, the most urgent first."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import Page, Query, Site
from headrace.dashboard.rendering import path, region_id
from headrace.ledger import Ledger
from headrace.operations.attention import Need, Where, urgency_of
from headrace.operations.snapshot import GateSnapshot
from headrace.operations.stages import flow_needs

MOST_NEEDS: Final = 12
"""Sentences at the top; beyond it they are counted."""

_ORDERS: Final[Mapping[str, Callable[[GateSnapshot], Any]]] = {
    "urgency": urgency_of,
    "name": lambda each: each.gate,
    "lag": lambda each: (-(each.lag or 0), each.gate),
    "drain": lambda each: (each.drain_s is not None, -(each.drain_s or 0), each.gate),
    "rate": lambda each: (-(each.rate_per_s or 0), each.gate),
    "batch": lambda each: (-_load(each), each.gate),
}
"""How gates can be sorted."""


def _load(each: GateSnapshot) -> float:
    return each.newest.duration_ms / max(each.interval_ms, 1) if each.newest else 0.0


def overview_page(site: Site, _name: str, query: Query) -> Page:
    """All gates, sorted as ``sort`` says, those whose names have ``q`` in them."""
    order = query.get("sort", "urgency")
    order = order if order in _ORDERS else "urgency"
    wanted = query.get("q", "")[:100]
    rows = _Rows(site)

    def look(_ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        gates = list(fleet.snapshots.values())
        shown = [each for each in gates if wanted.lower() in each.gate.lower()]
        shown.sort(key=_ORDERS[order])
        needs = [need for each in gates for need in each.needs]
        needs += flow_needs(fleet.stages)
        needs.sort(key=lambda need: (need.urgency, need.about))
        regions = {
            "summary": site.render(
                "summary.html",
                states=Counter(str(each.state) for each in gates).most_common(),
                gates=gates,
                now_ms=now_ms,
            ),
            "needs": site.render(
                "needs.html",
                needs=[(need, _link(need)) for need in needs[:MOST_NEEDS]],
                more=len(needs) - MOST_NEEDS,
                gates=len(gates),
            ),
            "shown": site.render("shown.html", shown=len(shown), gates=len(gates), wanted=wanted),
        }
        ids = []
        for each in shown:
            ids.append(region_id("gate", each.gate))
            regions[ids[-1]] = rows.html(each, fleet)
        return View(regions, {"gates": ids})

    return Page(
        key=f"/?sort={order}&q={wanted}",
        title="Gates",
        template="overview.html",
        look=look,
        revision=lambda fleet: (fleet.revisions, fleet.elsewhere),
        about={"order": order, "wanted": wanted, "orders": tuple(_ORDERS)},
    )


class _Rows:
    """Rows of gates, each made again when its gate has changed."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, tuple[GateSnapshot, object, str]] = {}

    def html(self, snapshot: GateSnapshot, fleet: Fleet) -> str:
        """The cells of a gate."""
        control = fleet.controls.get(snapshot.gate)
        in_force = control and control.in_force
        known = self._made.get(snapshot.gate)
        if known is not None and known[1] == in_force and _look_alike(known[0], snapshot):
            return known[2]
        values = {
            "control": control,
            "lags": fleet.last_lags(snapshot.gate),
            "lag_s": snapshot.lag_seconds,
        }
        html = self._site.render("gate_row.html", gate=snapshot, **values)
        self._made[snapshot.gate] = snapshot, in_force, html
        return html


def _look_alike(one: GateSnapshot, other: GateSnapshot) -> bool:
    """Whether two snapshots differ by no more than when they were taken."""
    if one is other:
        return True
    return _ageless(one) == _ageless(other)


def _ageless(snapshot: GateSnapshot) -> GateSnapshot:
    return replace(snapshot, time_ms=0, lag_age_ms=0, lag_seconds=None, needs=())


def _link(need: Need) -> str:
    match need.where:
        case Where.GATE:
            return path("gate", need.about)
        case Where.FAILURES:
            return f"/failures?{_query(need.about)}"
        case Where.VERIFY:
            return f"/verify?{_query(need.about)}"
        case Where.RECEIVERS:
            return "/receivers"
        case Where.FLOWS:
            return "/flows"


def _query(gate: str) -> str:
    return f"gate={path(gate)[1:]}"
