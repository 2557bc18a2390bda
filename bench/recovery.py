"""Settling of the loop when a handler of known capacity becomes four times slower, and back.

A simulation of the law alone, with the same numbers, gives the expected number of batches; a real
run may take two more, for it has noise.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.sides import discard, gated_stream, running, wait_for_batches
from bench.simulation import (
    Load,
    Policy,
    Scenario,
    SimulatedStage,
    Slow,
    batches_to_settle,
    run,
)
from bench.stage import Stage
from bench.table import number
from headrace.gate.control.law import BatchProgress
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

INTERVAL_MS: Final = 1_000
CAPACITY_PER_S: Final = 10_000.0
SLOW_PER_S: Final = CAPACITY_PER_S / 4
INITIAL_PER_S: Final = 0.7 * CAPACITY_PER_S
PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
TOLERANCE: Final = 0.15
GRACE: Final = 2


@dataclass(frozen=True, slots=True)
class Script:
    """When the handler is fast and when it is slow, by the batches' numbers."""

    steady: int
    slow: int

    @property
    def batches(self) -> int:
        """All of them: steady, slow, and steady again."""
        return self.steady + self.slow + self.steady

    def capacity_per_s(self, number: int) -> float:
        """Return the handler's capacity at this batch; those after the end take no time."""
        if number >= self.batches:
            return math.inf
        return SLOW_PER_S if self.steady <= number < self.steady + self.slow else CAPACITY_PER_S


@dataclass(slots=True)
class TimedHandler:
    """Takes records / capacity seconds for a batch, whatever the machine: it reads, then waits.

    Attributes:
        script: The capacity at each batch.
        took_ms: Time that each batch took in the handler (ms).
        late: The batches that took longer than that to read.
    """

    script: Script
    took_ms: dict[int, float] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Handle one batch."""
        began_s = time.monotonic()
        number = batch.sequence - 1
        records = sum(r.count for r in batch.ranges)
        due_s = began_s + records / self.script.capacity_per_s(number)
        discard(df)
        left_s = due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        else:
            self.late.append(number)
        self.took_ms[number] = (time.monotonic() - began_s) * 1000


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """The slow-down, the way back, and that the worst batch is the first."""
    script = Script(scale.steady_batches, scale.slow_batches)
    handler = TimedHandler(script)
    progress = _run(stage, script, handler)
    real_ms = [p.durationMs["triggerExecution"] for p in progress]
    # The cost of a batch besides its handler, on this machine.
    fixed_ms = round(median(real_ms[n] - handler.took_ms[n] for n in range(2, script.steady)))
    in_theory = in_simulation(script, fixed_ms)
    phases = {
        "4 times slower": slice(script.steady, script.steady + script.slow),
        "fast again": slice(script.steady + script.slow, script.batches),
    }
    details = {
        "batches_ms": real_ms,
        "simulated_ms": [batch.duration_ms for batch in in_theory],
        "records": [p.numInputRows for p in progress],
        "fixed_ms": fixed_ms,
        "late_batches": [number for number in handler.late if number < script.batches],
    }
    for words, phase in phases.items():
        law = settled_after(in_theory[phase])
        real = settled_after([_as_simulated(p) for p in progress[phase]])
        yield Figure(
            f"{words}, until settled (the law: {number(law)})",
            "batches",
            Spread.of([real]),
            target=AtMost(law + GRACE) if math.isfinite(law) else None,
            details=details,
        )
    first_ms, *later_ms = real_ms[phases["4 times slower"]]
    yield Figure(
        "4 times slower, longest later batch over first",
        "",
        Spread.of([max(later_ms) / first_ms]),
        target=AtMost(1.0),
    )


def settled_after(batches: Sequence[BatchProgress]) -> float:
    """Count the batches until all take the interval; infinite if the last does not.

    Within 15 %, and for good: a later batch that does not counts, with all before it.
    """
    since_ms = batches[0].start_ms
    count = batches_to_settle(batches, from_ms=since_ms, target_ms=INTERVAL_MS, tolerance=TOLERANCE)
    return math.inf if count is None else count


def _run(stage: Stage, script: Script, handler: TimedHandler) -> list[StreamingQueryProgress]:
    """Run the real query on a backlog that is never used up."""
    rows = round((2 * script.steady + script.slow) * 2 * CAPACITY_PER_S * INTERVAL_MS / 1000)
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    gate = Gate("recovery", interval=f"{INTERVAL_MS} ms", ledger=stage.fresh_ledger())
    df = gated_stream(stage, gate, topic, {"backpressure.initialRate": INITIAL_PER_S})
    writer = gate.write(df, handler)
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        # One more, which takes no time: the query is then stopped between two batches.
        return wait_for_batches(query, script.batches + 1)[:-1]


def in_simulation(script: Script, fixed_ms: int) -> list[BatchProgress]:
    """The same in simulated time."""
    stage = SimulatedStage(
        "recovery",
        CAPACITY_PER_S,
        load=Load(((0, 0),)),
        interval_ms=INTERVAL_MS,
        fixed_ms=fixed_ms,
        partitions=PARTITIONS,
        backlog=round(script.batches * 10 * CAPACITY_PER_S * INTERVAL_MS / 1000),
        initial_rate_per_s=INITIAL_PER_S,
    )
    from_s, end_s = script.steady * INTERVAL_MS / 1000, script.batches * INTERVAL_MS / 500

    def batches(until_s: float) -> list[BatchProgress]:
        slow = Slow(stage.name, from_s, until_s, factor=SLOW_PER_S / CAPACITY_PER_S)
        result = run(Scenario((stage,), end_s, (slow,)), Policy.NONE, Random(0))
        return [batch.progress for batch in result.batches[stage.name]]

    # It is slow for a number of batches: until the first after them begins.
    first_fast = batches(end_s)[script.steady + script.slow]
    return batches(first_fast.start_ms / 1000)[: script.batches]


def _as_simulated(progress: StreamingQueryProgress) -> BatchProgress:
    """A real batch in the terms of the simulation; its place in time is its number's."""
    return BatchProgress(
        start_ms=progress.batchId,
        duration_ms=progress.durationMs["triggerExecution"],
        records=progress.numInputRows,
        left_over=0,
    )
