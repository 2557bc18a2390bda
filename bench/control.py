"""Both rate laws on a real broker, with handlers whose cost is known: PID beside the learned law.

A handler takes ``a + b n`` seconds for n records, with noise; after some batches it becomes four
times slower, is back, and becomes twice as fast. A law is judged by the batches that the gate
plans, against the best batch, and not by their times: noise alone would unsettle those.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from statistics import fmean, median, quantiles
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from bench.figures import AtLeast, AtMost, Figure, Target
from bench.pairs import Spread
from bench.scale import Scale
from bench.sides import discard, gated_stream, running, wait_for_batches
from bench.stage import Stage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

INTERVAL_MS: Final = 2_000
RECORD_S: Final = 1 / 5_000
PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
TOLERANCE: Final = 0.15
IN_A_ROW: Final = 3
"""Batches within the tolerance that count as settled."""

FACTORS: Final = (1.0, 4.0, 1.0, 0.5)
"""By how much a record costs more, by phase."""

PHASES: Final = ("a cold start", "4 times slower", "back", "twice as fast")

OUTLIERS: Final = 0.05
"""The part of batches that take twice as long, where there are outliers."""


@dataclass(frozen=True, slots=True)
class Job:
    """Cost of a handler: a over the interval, the noise of its time, whether it has outliers."""

    fixed: float
    noise: float
    has_outliers: bool = False

    @property
    def name(self) -> str:
        """For the table."""
        outliers = ", outliers" if self.has_outliers else ""
        return f"a {self.fixed:g}, noise {self.noise:.0%}{outliers}"


JOBS: Final = (
    Job(0.1, 0.0),
    Job(0.3, 0.0),
    Job(0.6, 0.0),
    Job(0.3, 0.1),
    Job(0.3, 0.2),
    Job(0.3, 0.05, has_outliers=True),
)


@dataclass(slots=True)
class CostlyHandler:
    """Takes what its job costs: it reads, and then waits for the rest of the time.

    Attributes:
        batches: Number of batches in each phase.
        took_ms: Time that each batch took in the handler (ms).
    """

    job: Job
    batches: int
    dice: Random
    took_ms: list[float] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Handle one batch."""
        began_s = time.monotonic()
        phase = min(len(self.took_ms) // self.batches, len(FACTORS) - 1)
        records = sum(r.count for r in batch.ranges)
        cost_s = self.job.fixed * INTERVAL_MS / 1000 + FACTORS[phase] * RECORD_S * records
        cost_s *= max(self.dice.gauss(1, self.job.noise), 0.2)
        is_outlier = self.dice.random() < OUTLIERS
        cost_s *= 2 if is_outlier and self.job.has_outliers else 1
        discard(df)
        time.sleep(max(began_s + cost_s - time.monotonic(), 0))
        self.took_ms.append((time.monotonic() - began_s) * 1000)


@dataclass(frozen=True, slots=True)
class Driven:
    """Result of one law on a job.

    Attributes:
        settled: Batches until settled, by phase; all of the phase where it never was.
        jitter: By how much of itself the plan changes between batches that have settled.
        used: The mean planned time of those, over the interval.
        p95_ms: The 95th percentile of the batches' times.
        per_s: The records processed a second.
    """

    settled: tuple[int, ...]
    jitter: float
    used: float
    p95_ms: float
    per_s: float


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Each job under both laws, in turn."""
    for job in JOBS if scale.control_batches >= 8 else JOBS[1:2]:
        driven = {law: drive(stage, job, law, scale.control_batches) for law in ("pid", "learned")}
        yield from figures(job, driven["pid"], driven["learned"])


def figures(job: Job, pid: Driven, learned: Driven) -> Iterator[Figure]:
    """Yield the targets of the learned law against PID, and its results."""

    def figure(name: str, unit: str, of: str, target: Target | None = None) -> Figure:
        found = [getattr(learned, of)], [getattr(pid, of)]
        return Figure.side_by_side(
            f"{job.name}: {name}", unit, headrace=found[0], native=found[1], target=target
        )

    for place, phase in enumerate(PHASES):
        batches = learned.settled[place]
        is_asked = place == 0 and job.noise == 0 and job.fixed <= 0.3
        yield Figure(
            f"{job.name}: {phase}, settled after",
            "batches",
            Spread.of([batches]),
            native=Spread.of([pid.settled[place]]),
            target=AtMost(3) if is_asked else None,
            absolute=True,
        )
    yield figure("change of the plan, settled", "", "jitter", AtMost(0.25) if job.noise else None)
    yield figure("planned time over the interval, settled", "", "used")
    yield figure("95th percentile of the batch time", "ms", "p95_ms", AtMost(1.02))
    yield figure("processed", "rows/s", "per_s", AtLeast(0.97))


def drive(stage: Stage, job: Job, law: str, batches: int) -> Driven:
    """Run one job under one law, on a backlog that is never used up."""
    count = batches * len(FACTORS)
    topic = stage.topics.random(PARTITIONS, 30 * count * 1_000, VALUE_BYTES)
    gate = Gate("control", interval=f"{INTERVAL_MS} ms", ledger=stage.fresh_ledger())
    df = gated_stream(stage, gate, topic, {"backpressure.rateEstimator": law})
    # Each law meets the same chance.
    handler = CostlyHandler(job, batches, Random(job.name))
    with running(gate.write(df, handler), stage.fresh_folder("checkpoint")) as query:
        progress = wait_for_batches(query, count)
    return driven(job, batches, progress, handler.took_ms)


def driven(
    job: Job, batches: int, progress: Sequence[StreamingQueryProgress], took_ms: Sequence[float]
) -> Driven:
    """The figures of a run."""
    real_ms = [each.durationMs["triggerExecution"] for each in progress]
    rows = [each.numInputRows for each in progress]
    # The cost of a batch besides its handler, on this machine.
    besides = [a - b for a, b in zip(real_ms[2:], took_ms[2:], strict=False)]
    fixed_s = job.fixed * INTERVAL_MS / 1000 + median(besides) / 1000
    parts, used = [], []
    for number, count in enumerate(rows):
        record_s = FACTORS[number // batches] * RECORD_S
        parts.append(count * record_s / (INTERVAL_MS / 1000 - fixed_s))
        used.append((fixed_s + count * record_s) * 1000 / INTERVAL_MS)
    phases = [parts[at : at + batches] for at in range(0, len(parts), batches)]
    last = [(parts[at], parts[at + 1]) for at in range(batches // 2, batches - 1)]
    began_s = [_seconds(each.timestamp) for each in progress]
    lasted_s = began_s[-1] - began_s[0] + real_ms[-1] / 1000
    return Driven(
        settled=tuple(settled_after(phase) for phase in phases),
        # A smaller jitter counts as none.
        jitter=max(fmean(abs(b - a) / max(a, 1e-9) for a, b in last), 0.001),
        used=fmean(used[batches // 2 : batches]),
        p95_ms=quantiles(real_ms, n=20)[-1],
        per_s=sum(rows) / lasted_s,
    )


def settled_after(parts: Sequence[float]) -> int:
    """Return the number of batches until some in a row are near the best; all where none are."""
    near = [abs(part - 1) <= TOLERANCE for part in parts]
    found = (n for n in range(len(near) - IN_A_ROW + 1) if all(near[n : n + IN_A_ROW]))
    return next(found, len(near))


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
