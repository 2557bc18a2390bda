"""Gates and flows in simulated time: the control code itself against a world that is scripted."""

from headgate.simulation.disturbance import Dead, Disturbance, Lost, Pause, Slow, Spike
from headgate.simulation.engine import run
from headgate.simulation.figures import Phase, StageFigures, phases, turns
from headgate.simulation.file import read_world, world_of
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
    "Phase",
    "Policy",
    "Result",
    "Series",
    "Shape",
    "SimulatedBatch",
    "SimulatedStage",
    "Slow",
    "Spike",
    "StageFigures",
    "World",
    "batches_to_settle",
    "phases",
    "read_world",
    "run",
    "simulate",
    "turns",
    "world_of",
]
