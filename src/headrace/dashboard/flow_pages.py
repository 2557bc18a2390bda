"""Flows with their stages and the bottleneck; receivers with what they take in."""

from collections import defaultdict
from collections.abc import Sequence

from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import Page, Query, Site
from headrace.ledger import Kind, Ledger
from headrace.status.snapshot import ReceiverSnapshot
from headrace.status.stages import BOTTLENECK, StageSnapshot
from headrace.status.states import ReceiverState


def flows_page(site: Site, _name: str, _query: Query) -> Page:
    """The flows whose stages publish how they are doing in this ledger."""

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        stages: dict[str, list[StageSnapshot]] = defaultdict(list)
        for stage in fleet.stages:
            stages[stage.flow].append(stage)
        flows = {
            name: [
                [_stage_view(ledger, fleet, each) for each in layer] for layer in layers_of(of_flow)
            ]
            for name, of_flow in stages.items()
        }
        return View({"flows": site.render("flows.html", flows=flows, now_ms=now_ms)})

    return Page(
        key="/flows",
        title="Flows",
        template="flows.html",
        look=look,
        revision=lambda fleet: (fleet.elsewhere, fleet.revisions),
        about={},
    )


def _stage_view(ledger: Ledger, fleet: Fleet, stage: StageSnapshot) -> dict[str, object]:
    """Return a stage, its lag, and since when it is a bottleneck, if it is one."""
    gate = f"{stage.flow}.{stage.stage}"
    snapshot = fleet.snapshots.get(gate)
    return {
        "snapshot": stage,
        "since_ms": _over_since_ms(ledger, gate) if stage.state == BOTTLENECK else None,
        "lag": snapshot.lag if snapshot else None,
    }


def _over_since_ms(ledger: Ledger, gate_name: str) -> int | None:
    """Since when every batch of a gate has taken about its interval or longer."""
    gate = ledger.gates.get(gate_name)
    since_ms = None
    for batch in ledger.batches.newest(gate_name, 200, kind=Kind.LIVE, children=False):
        ended_ms = batch.end_time_ms
        if gate is None or (
            ended_ms is not None and ended_ms - batch.created_time_ms < 0.9 * gate.interval_ms
        ):
            break
        since_ms = batch.created_time_ms
    return since_ms


def layers_of(stages: Sequence[StageSnapshot]) -> list[list[StageSnapshot]]:
    """The stages of one flow, each in a layer below all that are before it."""
    depth = {each.stage: 0 for each in stages}
    for _ in stages:  # as often as the longest chain has stages, and no longer in a circle
        for each in stages:
            before = [depth[name] + 1 for name in each.upstream if name in depth]
            depth[each.stage] = min(max([0, *before]), len(stages))
    return [
        [each for each in stages if depth[each.stage] == number]
        for number in sorted(set(depth.values()))
    ]


def receivers_page(site: Site, _name: str, _query: Query) -> Page:
    """Return the page of receivers, by journal and lane."""

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        journals: dict[tuple[str, str], list[ReceiverSnapshot]] = defaultdict(list)
        for each in ledger.fleet.receivers():
            journals[each.journal, each.gate].append(ReceiverSnapshot.of(each, now_ms))
        values = {
            "journals": journals,
            "silent": ReceiverState.SILENT,
            "now_ms": now_ms,
        }
        return View({"receivers": site.render("receivers.html", **values)})

    return Page(
        key="/receivers",
        title="Receivers",
        template="receivers.html",
        look=look,
        revision=lambda fleet: fleet.elsewhere[:1],
        about={},
    )
