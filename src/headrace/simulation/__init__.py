"""Gates and flows in simulated time: the control code itself against a world that is scripted."""

from headrace.simulation.disturbance import Dead, Disturbance, Lost, Pause, Slow, Spike
from headrace.simulation.engine import run
from headrace.simulation.figures import Phase, StageFigures, phases, turns
from headrace.simulation.file import read_world, world_of
from headrace.simulation.gate import SimulatedBatch, batches_to_settle, simulate
from headrace.simulation.load import Load, Shape
from headrace.simulation.result import Move, Result, Series
from headrace.simulation.stage import SimulatedStage
from headrace.simulation.world import Policy, World

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
