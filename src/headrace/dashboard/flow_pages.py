"""Flows with their stages and the bottleneck; receivers with what they take in."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import Page, Query, Site
from headrace.ledger import BatchRecord, Kind, Ledger
from headrace.status.snapshot import ReceiverSnapshot
from headrace.status.stages import BOTTLENECK, StageSnapshot
from headrace.status.states import ReceiverState

WINDOW_MS: Final = 60_000
"""Over how long the time of a stage is divided into busy, throttled and idle."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage as a page shows it.

    Attributes:
        snapshot: How it fares.
        busy: The part of the last minute in which a batch of it ran.
        throttled: The part in which none ran, while another stage throttles it now.
        idle: The rest.
        since_ms: For a bottleneck: since when its batches have taken longer than their interval
            without a break; None where they do not, or for another stage.
        lag: Records that waited when its last batch was planned.
    """

    snapshot: StageSnapshot
    busy: float
    throttled: float
    idle: float
    since_ms: int | None
    lag: int | None


def flows_page(site: Site, _name: str, _query: Query) -> Page:
    """The flows whose stages publish how they are doing in this ledger."""

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        stages: dict[str, list[StageSnapshot]] = defaultdict(list)
        for stage in fleet.stages:
            stages[stage.flow].append(stage)
        flows = {
            name: [
                [_stage_view(ledger, fleet, each, now_ms) for each in layer]
                for layer in layers_of(of_flow)
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


def _stage_view(ledger: Ledger, fleet: Fleet, stage: StageSnapshot, now_ms: int) -> StageView:
    gate = f"{stage.flow}.{stage.stage}"
    since_ms = now_ms - WINDOW_MS
    batches = ledger.batches.newest(gate, 100, since_ms=since_ms, kind=Kind.LIVE, children=False)
    busy = busy_share(batches, since_ms, now_ms)
    throttled = 1 - busy if stage.throttled_by is not None else 0.0
    snapshot = fleet.snapshots.get(gate)
    return StageView(
        snapshot=stage,
        busy=busy,
        throttled=throttled,
        idle=1 - busy - throttled,
        since_ms=_over_since_ms(ledger, gate) if stage.state == BOTTLENECK else None,
        lag=snapshot.lag if snapshot else None,
    )


def busy_share(batches: Sequence[BatchRecord], since_ms: int, now_ms: int) -> float:
    """The part of a time in which one of these batches ran."""
    ran_ms, until_ms = 0, since_ms
    for batch in sorted(batches, key=lambda each: each.created_time_ms):
        began_ms = max(batch.created_time_ms, until_ms)
        ended_ms = min(now_ms if batch.end_time_ms is None else batch.end_time_ms, now_ms)
        if ended_ms > began_ms:
            ran_ms += ended_ms - began_ms
            until_ms = ended_ms
    return min(ran_ms / max(now_ms - since_ms, 1), 1.0)


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
