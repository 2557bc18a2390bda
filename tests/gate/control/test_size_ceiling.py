"""The law of ceilings: below the limit within two failures, and up again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gate.control.bisection import Isolated
from headrace.gate.control.size_ceiling import SizeCeiling, known_ceiling


def isolated(records: int, takes: int) -> Isolated[str]:
    """Return the outcome of halving a batch until a sink takes each part."""
    passed = failed = records
    while passed > takes:
        failed, passed = passed, passed - passed // 2
    return Isolated(has_passed=True, largest_passed=passed, smallest_failed=failed)


def sizes(takes: int, wanted: int, batches: int) -> tuple[list[int], int]:
    """Return the sizes of the batches of a gate that wants so many records, and how many failed."""
    ceiling: SizeCeiling | None = None
    planned, failures = list[int](), 0
    for _ in range(batches):
        size = wanted if ceiling is None else min(wanted, ceiling.records)
        planned.append(size)
        if size > takes:
            failures += 1
            ceiling = SizeCeiling.of(size, isolated(size, takes))
        elif ceiling is not None:
            ceiling = ceiling.after_pass(size)
    return planned, failures


@given(st.integers(2, 5_000), st.integers(2, 100_000))
def test_batches_are_below_the_limit_after_one_failure_and_grow_again(
    takes: int, wanted: int
) -> None:
    planned, failures = sizes(takes, wanted, 60)
    assert max(planned[1:]) <= min(wanted, max(takes * 1.05, takes + 1))
    assert failures <= (0 if wanted <= takes else 60)
    if wanted > takes >= 40:
        assert failures <= 1 + 60 // 10
        assert sum(planned[1:]) >= 0.65 * takes * 59


def test_a_limit_that_is_gone_is_forgotten_once_a_batch_of_what_failed_passes() -> None:
    ceiling: SizeCeiling | None = SizeCeiling(250, 300)
    while ceiling is not None:
        ceiling = ceiling.after_pass(ceiling.records)


def test_a_batch_far_below_the_ceiling_says_nothing_of_it() -> None:
    ceiling = SizeCeiling(250, 564)
    assert ceiling.after_pass(100) == ceiling


@pytest.mark.parametrize(
    "outcome",
    [
        Isolated(largest_passed=3, smallest_failed=5, alone=[("0", "bad")]),
        Isolated(largest_passed=3, smallest_failed=5, left=[("0", "not run")]),
        Isolated(largest_passed=5, smallest_failed=3),
        Isolated(largest_passed=0, smallest_failed=3),
        Isolated(largest_passed=3, smallest_failed=None),
    ],
)
def test_a_batch_that_failed_for_another_reason_teaches_nothing(outcome: Isolated[str]) -> None:
    assert SizeCeiling.of(8, outcome) is None


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", '{"passed": 3, "failed": 3}', '{"passed": 1.5, "failed": 3}']
)
def test_what_is_no_ceiling_bounds_no_batch(text: str | None) -> None:
    assert known_ceiling(text) is None


def test_a_ceiling_is_read_as_it_was_written() -> None:
    ceiling = SizeCeiling(250, 564)
    assert known_ceiling(ceiling.to_text()) == ceiling
