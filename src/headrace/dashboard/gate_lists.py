"""The lists of one gate that its page only begins: its batches, and its partitions."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import urlencode

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
from headrace.ledger import Kind, Ledger
from headrace.status.gate_history import GateHistory
from headrace.status.snapshot import PartitionSnapshot, take_snapshot

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

    def refuse_none(ledger: Ledger) -> dict[str, Any]:
        refuse_no_gate(ledger, gate)
        return {}

    return Page(
        key=key,
        title=f"{title} {gate}",
        template="gate_list.html",
        look=look,
        revision=lambda fleet: fleet.revisions.get(gate),
        about={"gate": gate},
        beside=refuse_none,
    )
