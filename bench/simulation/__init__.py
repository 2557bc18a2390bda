"""Gates and flows in simulated time: the control code itself against a scripted scenario."""

from bench.simulation.scenario import (
    Dead,
    Disturbance,
    Load,
    LostSignals,
    Pause,
    Policy,
    Scenario,
    Shape,
    SimulatedStage,
    Slow,
    Spike,
)
from bench.simulation.simulated_stage import SimulatedBatch
from bench.simulation.simulator import (
    Phase,
    RateLimitChange,
    Result,
    Series,
    StageFigures,
    batches_to_settle,
    phases,
    run,
    turns,
)

__all__ = [
    "Dead",
    "Disturbance",
    "Load",
    "LostSignals",
    "Pause",
    "Phase",
    "Policy",
    "RateLimitChange",
    "Result",
    "Scenario",
    "Series",
    "Shape",
    "SimulatedBatch",
    "SimulatedStage",
    "Slow",
    "Spike",
    "StageFigures",
    "batches_to_settle",
    "phases",
    "run",
    "turns",
]
