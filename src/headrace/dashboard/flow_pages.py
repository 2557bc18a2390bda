"""Flows with their stages and the bottleneck; receivers with what they take in."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import Page, Query, Site
from headrace.ledger import BatchRecord, Kind, Ledger
from headrace.operations.snapshot import ReceiverSnapshot, ReceiverState
from headrace.operations.stages import BOTTLENECK, StageSnapshot

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
        depth: How many stages are known to be before it in its flow.
    """

    snapshot: StageSnapshot
    busy: float
    throttled: float
    idle: float
    since_ms: int | None
    lag: int | None
    depth: int


def flows_page(site: Site, _name: str, _query: Query) -> Page:
    """The flows whose stages publish how they are doing in this ledger."""

    def look(ledger: Ledger, fleet: Fleet, now_ms: int) -> View:
        flows: dict[str, list[StageView]] = defaultdict(list)
        for stage in fleet.stages:
            flows[stage.flow].append(_stage_view(ledger, fleet, stage, now_ms))
        for stages in flows.values():
            stages.sort(key=lambda each: (each.depth, each.snapshot.stage))
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
        depth=_depth(stage, fleet.stages),
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


def _depth(stage: StageSnapshot, stages: Sequence[StageSnapshot]) -> int:
    """How many stages are known to come before it, by who throttles whom and who is missing."""
    upstream = {
        each.throttled_by: each
        for each in stages
        if each.flow == stage.flow and each.throttled_by is not None
    }
    depth, name = 0, stage.stage
    while name in upstream and depth < len(stages):
        depth, name = depth + 1, upstream[name].stage
    return depth


def receivers_page(site: Site, _name: str, _query: Query) -> Page:
    """What receivers take in, by journal and lane."""

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
