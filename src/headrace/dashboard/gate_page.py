"""One gate in full: how it fares, its history, its partitions, its batches, what limits it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlencode

from headrace.control import Control, ControlAction, LawName
from headrace.dashboard.fleet import Fleet
from headrace.dashboard.gate_lists import by_lag
from headrace.dashboard.live import View
from headrace.dashboard.pages import NotFoundError, Page, Query, Site, refuse_a_long_name
from headrace.ledger import Ledger, SeriesPoint
from headrace.operations.attention import BY_OPERATORS, Need
from headrace.operations.draining import drain_state
from headrace.operations.gate_history import GateHistory
from headrace.operations.observer import Observer
from headrace.operations.sentences import headline
from headrace.operations.snapshot import GateSnapshot, PartitionSnapshot
from headrace.operations.words import plural

SPANS: Final[Mapping[str, int | None]] = {
    "15 min": 900_000,
    "1 h": 3_600_000,
    "6 h": 21_600_000,
    "24 h": 86_400_000,
    "7 d": 604_800_000,
    "all": None,
}
"""How far back the charts go (ms); None is as far as the ledger does."""

POINTS: Final = 900
"""Points of a chart; batches of a longer time are drawn together."""

BATCHES: Final = 20
ACTIONS: Final = 5
WORST: Final = 8
"""Rows of partitions below the heat map."""

MOST_CELLS: Final = 2_000
"""Partitions in the heat map."""

HEATS: Final = 6

_NO_GATE: Final = "The ledger has no gate {!r}; the overview lists those it has."


def gate_page(site: Site, name: str, query: Query) -> Page:
    """Everything about one gate."""
    refuse_a_long_name(name)
    span = query.get("span", "15 min")
    span = span if span in SPANS else "15 min"

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        gate = ledger.gates.get(name)
        if gate is None:
            return View({"state": site.render("no_gate.html", name=name)})
        history = GateHistory.read(ledger, gate)
        snapshot = Observer(ledger, fleet.lags).snapshots([history], wait_s=0)[0]
        control = ledger.controls.of(name)
        values: dict[str, Any] = {"gate": snapshot, "control": control, "now_ms": now_ms}
        values["drain"] = drain_state(ledger, name) if control.draining else None
        values["lag_s"] = snapshot.lag_seconds
        newest = snapshot.newest
        return View(
            {
                "state": site.render(
                    "gate_state.html",
                    needs=_other_needs(snapshot),
                    headline_has_control=snapshot.state in BY_OPERATORS,
                    impossible=impossible_actions(control),
                    **values,
                ),
                "facts": site.render("gate_facts.html", **values),
                "newest": site.render("newest.html", newest=newest.planned_ms if newest else 0),
                "partitions": site.render(
                    "partitions.html",
                    cells=_cells(snapshot.partitions),
                    worst=by_lag(snapshot.partitions)[:WORST],
                    gate=name,
                    number=len(snapshot.partitions),
                ),
                "batches": site.render(
                    "gate_batches.html",
                    heading="The last batches",
                    rows=list(zip(history.batches, snapshot.batches, strict=True))[:BATCHES],
                    interval_ms=gate.interval_ms,
                    more=f"/batches?{urlencode({'gate': name})}"
                    if len(history.batches) > BATCHES
                    else None,
                    more_words="All batches",
                ),
                "law": site.render("gate_law.html", other=_other(snapshot), **values),
                "history": site.render(
                    "controls.html", actions=ledger.controls.history(name, ACTIONS), gate=name
                ),
            }
        )

    def refuse_none(ledger: Ledger) -> dict[str, Any]:
        if ledger.gates.get(name) is None:
            raise NotFoundError(_NO_GATE.format(name))
        return {}

    return Page(
        key=f"/gate/{name}?span={span}",
        title=name,
        template="gate.html",
        look=look,
        revision=lambda fleet: (fleet.revisions.get(name), fleet.elsewhere[:1]),
        about={"gate": name, "span": span, "spans": tuple(SPANS)},
        beside=refuse_none,
    )


def impossible_actions(control: Control) -> list[str]:
    """The actions that would change nothing now, by the names of their forms."""
    changes = {
        "pause": not control.paused,
        "drain": not control.draining,
        "resume": control.hold is not None,
        "unlimit": control.limit is not None,
    }
    return [action for action, is_possible in changes.items() if not is_possible]


def _other_needs(snapshot: GateSnapshot) -> list[Need]:
    """What the gate needs, beyond what its headline says."""
    said = headline(snapshot)
    return [each for each in snapshot.needs if each.sentence != said]


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


def series_of(ledger: Ledger, name: str, query: Query, now_ms: int) -> dict[str, Any]:
    """The history of a gate as columns for charts, and the marks in it.

    ``after`` (ms since the epoch) leaves out what is older than that.
    """
    gate = ledger.gates.get(name)
    if gate is None:
        raise NotFoundError(_NO_GATE.format(name))
    span = SPANS.get(query.get("span", ""), SPANS["15 min"])
    oldest = ledger.fleet.oldest_ms(name) if span is None else None
    since_ms = now_ms - (span if span is not None else max(now_ms - (oldest or now_ms), 60_000))
    bucket_ms = max((now_ms - since_ms) // POINTS, 1)
    after = query.get("after", "")
    start_ms = max(since_ms, int(after)) if after.isdecimal() and len(after) < 16 else since_ms
    start_ms -= start_ms % bucket_ms
    points = ledger.fleet.series(name, start_ms, now_ms + 60_000, bucket_ms)
    return {
        "since_ms": since_ms,
        "until_ms": now_ms,
        "interval_ms": gate.interval_ms,
        "time": [each.time_ms / 1000 for each in points],
        "lag": [each.lag for each in points],
        "rate": [each.rate_per_s for each in points],
        "capacity": [each.capacity_per_s for each in points],
        "batch": [None if p.duration_ms is None else p.duration_ms / 1000 for p in points],
        "marks": _marks(
            points, ledger.controls.history(name, 100), start_ms, (now_ms - since_ms) // 60
        ),
    }


def _marks(
    points: Sequence[SeriesPoint],
    actions: Sequence[ControlAction],
    start_ms: int,
    apart_ms: int,
) -> list[dict[str, Any]]:
    """Where something changed: failures, restarts with another checkpoint, what operators did."""
    marks = _failures(points, apart_ms)
    marks += [
        {"time": here.time_ms / 1000, "kind": "restart", "text": "another checkpoint"}
        for before, here in pairwise(points)
        if before.checkpoint_id != here.checkpoint_id
    ]
    marks += [
        {"time": each.time_ms / 1000, "kind": "action", "text": f"{each.kind} by {each.by}"}
        for each in actions
        if each.time_ms >= start_ms
    ]
    return marks


def _failures(points: Sequence[SeriesPoint], apart_ms: int) -> list[dict[str, Any]]:
    """Where batches failed; those that are less apart than this have one mark."""
    groups: list[tuple[int, int, int]] = []
    for each in points:
        if not each.failed:
            continue
        if groups and each.time_ms - groups[-1][1] < apart_ms:
            first, _, number = groups.pop()
            groups.append((first, each.time_ms, number + each.failed))
        else:
            groups.append((each.time_ms, each.time_ms, each.failed))
    return [
        {"time": first / 1000, "kind": "failed", "text": f"{plural(number, 'batch')} failed"}
        for first, _, number in groups
    ]
