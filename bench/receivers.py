"""Receivers: how much they take, how soon they say so, and how they hold senders back."""

from collections.abc import Iterator

from bench import receiver_delay, receiver_limits, receiver_single, receiver_speed
from bench.figures import Figure
from bench.scale import Scale
from bench.stage import Stage


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """One after the other."""
    for part in (receiver_single, receiver_speed, receiver_delay, receiver_limits):
        yield from part.measure(stage, scale)
