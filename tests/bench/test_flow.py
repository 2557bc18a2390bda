"""Figures of a flow's run; the run itself is the benchmark's."""

from dataclasses import replace

import pytest
from bench.figures import Figure
from bench.flow import SETTINGS, figures
from bench.flow_run import INTERVAL_MS, LOAD_PER_S, NAMES, SINK, SLOW_PER_S, Trace
from bench.simulation import RateLimitChange

from headrace.errors import HeadraceError
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status

STEADY_MS, SLOW_MS, FAST_MS, END_MS = 0, 30_000, 90_000, 150_000


def batch(end_ms: int, per_s: float) -> BatchRecord:
    """One that took its interval, at such a rate."""
    return BatchRecord(
        batch_key=str(end_ms),
        gate="topics.x",
        checkpoint_id="run",
        status=Status.SUCCESS,
        attempts=1,
        query_batch_id=end_ms // INTERVAL_MS,
        created_time_ms=end_ms - INTERVAL_MS,
        start_time_ms=end_ms - INTERVAL_MS,
        end_time_ms=end_ms,
        reason="rate",
        planned_records=round(per_s * INTERVAL_MS / 1000),
        lag=0,
        rate_per_s=per_s,
        records=None,
        error=None,
    )


def batches(while_slow: float, after: float = LOAD_PER_S) -> list[BatchRecord]:
    def per_s(end_ms: int) -> float:
        return LOAD_PER_S if end_ms <= SLOW_MS else while_slow if end_ms <= FAST_MS else after

    return [batch(at, per_s(at)) for at in range(0, END_MS + 1, INTERVAL_MS)]


def limited(at_ms: int, stage: str, by: str | None, per_s: float | None) -> RateLimitChange:
    return RateLimitChange(at_ms, stage, by, 0.0 if by is None else 1.0, per_s)


@pytest.fixture
def trace() -> Trace:
    """A run as it should be."""
    changes = [
        limited(50_000, "three", "four", 200.0),
        limited(70_000, "two", "three", 190.0),
        limited(100_000, "three", "four", 400.0),
        limited(110_000, "three", None, None),
        limited(120_000, "two", None, None),
    ]
    looks = {name: [(at, SETTINGS.overload_bytes) for at in (0, 60_000)] for name in NAMES}
    done = {name: batches(0.96 * SLOW_PER_S) for name in NAMES}
    return Trace(
        *(STEADY_MS, SLOW_MS, FAST_MS, END_MS, changes, looks, done, 0.0), SETTINGS.overload_bytes
    )


def found(trace: Trace) -> dict[str, Figure]:
    return {each.name: each for each in figures(trace)}


def missed(trace: Trace) -> list[str]:
    return [name for name, figure in found(trace).items() if figure.is_met is False]


def test_a_run_as_it_should_be_meets_what_is_asked(trace: Trace) -> None:
    assert missed(trace) == []
    first = found(trace)["from the slow-down until 'three' is throttled"]
    assert first.headrace.median == 20
    assert "from the slow-down until 'one' is throttled" not in found(trace)


def test_what_is_not_as_it_should_be_is_missed(trace: Trace) -> None:
    sooner = limited(45_000, "one", "two", 100.0)
    freed = limited(130_000, "one", None, None)
    wrong = replace(trace, changes=[sooner, *trace.changes, freed])
    assert missed(wrong) == ["stages throttled before 'three' was"]

    huge = {**trace.looks, "four": [(60_000, 2 * SETTINGS.overload_bytes + 1)]}
    assert missed(replace(trace, looks=huge)) == ["largest queue over the threshold"]

    too_low = [limited(60_000, "three", "four", 100.0), limited(63_500, "three", "four", 200.0)]
    low = replace(trace, changes=sorted([*trace.changes, *too_low], key=lambda each: each.time_ms))
    assert missed(low) == ["below half of the capacity, over the longest batch"]

    short = {**trace.batches, SINK: batches(0.9 * SLOW_PER_S)}
    assert missed(replace(trace, batches=short)) == ["sink while slow, over the capacity"]

    lame = {**trace.batches, "two": batches(SLOW_PER_S, after=0.5 * LOAD_PER_S)}
    assert missed(replace(trace, batches=lame)) == ["least stage at the end, over the load"]

    swings = [limited(80_000 + n * 1000, "three", "four", 200.0 + n % 2) for n in range(6)]
    swinging = sorted([*trace.changes, *swings], key=lambda change: change.time_ms)
    assert missed(replace(trace, changes=swinging)) == ["most turns of a stage in a phase"]

    assert missed(replace(trace, changes=trace.changes[:-1])) == ["stages throttled at the end"]


def test_of_a_machine_with_too_much_to_do_no_figure_is_made(trace: Trace) -> None:
    with pytest.raises(HeadraceError, match="takes 1501 ms besides its work, of 3000 ms"):
        found(replace(trace, fixed_ms=1501.0))
