"""States of the stages of flows at one moment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.flow.signals.codec import bottlenecks
from headrace.flow.signals.ledger_transport import ledger_states
from headrace.ledger import Ledger
from headrace.status.attention import Need, NeedKind, Urgency, Where

BOTTLENECK: Final = "bottleneck"
"""The state of a stage that throttles others, and nobody it."""


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment, in ``headrace status --json`` one object for each, after the gates.

    Attributes:
        flow: The flow's name.
        stage: The stage's.
        state: ``free``, ``throttled``, or ``bottleneck``: it throttles others, and nobody it.
        throttled_by: The stage directly after it that throttles it; None while it is free.
        throttle_level: How hard; 0 while it is free.
        rate_per_s: The rate that its gate has learnt (records/s); None while there is none.
        rate_limit_per_s: Largest rate that it may emit under pressure; None while it is free.
        queue_bytes: Bytes that wait on its channel; None where they are not known.
        missing_upstream: A stage directly before it that does not run; None while all of them do.
        upstream: The stages directly before it.
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


def stages_of(ledger: Ledger) -> list[StageSnapshot]:
    """The stages that run and publish their state in this ledger, by flow and name."""
    flows = ledger.signals.flows()
    rates = {gate.name: gate.rate_per_s for gate in ledger.gates.all()} if flows else {}
    return [each for flow in flows for each in _stages(ledger, flow, rates)]


def _stages(ledger: Ledger, flow: str, rates: Mapping[str, float | None]) -> list[StageSnapshot]:
    states = ledger_states(ledger, flow)
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
        )
        for name, state in sorted(states.items())
    ]


def flow_needs(stages: Sequence[StageSnapshot]) -> Iterator[Need]:
    """Yield the needs of flows: their bottlenecks, and stages that do not run."""
    for each in stages:
        about = f"{each.flow}.{each.stage}"
        if each.state == BOTTLENECK:
            sentence = "This stage throttles the others: it is the flow's bottleneck."
            command = f"headrace why {about}"
            kind = NeedKind.BOTTLENECK
            yield Need(kind, Urgency.WATCH, about, sentence, Where.FLOWS, command)
        if each.missing_upstream is not None:
            sentence = f"Nothing comes from stage {each.missing_upstream}, which does not run."
            missing = f"{each.flow}.{each.missing_upstream}"
            command = f"headrace status --gate {missing}"
            kind = NeedKind.MISSING_STAGE
            yield Need(kind, Urgency.SOON, about, sentence, Where.FLOWS, command)
