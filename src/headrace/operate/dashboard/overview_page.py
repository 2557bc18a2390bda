"""Pages about all gates: overview, verification, actions, flows, receivers."""

import shlex
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any, Final, Self

from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import Ledger, Verdict
from headrace.operate.dashboard.fleet import Fleet
from headrace.operate.dashboard.live import View
from headrace.operate.dashboard.pages import (
    NotFoundError,
    Page,
    Query,
    Site,
    address,
    region_id,
    whole_number,
)
from headrace.operate.status.findings import PRUNED, finding_sentences, gone_offsets
from headrace.operate.status.needs import urgency_of
from headrace.operate.status.parts import ReceiverSnapshot
from headrace.operate.status.snapshot import GATE_COLUMNS, GateSnapshot
from headrace.operate.status.stages import BOTTLENECK, StageSnapshot, flow_needs
from headrace.operate.status.states import NeedGroup, ReceiverState, Where, grouped

MOST_NEEDS: Final = 20
"""The page shows at most this many needs of one kind; the list of gates has all of them."""

MOST_NAMES: Final = 3
"""The sentence about the needs of one kind names at most this many gates."""

_ORDERS: Final[Mapping[str, Callable[[GateSnapshot], Any]]] = {
    "urgency": urgency_of,
    **{column.sort: column.order for column in GATE_COLUMNS if column.order is not None},
}
"""Sort keys of the list of gates, by name."""


_COLUMNS: Final = [
    (column, beside if beside and beside.is_beside else None)
    for column, beside in zip_longest(GATE_COLUMNS, GATE_COLUMNS[1:])
    if not column.is_beside
]
"""Columns of the page. Each is paired with the column that shares its cells, or with None."""

COLUMNS_CSS: Final = (
    "@media (min-width: 761px) { table.gates tr { grid-template-columns: "
    + " ".join(f"minmax(0, {column.width}fr)" for column, _ in _COLUMNS)
    + "; } }\n"
)
"""Style sheet with the widths of the columns."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Filter and order of the list of gates. Each field is a field of the page's address.

    Attributes:
        sort: Name of the order.
        q: Text that a gate's name must contain, ignoring case; empty for all gates.
        state: State of the gates; empty for every state.
        need: Kind of need that the gates have; empty for all gates.
    """

    sort: str = "urgency"
    q: str = ""
    state: str = ""
    need: str = ""

    @classmethod
    def of(cls, query: Query) -> Self:
        """Read a choice from an address; an unknown order becomes ``urgency``."""
        texts = {item.name: query.get(item.name, "")[:100] for item in fields(cls)}
        return cls(**texts | {"sort": texts["sort"] if texts["sort"] in _ORDERS else "urgency"})

    @property
    def is_all(self) -> bool:
        """Whether every gate is shown."""
        return not (self.q or self.state or self.need)

    def includes(self, gate: GateSnapshot) -> bool:
        """Whether a gate is shown."""
        return (
            self.q.lower() in gate.gate.lower()
            and self.state in ("", str(gate.state))
            and (not self.need or any(item.kind == self.need for item in gate.needs))
        )

    def address(self, **others: str) -> str:
        """Return the page's address for this choice, with the fields in ``others`` replaced.

        >>> Choice(sort="lag", state="stalled").address(state="falling behind")
        '/?sort=lag&state=falling+behind'
        """
        choice = replace(self, **others)
        default = Choice()
        names = [item.name for item in fields(Choice)]
        values = {name: getattr(choice, name) for name in names}
        changed = {n: value for n, value in values.items() if value != getattr(default, n)}
        return address("/", **changed)


def overview_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of all gates, or of the gates that the address chooses."""
    choice = Choice.of(query)
    rows = _Rows(site)

    def look(_ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        gates = list(fleet.snapshots.values())
        shown = sorted(
            sorted(filter(choice.includes, gates), key=lambda gate: gate.gate),
            key=_ORDERS[choice.sort],
        )
        needs = [need for gate in gates for need in gate.needs] + list(flow_needs(fleet.stages))
        regions = {
            "summary": site.render(
                "summary.html",
                states=Counter(str(gate.state) for gate in gates).most_common(),
                gates=gates,
                choice=choice,
                now_ms=now_ms,
            ),
            "needs": site.render(
                "needs.html",
                groups=list(map(_group_view, grouped(needs))),
                gates=len(gates),
                site=site,
            ),
            "shown": site.render("shown.html", shown=len(shown), gates=len(gates), choice=choice),
        }
        ids = []
        for gate in shown:
            ids.append(region_id("gate", gate.gate))
            regions[ids[-1]] = rows.html(gate, fleet)
        return View(regions, {"gates": ids})

    def revision(fleet: Fleet) -> object:
        return fleet.revisions, fleet.elsewhere, site.link.is_made

    about = {"choice": choice, "orders": tuple(_ORDERS), "columns": _COLUMNS}
    return Page(choice.address(), "Gates", look, revision, about, "overview.html")


def _group_view(group: NeedGroup) -> dict[str, object]:
    names = list(dict.fromkeys(need.about for need in group.needs))
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    in_flows = group.needs[0].where is Where.FLOWS
    return {
        "group": group,
        "needs": group.needs[:MOST_NEEDS],
        "names": ", ".join(names[:MOST_NAMES]) + rest,
        "more": "/flows" if in_flows else Choice(need=group.kind).address(),
    }


class _Rows:
    """Keeps the HTML of each gate's row, and renders a row again only if the gate has changed."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, tuple[GateSnapshot, object, str]] = {}

    def html(self, snapshot: GateSnapshot, fleet: Fleet) -> str:
        history = fleet.histories.get(snapshot.gate)
        operator_limits = None if history is None else history.operator_limits
        in_force = operator_limits and operator_limits.in_force
        made = self._made.get(snapshot.gate)
        if made is not None and made[1] == in_force and _look_alike(made[0], snapshot):
            return made[2]
        values = {
            "columns": _COLUMNS,
            "operator_limits": operator_limits,
            "lags": fleet.last_lags(snapshot.gate),
            "lag_s": snapshot.lag_seconds,
        }
        html = self._site.render("gate_row.html", gate=snapshot, **values)
        self._made[snapshot.gate] = snapshot, in_force, html
        return html


def _look_alike(one: GateSnapshot, other: GateSnapshot) -> bool:
    """Whether two snapshots are equal. Times, ages of lags, and needs are not compared."""
    if one is other:
        return True
    return _ageless(one) == _ageless(other)


def _ageless(snapshot: GateSnapshot) -> GateSnapshot:
    return replace(snapshot, time_ms=0, lag_age_ms=0, lag_seconds=None, needs=())


ACTIONS: Final = 100
SPAN_COUNTS: Final = ("processed", "pruned", "open", "dead", "lost", "missing")
"""Outcomes of the offsets of a span (range of offsets). The page shows a count for each."""

SPANS: Final = 500
"""Largest number of spans on a page."""

_HEADLINES: Final = {
    Verdict.PROVEN: "Every offset is processed or explained.",
    Verdict.OPEN: "There is no gap and no overlap, but not all is processed yet.",
    Verdict.SKIPPED: "There is no gap and no overlap within a run, but records between two are"
    " skipped, and nobody has accepted that.",
    Verdict.BROKEN: "There are gaps or overlaps, or batches that are gone.",
    Verdict.EMPTY: "There is nothing to prove yet: the gate has begun no batch.",
}

_one_at_a_time = threading.Lock()


def verify_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of gates to verify; with ``gate``, it shows this gate's verification."""
    gate = query.get("gate") or None
    skip = whole_number(query.get("skip", "")) or 0

    def look(_ledger: Ledger, fleet: Fleet, _now_ms: int) -> View:
        gates = sorted(fleet.snapshots)
        return View({"gates": site.render("verify_gates.html", gates=gates, gate=gate)})

    def beside(ledger: Ledger) -> dict[str, Any]:
        return {"found": None if gate is None else _verified(ledger, gate, skip)}

    title = "Verify" if gate is None else f"Verify {gate}"
    command = (
        f"headrace verify {shlex.quote(gate) if gate else 'GATE'} --checkpoint FOLDER --source"
    )
    about, key = {"gate": gate, "command": command}, f"/verify?{gate}&{skip}"
    return Page(
        key, title, look, lambda fleet: tuple(fleet.snapshots), about, "verify.html", beside
    )


def _verified(ledger: Ledger, gate: str, skip: int) -> dict[str, Any]:
    if ledger.gates.get(gate) is None:
        raise NotFoundError(f"The ledger has no gate {gate!r}, so nothing is proven.")
    if not _one_at_a_time.acquire(timeout=10):
        raise OptionError("Another verification is running; load the page again when it is done.")
    try:
        began_ms = wall_clock_ms()
        proof = ledger.proofs.verify(gate)
    finally:
        _one_at_a_time.release()
    gone, accepted = gone_offsets(proof.findings)
    return {
        "verdict": proof.verdict,
        "headline": _HEADLINES[proof.verdict],
        "gone": gone,
        "accepted": accepted,
        "spans": proof.spans[skip : skip + SPANS],
        "more": max(len(proof.spans) - skip - SPANS, 0),
        "next": skip + SPANS,
        "pruned": PRUNED if any(span.pruned for span in proof.spans) else None,
        "sentences": [
            (kind, sentence.replace("; --json tells them all", ""))
            for kind, sentence in finding_sentences(proof.findings)
        ],
        "names": SPAN_COUNTS,
        "totals": {
            name: number
            for name in SPAN_COUNTS
            if (number := sum(getattr(span, name) for span in proof.spans))
        },
        "partitions": len({span.offsets.topic_partition for span in proof.spans}),
        "checkpoints": len({span.checkpoint_id for span in proof.spans}),
        "took_ms": wall_clock_ms() - began_ms,
        "at_ms": wall_clock_ms(),
    }


def actions_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of operators' actions, the newest first.

    In ``query``, ``gate`` names a gate; without it, the page has the actions on all gates.
    ``before`` is the number of the last action on the preceding page.
    """
    gate = query.get("gate") or None
    before = whole_number(query.get("before", ""))

    def look(ledger: Ledger, _fleet: Fleet, _now_ms: int) -> View:
        actions = ledger.operator_limits.history(gate, ACTIONS + 1, before=before)
        shown, more = actions[:ACTIONS], None
        if len(actions) > ACTIONS:
            more = address("/actions", gate=gate, before=shown[-1].number)
        return View({"actions": site.render("actions.html", rows=shown, more=more, gate=gate)})

    title = "Actions" if gate is None else f"Actions on {gate}"
    about = {"gate": gate, "all": "/actions"}
    key = f"/actions?{gate}&{before}"
    return Page(key, title, look, lambda fleet: (fleet.revisions, fleet.acted), about)


def flows_page(site: Site, _name: str, _query: Query) -> Page:
    """Return the page of flows whose stages publish their state in this ledger."""

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        stages: dict[str, list[StageSnapshot]] = defaultdict(list)
        for stage in fleet.stages:
            stages[stage.flow].append(stage)
        flows = {
            name: [
                [_stage_view(ledger, fleet, member) for member in layer]
                for layer in layers_of(of_flow)
            ]
            for name, of_flow in stages.items()
        }
        return View({"flows": site.render("flows.html", flows=flows, now_ms=now_ms)})

    return Page("/flows", "Flows", look, lambda fleet: (fleet.elsewhere, fleet.revisions))


def _stage_view(ledger: Ledger, fleet: Fleet, stage: StageSnapshot) -> dict[str, object]:
    gate = f"{stage.flow}.{stage.stage}"
    snapshot = fleet.snapshots.get(gate)
    return {
        "snapshot": stage,
        "since_ms": _over_since_ms(ledger, gate) if stage.state == BOTTLENECK else None,
        "lag": snapshot.lag if snapshot else None,
    }


def _over_since_ms(ledger: Ledger, gate_name: str) -> int | None:
    gate = ledger.gates.get(gate_name)
    since_ms = None
    for batch in ledger.batches.newest(gate_name, 200):
        ended_ms = batch.end_time_ms
        if gate is None or (
            ended_ms is not None and ended_ms - batch.created_time_ms < 0.9 * gate.interval_ms
        ):
            break
        since_ms = batch.created_time_ms
    return since_ms


def layers_of(stages: Sequence[StageSnapshot]) -> list[list[StageSnapshot]]:
    """Arrange a flow's stages in layers, so that a stage comes after all its upstream stages."""
    depth = {stage.stage: 0 for stage in stages}
    for _ in stages:  # as often as the longest chain has stages, and no longer in a circle
        for stage in stages:
            before = [depth[name] + 1 for name in stage.upstream if name in depth]
            depth[stage.stage] = min(max([0, *before]), len(stages))
    return [
        [stage for stage in stages if depth[stage.stage] == number]
        for number in sorted(set(depth.values()))
    ]


def receivers_page(site: Site, _name: str, _query: Query) -> Page:
    """Return the page of receivers, grouped by journal and gate."""

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        journals: dict[tuple[str, str], list[ReceiverSnapshot]] = defaultdict(list)
        for record in ledger.moments.receivers():
            journals[record.journal, record.gate].append(ReceiverSnapshot.of(record, now_ms))
        values = {"journals": journals, "silent": ReceiverState.SILENT, "now_ms": now_ms}
        return View({"receivers": site.render("receivers.html", **values)})

    return Page("/receivers", "Receivers", look, lambda fleet: fleet.elsewhere[:1])
