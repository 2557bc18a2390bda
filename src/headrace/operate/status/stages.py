"""Snapshots of the stages of running flows at one moment."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.flow import StageState, bottlenecks, ledger_states
from headrace.gate import Ledger
from headrace.operate.status.states import Need, Urgency, Where

BOTTLENECK: Final = "bottleneck"
"""State of a stage that throttles other stages and is not throttled itself."""

WINDOW_MS: Final = 60_000
"""Busy, throttled and idle time of a stage are measured over this time up to now (ms)."""

MOST_BATCHES: Final = 200
"""A stage's busy time is computed from at most this many batches. If the batches are short, they
may cover less time than `WINDOW_MS`."""


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """State of a flow's stage at one moment. ``headrace status --json`` prints it after the gates.

    Attributes:
        flow: Name of the flow.
        stage: Name of the stage.
        state: ``free``; ``throttled``; or ``bottleneck`` if the stage throttles other stages and
            is not throttled itself.
        throttled_by: The downstream stage that throttles this stage. None while the stage is free,
            or if the rate that its gate has learnt is below the throttle's rate.
        throttle_level: Level of the throttle; 0 while the stage is free.
        rate_per_s: The rate that the stage's gate has learnt (records/s); None if there is none.
        rate_limit_per_s: Largest rate under the throttle (records/s); None while the stage is
            free.
        queue_bytes: Bytes that wait on the stage's channel; None if not known.
        missing_upstream: An upstream stage that does not run; None if all run.
        upstream: The stages directly before this stage.
        throttled_since_ms: Time at which ``throttled_by`` began to throttle the stage (ms since the
            epoch); None while the stage is free.
        busy: Fraction of the last minute in which a batch ran. If the stage's first batch is less
            than a minute old, the fraction is of the time since then. A running batch counts up to
            now.
    """

    flow: str
    stage: str
    state: str
    throttled_by: str | None
    throttle_level: float
    rate_per_s: float | None
    rate_limit_per_s: float | None
    queue_bytes: int | None
    missing_upstream: str | None
    upstream: tuple[str, ...]
    throttled_since_ms: int | None
    busy: float

    @property
    def in_force_per_s(self) -> float | None:
        """Lower of the learnt rate and the rate limit (records/s); None if both are None."""
        rates = [rate for rate in (self.rate_per_s, self.rate_limit_per_s) if rate is not None]
        return min(rates, default=None)

    @property
    def throttled(self) -> float:
        """Fraction of the time in which no batch ran; 0 if no other stage throttles this stage."""
        return 0.0 if self.throttled_by is None else 1 - self.busy

    @property
    def idle(self) -> float:
        """Fraction of the time in which the stage ran no batch and was not throttled."""
        return 1 - self.busy - self.throttled


def stages_of(ledger: Ledger, now_ms: int) -> list[StageSnapshot]:
    """Return the running stages that publish their state in a ledger, sorted by flow and name."""
    flows = ledger.signals.flows()
    rates = {gate.name: gate.rate_per_s for gate in ledger.gates.all()} if flows else {}
    return [stage for flow in flows for stage in _stages(ledger, flow, rates, now_ms)]


def _stages(
    ledger: Ledger, flow: str, rates: Mapping[str, float | None], now_ms: int
) -> list[StageSnapshot]:
    states = {
        name: _as_felt(state, rates.get(f"{flow}.{name}"))
        for name, state in ledger_states(ledger, flow).items()
    }
    blamed = bottlenecks(states.values())
    return [
        StageSnapshot(
            flow=flow,
            stage=name,
            state=BOTTLENECK if name in blamed else "throttled" if state.throttled_by else "free",
            throttled_by=state.throttled_by,
            throttle_level=state.throttle_level,
            rate_per_s=rates.get(f"{flow}.{name}"),
            rate_limit_per_s=state.rate_limit_per_s,
            queue_bytes=state.queue_bytes,
            missing_upstream=state.missing_upstream,
            upstream=state.upstream,
            throttled_since_ms=state.throttled_since_ms,
            busy=_busy(ledger, f"{flow}.{name}", now_ms),
        )
        for name, state in sorted(states.items())
    ]


def _as_felt(state: StageState, rate_per_s: float | None) -> StageState:
    """Return a stage's state, without its throttle if the throttle has no effect.

    The throttle has no effect if the gate's learnt rate is below the throttle's rate.
    """
    limit = state.rate_limit_per_s
    if limit is None or rate_per_s is None or limit <= rate_per_s:
        return state
    return replace(
        state,
        throttled_by=None,
        throttle_level=0,
        rate_limit_per_s=None,
        throttled_since_ms=None,
    )


def _busy(ledger: Ledger, gate: str, now_ms: int) -> float:
    spans = ledger.batches.spans(gate, MOST_BATCHES)
    oldest_ms = spans[-1][0] if spans else now_ms
    return busy_share(spans, max(oldest_ms, now_ms - WINDOW_MS), now_ms)


def busy_share(spans: Sequence[tuple[int, int | None]], since_ms: int, now_ms: int) -> float:
    """Return the fraction of the time from ``since_ms`` to ``now_ms`` in which a batch ran.

    A span is the start and end of a batch (ms since the epoch). A running batch has no end (None),
    and counts up to now.
    """
    ran_ms, until_ms = 0, since_ms
    for created_ms, end_ms in sorted(spans, key=lambda span: span[0]):
        began_ms = max(created_ms, until_ms)
        ended_ms = min(now_ms if end_ms is None else end_ms, now_ms)
        if ended_ms > began_ms:
            ran_ms += ended_ms - began_ms
            until_ms = ended_ms
    return min(ran_ms / max(now_ms - since_ms, 1), 1.0)


def flow_needs(stages: Sequence[StageSnapshot]) -> Iterator[Need]:
    """Yield the needs (problems) of flows: bottlenecks, and stages that do not run."""
    for stage in stages:
        about = f"{stage.flow}.{stage.stage}"
        if stage.state == BOTTLENECK:
            sentence = "This stage throttles the others: it is the flow's bottleneck."
            command = f"headrace why {shlex.quote(about)}"
            yield Need("bottleneck", Urgency.WATCH, about, sentence, Where.FLOWS, command)
        if stage.missing_upstream is not None:
            sentence = f"Nothing comes from stage {stage.missing_upstream}, which does not run."
            command = f"headrace flow run MODULE:{stage.flow} --stage {stage.missing_upstream}"
            yield Need("missing stage", Urgency.SOON, about, sentence, Where.FLOWS, command)
