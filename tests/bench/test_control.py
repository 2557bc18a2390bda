"""Figures that the benchmark of the laws computes from batches."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
from bench.control import INTERVAL_MS, RECORD_S, Job, driven, figures, settled_after
from pyspark.sql.streaming.listener import StreamingQueryProgress
from tests.gate.execution.events import progress, source

OVERHEAD_MS = 100


@pytest.mark.parametrize(
    ("parts", "batches"),
    [
        ([0.1, 0.5, 0.9, 1.1, 1.0], 2),
        ([1.0, 1.0, 1.0, 0.2], 0),
        ([0.9, 0.2, 1.0, 0.8, 1.0], 5),
        ([], 0),
    ],
)
def test_a_law_has_settled_when_three_plans_in_a_row_are_near_the_best(
    parts: Sequence[float], batches: int
) -> None:
    assert settled_after(parts) == batches


def batches_of(job: Job, sizes: Sequence[int], factors: Sequence[float]) -> list[tuple[int, float]]:
    """The rows of each batch and its handler's time (ms)."""
    fixed_ms = job.fixed * INTERVAL_MS
    return [
        (rows, fixed_ms + 1000 * RECORD_S * factor * rows)
        for rows, factor in zip(sizes, factors, strict=True)
    ]


def test_the_figures_of_a_run_are_against_the_best_batch_with_this_machines_overhead() -> None:
    job = Job(0.3, 0.0)
    best_s = (INTERVAL_MS - OVERHEAD_MS) / 1000 - 0.6
    phases = [[0.1, 0.8, 1.0, 1.0, 1.0, 1.0], *[[1.0] * 6] * 3]
    factors = [each for each in (1.0, 4.0, 1.0, 0.5) for _ in range(6)]
    parts = [part for phase in phases for part in phase]
    sizes = [round(part * best_s / (RECORD_S * f)) for part, f in zip(parts, factors, strict=True)]
    made, events, start_ms = batches_of(job, sizes, factors), list[StreamingQueryProgress](), 0
    run = uuid4()
    for number, (rows, took_ms) in enumerate(made):
        event = progress(
            source([0], [1], None, rows),
            run=run,
            batch_id=number,
            start_ms=1_700_000_000_000 + start_ms,
            duration_ms=round(took_ms + OVERHEAD_MS),
        )
        events.append(event.progress)
        start_ms += INTERVAL_MS
    found = driven(job, 6, events, [took_ms for _, took_ms in made])
    assert found.settled == (2, 0, 0, 0)
    assert (found.jitter, found.used) == pytest.approx((0.0, 1.0), abs=0.01)
    assert found.per_s == pytest.approx(sum(sizes) / (len(made) * INTERVAL_MS / 1000), rel=0.02)
    assert len({figure.name for figure in figures(job, found, found)}) == 8
