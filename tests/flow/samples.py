"""Signals and states for the tests of flows."""

from headrace.flow import StageState
from headrace.gate.control.pressure import Epoch, PressureSignal

RUN = Epoch(1_700_000_000_000, "run")


def a_signal(
    level: float = 1,
    *,
    sequence: int = 0,
    sender: str = "b",
    receiver: str = "a",
    lease_ms: int = 60_000,
    flow: str = "clicks",
    epoch: Epoch = RUN,
) -> PressureSignal:
    """Return a signal from stage b to stage a before it."""
    return PressureSignal(flow, sender, receiver, epoch, sequence, level, lease_ms)


def state_of_stage(
    stage: str,
    throttled_by: str | None = None,
    *,
    queue_bytes: int | None = 7,
    lease_ms: int = 60_000,
    flow: str = "clicks",
) -> StageState:
    """A stage that is free, or throttled a little."""
    level, bound = (0, None) if throttled_by is None else (1.5, 250.5)
    return StageState(flow, stage, throttled_by, level, bound, queue_bytes, lease_ms)
