"""The proof that nothing is left out, and what operators have done."""

import threading
from collections import Counter
from typing import Any, Final

from headrace.core.clock import wall_clock_ms
from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import NotFoundError, Page, Query, Site
from headrace.errors import OptionError
from headrace.ledger import FindingKind, Ledger, Verdict, verify
from headrace.operations.finding_sentences import (
    CANNOT,
    ELSEWHERE,
    PROVES,
    PRUNED,
    finding_sentences,
)

ACTIONS: Final = 200
SPANS: Final = 500
"""Lines for spans that are shown."""

_HEADLINES: Final = {
    Verdict.PROVEN: "Proven: every offset is processed or explained.",
    Verdict.OPEN: "There is no gap and no overlap, but not all is processed yet.",
    Verdict.BROKEN: "Broken: there are gaps, overlaps, or rows that do not agree.",
    Verdict.EMPTY: "There is nothing to prove yet: the gate has begun no batch.",
}

_one_at_a_time = threading.Lock()


def verify_page(site: Site, _name: str, query: Query) -> Page:
    """The gates that can be verified; with ``gate``, what a verification of it finds now."""
    gate = query.get("gate") or None

    def look(_ledger: Ledger, fleet: Fleet, _now_ms: int) -> View:
        gates = sorted(fleet.snapshots)
        return View({"gates": site.render("verify_gates.html", gates=gates, gate=gate)})

    def beside(ledger: Ledger) -> dict[str, Any]:
        return {"found": None if gate is None else _verified(ledger, gate)}

    return Page(
        key=f"/verify?{gate}",
        title="Verify" if gate is None else f"Verify {gate}",
        template="verify.html",
        look=look,
        revision=lambda fleet: tuple(fleet.snapshots),
        about={"gate": gate, "words": f"{PROVES} {CANNOT} {ELSEWHERE}"},
        beside=beside,
    )


def _verified(ledger: Ledger, gate: str) -> dict[str, Any]:
    if ledger.gates.get(gate) is None and gate not in ledger.history.undeclared_gates():
        raise NotFoundError(f"The ledger has no gate {gate!r}, so nothing is proven.")
    if not _one_at_a_time.acquire(timeout=10):
        raise OptionError("Another verification is running; load the page again when it is done.")
    try:
        began_ms = wall_clock_ms()
        found = verify(ledger, gate)
    finally:
        _one_at_a_time.release()
    gone: Counter[FindingKind] = Counter()
    for finding in found.findings:
        gone[finding.kind] += finding.offsets.count
    counted = (FindingKind.DEAD, FindingKind.REJECTED, FindingKind.LOST)
    return {
        "verdict": found.verdict,
        "headline": _HEADLINES[found.verdict],
        "gone": [(kind, gone[kind]) for kind in counted if gone[kind]],
        "spans": found.spans[:SPANS],
        "more": max(len(found.spans) - SPANS, 0),
        "pruned": PRUNED if any(span.pruned for span in found.spans) else None,
        "sentences": list(finding_sentences(found.findings)),
        "contradictions": found.contradictions,
        "offsets": sum(span.offsets.count for span in found.spans),
        "took_ms": wall_clock_ms() - began_ms,
        "at_ms": wall_clock_ms(),
    }


def actions_page(site: Site, _name: str, _query: Query) -> Page:
    """What operators have done, the newest first."""

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        controls = [
            action
            for gate, control in fleet.controls.items()
            if control.newest is not None
            for action in ledger.controls.history(gate, ACTIONS)
        ]
        rows = [
            (each.time_ms, each.gate, str(each.kind), each.describe(now_ms), each.by, each.why)
            for each in controls
        ]
        rows += [
            (
                each.time_ms,
                each.gate,
                each.kind,
                f"{each.target}: {each.outcome or 'begun, and not ended'}",
                each.by,
                each.why,
            )
            for each in ledger.repairs.newest(ACTIONS)
        ]
        rows.sort(key=lambda row: -row[0])
        return View({"actions": site.render("actions.html", rows=rows[:ACTIONS], now_ms=now_ms)})

    return Page(
        key="/actions",
        title="Actions",
        template="actions.html",
        look=look,
        revision=lambda fleet: (fleet.revisions, fleet.repaired),
        about={},
    )
