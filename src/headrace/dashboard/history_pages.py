"""The proof that nothing is left out, and what operators have done."""

import heapq
import threading
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from headrace.control import OperatorAction
from headrace.core.clock import wall_clock_ms
from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import NotFoundError, Page, Query, Site, whole_number
from headrace.errors import OptionError
from headrace.ledger import Ledger, RepairRecord, Verdict, verify
from headrace.status.finding_sentences import (
    CANNOT,
    ELSEWHERE,
    PROVES,
    PRUNED,
    finding_sentences,
    gone_offsets,
)

ACTIONS: Final = 100
SPANS: Final = 500
"""Lines for spans that are shown."""

_HEADLINES: Final = {
    Verdict.PROVEN: "Proven: every offset is processed or explained.",
    Verdict.OPEN: "There is no gap and no overlap, but not all is processed yet.",
    Verdict.SKIPPED: "There is no gap and no overlap within a run, but records between two are"
    " skipped, and nobody has accepted that (headrace accept).",
    Verdict.BROKEN: "Broken: there are gaps, overlaps, or rows that do not agree.",
    Verdict.EMPTY: "There is nothing to prove yet: the gate has begun no batch.",
}

_one_at_a_time = threading.Lock()


def verify_page(site: Site, _name: str, query: Query) -> Page:
    """The gates that can be verified; with ``gate``, what a verification of it finds now."""
    gate = query.get("gate") or None
    skip = whole_number(query.get("skip", "")) or 0

    def look(_ledger: Ledger, fleet: Fleet, _now_ms: int) -> View:
        gates = sorted(fleet.snapshots)
        return View({"gates": site.render("verify_gates.html", gates=gates, gate=gate)})

    def beside(ledger: Ledger) -> dict[str, Any]:
        return {"found": None if gate is None else _verified(ledger, gate, skip)}

    return Page(
        key=f"/verify?{gate}&{skip}",
        title="Verify" if gate is None else f"Verify {gate}",
        template="verify.html",
        look=look,
        revision=lambda fleet: tuple(fleet.snapshots),
        about={"gate": gate, "words": f"{PROVES} {CANNOT} {ELSEWHERE}"},
        beside=beside,
    )


def _verified(ledger: Ledger, gate: str, skip: int) -> dict[str, Any]:
    if ledger.gates.get(gate) is None and gate not in ledger.history.undeclared_gates():
        raise NotFoundError(f"The ledger has no gate {gate!r}, so nothing is proven.")
    if not _one_at_a_time.acquire(timeout=10):
        raise OptionError("Another verification is running; load the page again when it is done.")
    try:
        began_ms = wall_clock_ms()
        found = verify(ledger, gate)
    finally:
        _one_at_a_time.release()
    gone, accepted = gone_offsets(found.findings)
    return {
        "verdict": found.verdict,
        "headline": _HEADLINES[found.verdict],
        "gone": gone,
        "accepted": accepted,
        "spans": found.spans[skip : skip + SPANS],
        "more": max(len(found.spans) - skip - SPANS, 0),
        "next": skip + SPANS,
        "pruned": PRUNED if any(span.pruned for span in found.spans) else None,
        "sentences": list(finding_sentences(found.findings)),
        "contradictions": found.contradictions,
        "offsets": sum(span.offsets.count for span in found.spans),
        "took_ms": wall_clock_ms() - began_ms,
        "at_ms": wall_clock_ms(),
    }


_Action = OperatorAction | RepairRecord


def actions_page(site: Site, _name: str, query: Query) -> Page:
    """What operators have done, the newest first, to all gates or to ``gate``.

    ``operator_limits`` and ``repairs`` are the numbers of the last actions of the page before.
    """
    gate = query.get("gate") or None
    operator_limits, repairs = (
        whole_number(query.get(name, "")) for name in ("operator_limits", "repairs")
    )

    def look(ledger: Ledger, _fleet: Fleet, _now_ms: int) -> View:
        # Each is in the order of its numbers, and stays so: the next page goes on behind both.
        on_gates: Iterable[_Action] = ledger.operator_limits.history(
            gate, ACTIONS + 1, before=operator_limits
        )
        on_failures: Iterable[_Action] = ledger.repairs.newest(
            ACTIONS + 1, gate_name=gate, before=repairs
        )
        both = heapq.merge(on_gates, on_failures, key=lambda action: -action.time_ms)
        actions = list(islice(both, ACTIONS + 1))
        shown, more = actions[:ACTIONS], None
        if len(actions) > ACTIONS:
            last = {type(each): each.number for each in shown}
            places = {
                "gate": gate,
                "operator_limits": last.get(OperatorAction, operator_limits),
                "repairs": last.get(RepairRecord, repairs),
            }
            more = f"/actions?{urlencode({n: v for n, v in places.items() if v is not None})}"
        rows = [(each, isinstance(each, OperatorAction)) for each in shown]
        return View({"actions": site.render("actions.html", rows=rows, more=more, gate=gate)})

    return Page(
        key=f"/actions?{gate}&{operator_limits}&{repairs}",
        title="Actions" if gate is None else f"Actions on {gate}",
        template="actions.html",
        look=look,
        revision=lambda fleet: (fleet.revisions, fleet.repaired),
        about={"gate": gate, "is_first": operator_limits is repairs is None},
    )
