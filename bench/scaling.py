"""Cost of more executors and more gates: one gate on a cluster, many gates on a ledger."""

from collections.abc import Iterator

from bench import executors, many_gates
from bench.figures import Figure
from bench.scale import Scale
from bench.stage import Stage


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """One after the other."""
    for part in (executors, many_gates):
        yield from part.measure(stage, scale)
