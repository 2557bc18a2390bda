"""Samples that a batch gives the laws of a query's gates."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.gate.control.law import BatchProgress
from headrace.gate.control.laws import LAWS, EstimatorSettings
from headrace.gate.control.rates import UNREAD_BATCHES, QueryRates

INTERVAL_MS = 1_000
FIXED_MS = 400
GATE, OTHER = "gate", "other"


def laws(*gates: str, law: str = "pid") -> QueryRates:
    made = QueryRates()
    for gate in gates:
        made.add(gate, EstimatorSettings(law), INTERVAL_MS)
    return made


def rate_after(*, limited: bool, law: str = "pid") -> float | None:
    """Five batches of 600 records, and then twenty of 10 under an operator's limit."""
    rates, start_ms, learnt = laws(GATE, law=law), 0, None
    for records in [600] * 5 + [10] * 20:
        is_limited = limited and records == 10
        progress = BatchProgress(start_ms, FIXED_MS + records, records, 1, is_limited=is_limited)
        rate = rates.finished({GATE: progress})[GATE].rate_per_s
        learnt = learnt if rate is None else rate
        start_ms += INTERVAL_MS
    return learnt


def rates_of(*parts: Mapping[str, Any]) -> list[float | None]:
    """The rate after each of so many batches of 600 records, which differ from a usual one."""
    rates, start_ms, found = laws(GATE), 0, []
    for part in parts:
        batch = replace(BatchProgress(start_ms, 1_000, 600, 1), **part)
        found.append(rates.finished({GATE: batch})[GATE].rate_per_s)
        start_ms = batch.end_ms
    return found


def test_an_operators_limit_teaches_pid_nothing_false() -> None:
    assert rate_after(limited=False) == 100, "as if the job could do no more"
    assert rate_after(limited=True) == 600


def test_the_learned_law_tells_an_operators_limit_apart_by_itself() -> None:
    assert rate_after(limited=True, law="learned") == pytest.approx(600, rel=0.05)


def test_a_job_that_cannot_process_even_its_limit_teaches_pid() -> None:
    limited = {"records": 100, "is_limited": True}
    assert rates_of({}, {}, limited, {**limited, "duration_ms": 1_250})[2:] == [None, 100]


@pytest.mark.parametrize("law", list(LAWS))
def test_an_operators_pause_teaches_no_law_anything(law: str) -> None:
    rates, found = laws(GATE, law=law), []
    starts = [*range(0, 10_000, 1_000), 610_000, 611_000]
    for start_ms in starts:
        batch = BatchProgress(start_ms, 1_000, 600, 1)
        found.append(rates.finished({GATE: batch})[GATE].rate_per_s)
    assert found[-2:] == pytest.approx([600, 600], rel=0.01)


def test_after_an_outage_pid_begins_as_after_a_start() -> None:
    away = {"had_no_sink": True, "went_through": False}
    assert rates_of({}, {}, {}, away, {}, {}) == [None, 600, 600, None, None, 600]


def test_a_batch_that_was_helped_teaches_nothing_and_its_time_has_not_passed() -> None:
    helped = {"went_through": False, "duration_ms": 60_000}
    assert rates_of({}, {}, helped, {}) == [None, 600, None, 600]


def test_help_for_one_gate_is_help_for_all() -> None:
    rates, usual = laws(GATE, OTHER), BatchProgress(0, 1_000, 600, 1)
    rates.finished({GATE: usual, OTHER: usual})
    both = rates.finished({GATE: usual, OTHER: replace(usual, went_through=False)})
    assert [both[gate].rate_per_s for gate in (GATE, OTHER)] == [None, None]


def test_a_gate_with_nothing_in_a_batch_keeps_no_other_from_learning() -> None:
    rates, usual = laws(GATE, OTHER), BatchProgress(0, 1_000, 600, 1)
    rates.finished({GATE: usual})
    empty = BatchProgress(INTERVAL_MS, 1_000, 0, 0, is_empty=True)
    found = rates.finished({GATE: replace(usual, start_ms=INTERVAL_MS), OTHER: empty})
    assert {gate: learnt.rate_per_s for gate, learnt in found.items()} == {GATE: 600}


def test_batches_that_are_not_read_are_told_once_in_a_run() -> None:
    rates, unread = laws(GATE), BatchProgress(0, 1_000, 0, 1)
    warnings = [rates.finished({GATE: unread})[GATE].warning for _ in range(3 * UNREAD_BATCHES)]
    assert [number for number, warning in enumerate(warnings) if warning] == [UNREAD_BATCHES - 1]


def test_batches_of_which_no_value_can_be_decoded_were_read() -> None:
    rates, rejected = laws(GATE), BatchProgress(0, 1_000, 0, 1, was_rejected=True)
    warnings = [rates.finished({GATE: rejected})[GATE].warning for _ in range(UNREAD_BATCHES)]
    assert warnings == [None] * UNREAD_BATCHES
