"""Signals between the stages of a flow: how soon they work, and what they cost ZooKeeper."""

from collections.abc import Iterator

from bench import signal_delay, signal_load
from bench.figures import Figure
from bench.scale import Scale
from bench.stage import Stage


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """One after the other."""
    for part in (signal_delay, signal_load):
        yield from part.measure(stage, scale)
