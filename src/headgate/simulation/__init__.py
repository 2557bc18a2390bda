"""Gates and flows in simulated time: the control code itself against a world that is scripted."""

from headgate.simulation.disturbance import Dead, Disturbance, Lost, Pause, Slow, Spike
from headgate.simulation.engine import run
from headgate.simulation.gate import SimulatedBatch, batches_to_settle, simulate
from headgate.simulation.load import Load, Shape
from headgate.simulation.result import Move, Result, Series
from headgate.simulation.stage import SimulatedStage
from headgate.simulation.world import Policy, World

__all__ = [
    "Dead",
    "Disturbance",
    "Load",
    "Lost",
    "Move",
    "Pause",
    "Policy",
    "Result",
    "Series",
    "Shape",
    "SimulatedBatch",
    "SimulatedStage",
    "Slow",
    "Spike",
    "World",
    "batches_to_settle",
    "run",
    "simulate",
]
