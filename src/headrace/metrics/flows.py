"""Gauges of the stages of flows that run: their queue, and whether they work, wait or are held."""

from collections.abc import Mapping, Sequence

from headrace.ledger import Ledger
from headrace.ledger.metric_rows import GateNow
from headrace.metrics.text import Family, gauge, labels_text
from headrace.status.stages import BOTTLENECK, StageSnapshot, stages_of


def flow_families(ledger: Ledger, gates: Sequence[GateNow], now_ms: int) -> list[Family]:
    """Each stage that runs and publishes its state in this ledger."""
    ratio = gauge("stage_time_ratio", "Parts of the stage's time, by what it did.")
    level = gauge("stage_throttle_level", "How hard a later stage throttles it; 0: not at all.")
    queue = gauge("stage_queue_bytes", "What waits on its input channel.")
    bottleneck = gauge("stage_bottleneck", "1 for a stage that throttles others, and nobody it.")
    by_name = {gate.name: gate for gate in gates}
    for each in stages_of(ledger):
        own = labels_text(flow=each.flow, stage=each.stage)
        level.add(own, each.throttle_level)
        bottleneck.add(own, each.state == BOTTLENECK)
        if each.queue_bytes is not None:
            queue.add(own, each.queue_bytes)
        gate = by_name.get(f"{each.flow}.{each.stage}")
        for state, part in _parts(each, gate, now_ms).items():
            ratio.add(f'{own},state="{state}"', part)
    return [ratio, level, queue, bottleneck]


def _parts(stage: StageSnapshot, gate: GateNow | None, now_ms: int) -> Mapping[str, float]:
    """What the stage has done since its newest batch was planned, or in an interval if longer.

    It is busy while a batch runs; the rest of its time it is throttled, or else has nothing to do.
    """
    busy = 0.0
    if gate is not None and gate.created_ms is not None:
        passed_ms = max(now_ms - gate.created_ms, gate.interval_ms, 1)
        ran_ms = (now_ms if gate.ended_ms is None else gate.ended_ms) - gate.created_ms
        busy = min(max(ran_ms / passed_ms, 0.0), 1.0)
    throttled = stage.throttled_by is not None
    return {
        "busy": busy,
        "throttled": 1 - busy if throttled else 0.0,
        "idle": 0.0 if throttled else 1 - busy,
    }
