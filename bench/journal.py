"""A journal: blocks into it, records out of it, and its recovery."""

from collections.abc import Iterator

from bench import journal_read, journal_recovery, journal_write
from bench.figures import Figure
from bench.scale import Scale
from bench.stage import Stage


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """One after the other."""
    for part in (journal_write, journal_read, journal_recovery):
        yield from part.measure(stage, scale)
