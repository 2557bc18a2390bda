"""A flow of five stages whose fourth becomes four times slower: what pressure does, stage by stage.

Its signals go over ZooKeeper. The law is the one that is simulated; its thresholds are scaled down
to what a small machine does.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from tests.services.zookeeper import ZookeeperServer

from bench.figures import AtLeast, AtMost, Figure
from bench.flow_run import (
    CHANNELS,
    INTERVAL_MS,
    LOAD_PER_S,
    NAMES,
    SINK,
    SLOW,
    SLOW_PER_S,
    STEADY_S,
    SlowedFlow,
    Trace,
    rate_per_s,
)
from bench.pairs import Spread
from bench.scale import Scale
from bench.simulation import turns
from bench.stage import Stage
from headrace.errors import HeadraceError
from headrace.flow import Flow, ZookeeperSettings
from headrace.gate.control.pressure import HopSettings
from headrace.operate.local import ensure_java

VALUE_BYTES: Final = 100
PARTITIONS: Final = 2
RUNS_S: Final = 400
"""For how long there are records, whatever is waited for."""

BEFORE_SLOW: Final = NAMES[NAMES.index(SLOW) - 1]

SETTINGS: Final = HopSettings(
    overload_bytes=5 * INTERVAL_MS // 1000 * LOAD_PER_S * VALUE_BYTES,
    light_load_bytes=LOAD_PER_S * VALUE_BYTES // 10,
    overload_sensitivity_ms=2 * INTERVAL_MS,
    light_load_sensitivity_ms=2 * INTERVAL_MS,
    lease_ms=10 * INTERVAL_MS,
)
"""As docs/flows.md has them chosen: what comes in five intervals, and two intervals."""


def measure(stage: Stage, _scale: Scale) -> Iterator[Figure]:
    """Run it, and yield its figures."""
    yield from figures(_run(stage))


def figures(trace: Trace) -> Iterator[Figure]:
    """Yield the targets of a run, and its results.

    Raises:
        HeadraceError: The machine had too much else to do for it to mean anything.
    """
    if trace.fixed_ms > INTERVAL_MS / 2:
        raise HeadraceError(
            f"A batch of the benchmark's flow takes {trace.fixed_ms:.0f} ms besides its work, of"
            f" {INTERVAL_MS} ms; try it on a machine with less to do."
        )
    details = {"changes": _changes(trace), "fixed_ms": trace.fixed_ms}
    first_s = first_throttled_s(trace)
    sooner = [name for name in first_s if first_s[name] < first_s.get(BEFORE_SLOW, 0.0)]

    def figure(
        name: str, unit: str, value: float, target: AtLeast | AtMost | None = None, **more: object
    ) -> Figure:
        return Figure(name, unit, Spread.of([value]), target=target, details=details | more)

    for name in reversed(NAMES):
        if name in first_s:
            yield figure(f"from the slow-down until {name!r} is throttled", "s", first_s[name])
    yield figure(f"stages throttled before {BEFORE_SLOW!r} was", "", len(sooner), AtMost(0))
    largest = {name: queue / trace.overload_bytes for name, queue in largest_bytes(trace).items()}
    yield figure(
        "largest queue over the threshold", "", max(largest.values()), AtMost(2), by_stage=largest
    )
    could = SLOW_PER_S * (1 - trace.fixed_ms / INTERVAL_MS)
    since_ms = trace.slow_ms + 2 * INTERVAL_MS
    did = rate_per_s(trace.batches[SINK], since_ms, trace.fast_ms)
    yield figure("sink while slow, over the capacity", "", did / could, AtLeast(0.95), per_s=did)
    below_s, batch_s = below_half_s(trace, could), longest_batch_s(trace)
    yield figure(
        "below half of the capacity, over the longest batch",
        "",
        below_s / batch_s,
        AtMost(1),
        below_half_s=below_s,
        longest_batch_s=batch_s,
    )
    back = {name: recovered(trace, name) for name in NAMES}
    yield figure(
        "least stage at the end, over the load",
        "",
        min(back.values()),
        AtLeast(0.95),
        **back,
    )
    throttled = {change.stage: change.throttled_by for change in trace.changes}
    yield figure(
        "stages throttled at the end",
        "",
        sum(by is not None for by in throttled.values()),
        AtMost(0),
    )
    most = {name: max(turned(trace, name)) for name in NAMES}
    yield figure("most turns of a stage in a phase", "", max(most.values()), AtMost(1), **most)


def first_throttled_s(trace: Trace) -> dict[str, float]:
    """By stage, how long after the slow-down it was throttled first, if it was."""
    first: dict[str, float] = {}
    for change in trace.changes:
        if change.throttled_by is not None:
            first.setdefault(change.stage, (change.time_ms - trace.slow_ms) / 1000)
    return first


def largest_bytes(trace: Trace) -> dict[str, int]:
    """By stage, the most that waited for it; not for the first, whose channel is a backlog."""
    return {
        name: max(waiting for at_ms, waiting in trace.looks[name] if at_ms >= trace.steady_ms)
        for name in NAMES[1:]
    }


def below_half_s(trace: Trace, could_per_s: float) -> float:
    """The longest time in which the slow stage was left less than half of what it could do."""
    limits = [(trace.slow_ms, math.inf)]
    for change in trace.changes:
        if change.stage == BEFORE_SLOW and trace.slow_ms <= change.time_ms < trace.fast_ms:
            per_s = change.rate_limit_per_s
            limits.append((change.time_ms, math.inf if per_s is None else per_s))
    longest_ms = below_ms = 0
    for (from_ms, per_s), (until_ms, _) in pairwise([*limits, (trace.fast_ms, math.inf)]):
        below_ms = below_ms + until_ms - from_ms if per_s < could_per_s / 2 else 0
        longest_ms = max(longest_ms, below_ms)
    return longest_ms / 1000


def longest_batch_s(trace: Trace) -> float:
    """The longest batch of the slow stage of which some was while it was slow."""
    times = [(batch.start_time_ms, batch.end_time_ms) for batch in trace.batches[SLOW]]
    return max(
        (end_ms - start_ms) / 1000
        for start_ms, end_ms in times
        if start_ms is not None and end_ms is not None
        if start_ms < trace.fast_ms and end_ms > trace.slow_ms
    )


def recovered(trace: Trace, name: str) -> float:
    """A stage's rate at the end, over the load, which a stage does that is not throttled.

    Not over the stage's own rate at the beginning: the later ones begin with what came meanwhile.
    """
    since_ms = trace.end_ms - STEADY_S * 1000
    return rate_per_s(trace.batches[name], since_ms, trace.end_ms) / LOAD_PER_S


def turned(trace: Trace, name: str) -> tuple[int, int]:
    """Count the turns of a rate limit while the slow stage was slow, and after."""
    edges = [trace.slow_ms / 1000, trace.fast_ms / 1000, trace.end_ms / 1000]
    slow, fast = (turns(trace.changes, name, *edges[n : n + 2]) for n in (0, 1))
    return slow, fast


def _changes(trace: Trace) -> list[dict[str, Any]]:
    return [
        {
            "after_s": (change.time_ms - trace.slow_ms) / 1000,
            "stage": change.stage,
            "throttled_by": change.throttled_by,
            "level": change.level,
            "rate_limit_per_s": change.rate_limit_per_s,
        }
        for change in trace.changes
    ]


def _run(stage: Stage) -> Trace:
    topics = stage.topics
    raw = topics.random(PARTITIONS, RUNS_S * LOAD_PER_S, VALUE_BYTES)
    names = [raw, *(topics.empty(PARTITIONS) for _ in CHANNELS[1:])]
    with ZookeeperServer(ensure_java()) as zookeeper:
        flow = Flow(
            "topics",
            ledger=stage.fresh_ledger(),
            checkpoints=stage.fresh_folder("flow"),
            signals=ZookeeperSettings(zookeeper.hosts, unreachable="refuse"),
            pressure=SETTINGS,
        )
        cap = {"maxRatePerPartition": LOAD_PER_S // PARTITIONS}
        return SlowedFlow(flow, topics.servers, names, cap).run(stage.spark, SETTINGS)
