"""States of the stages of flows at one moment."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.flow import StageState, bottlenecks, ledger_states
from headrace.gate import Ledger
from headrace.operate.status.states import Need, Urgency, Where

BOTTLENECK: Final = "bottleneck"
"""The state of a stage that throttles others, and nobody it."""

WINDOW_MS: Final = 60_000
"""Time that is divided into busy, throttled and idle (ms)."""

MOST_BATCHES: Final = 200
"""Newest batches that are looked at for that; of shorter ones the time is shorter."""


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment, in ``headrace status --json`` one object for each, after the gates.

    Attributes:
        state: ``free``, ``throttled``, or ``bottleneck``: it throttles others, and nobody it.
        throttled_by: The stage directly after it that throttles it; None while it is free, and
            while what it may emit is more than the rate that its gate has learnt: then it is that
            rate that limits it.
        throttle_level: How hard; 0 while it is free.
        rate_per_s: The rate that its gate has learnt (records/s); None while there is none.
        rate_limit_per_s: Largest rate that it may emit under pressure; None while it is free.
        queue_bytes: Bytes that wait on its channel; None where they are not known.
        missing_upstream: A stage directly before it that does not run; None while all of them do.
        upstream: The stages directly before it.
        throttled_since_ms: Since when that stage throttles it (ms since the epoch); None while it
            is free.
        busy: Part of the last minute, or of the time since its first batch, in which a batch of it
            ran; one that still runs counts up to now.
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
        """The rate in force (records/s): the lower of what it has learnt and what it may emit."""
        known = [each for each in (self.rate_per_s, self.rate_limit_per_s) if each is not None]
        return min(known, default=None)

    @property
    def throttled(self) -> float:
        """The part of that time in which no batch ran, while another stage throttles it now."""
        return 0.0 if self.throttled_by is None else 1 - self.busy

    @property
    def idle(self) -> float:
        """The rest of that time."""
        return 1 - self.busy - self.throttled


def stages_of(ledger: Ledger, now_ms: int) -> list[StageSnapshot]:
    """The stages that run and publish their state in this ledger, by flow and name."""
    flows = ledger.signals.flows()
    rates = {gate.name: gate.rate_per_s for gate in ledger.gates.all()} if flows else {}
    return [each for flow in flows for each in _stages(ledger, flow, rates, now_ms)]


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
    """The state, without a limit that is above what the stage does by itself."""
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
    """The part of a time in which a batch ran; one that has not ended runs up to now.

    Args:
        spans: When each batch began, and when it ended (ms).
        since_ms: Begin of the time.
        now_ms: End of the time.
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
    """Yield the needs of flows: their bottlenecks, and stages that do not run."""
    for each in stages:
        about = f"{each.flow}.{each.stage}"
        if each.state == BOTTLENECK:
            sentence = "This stage throttles the others: it is the flow's bottleneck."
            command = f"headrace why {shlex.quote(about)}"
            yield Need("bottleneck", Urgency.WATCH, about, sentence, Where.FLOWS, command)
        if each.missing_upstream is not None:
            sentence = f"Nothing comes from stage {each.missing_upstream}, which does not run."
            command = f"headrace flow run MODULE:{each.flow} --stage {each.missing_upstream}"
            yield Need("missing stage", Urgency.SOON, about, sentence, Where.FLOWS, command)
