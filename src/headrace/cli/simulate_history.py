"""A gate's recorded history as the load of a simulated source."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from headrace.cli.options import gates_of
from headrace.cli.trends import newest_run
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, Kind, Ledger, redact_url
from headrace.simulation import Load, World

MOST_BATCHES: Final = 10_000
"""The newest batches that are looked at."""


def with_history(world: World, choice: str, url: str) -> World:
    """The world with what came to a gate, as its ledger has it, for what comes to a source.

    Args:
        world: The world.
        choice: ``stage=gate``.
        url: The ledger's URL.

    Raises:
        OptionError: The choice is not of that form, there is no such source or gate, or the gate's
            newest run has fewer than two batches whose lag is known.
        LedgerError: The ledger cannot be read.
    """
    name, _, gate = choice.partition("=")
    sources = [stage.name for stage in world.stages if stage.load is not None]
    if not gate or name not in sources:
        raise OptionError(
            f"--history is {choice!r}; it must be a source and a gate, such as"
            f" {sources[0]}=orders, and the sources are {', '.join(sources)}."
        )
    with Ledger.open(url, create=False) as ledger:
        gates_of(ledger, gate, url)
        batches = ledger.batches(gate, MOST_BATCHES, kind=Kind.LIVE, parts=False)
    known = [batch for batch in reversed(newest_run(batches)) if batch.lag is not None]
    if len(known) < 2:
        raise OptionError(
            f"The gate {gate!r} in {redact_url(url)} has no history to go by; it takes two batches"
            " of one run, so name a gate that has run."
        )
    load, backlog = load_of(known), known[0].lag or 0
    stages = tuple(
        replace(stage, load=load, backlog=backlog) if stage.name == name else stage
        for stage in world.stages
    )
    return replace(world, stages=stages)


def load_of(batches: Sequence[BatchRecord]) -> Load:
    """What came between the plans of one run's batches, the oldest first; the last rate stays.

    Args:
        batches: At least two, all with a known lag; those between them without one are left out,
            and what they took then counts as lost.
    """
    began_ms = batches[0].created_time_ms
    points = []
    for before, after in pairwise(batches):
        came = (after.lag or 0) - (before.lag or 0) + before.planned_records
        lasted_ms = after.created_time_ms - before.created_time_ms
        per_s = max(came, 0) * 1000 / lasted_ms
        points.append(((before.created_time_ms - began_ms) / 1000, per_s))
    return Load(tuple(points))
