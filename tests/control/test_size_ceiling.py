"""The law of ceilings: what batches that fail for their size teach of the next one's."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.control.bisection import AwaitControl, Bisection, Isolated, IsolationBudget, Run
from headrace.control.parts import path_of
from headrace.control.parts import size as size_of
from headrace.control.size_ceiling import (
    FINE,
    BatchSize,
    Climb,
    SizeCeiling,
    Stage,
    describe_climb,
    known_ceiling,
    learn_from,
    split_of,
)
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError

Fails = Callable[[str], bool]


def isolated(records: int, fails: Fails) -> Isolated[str]:
    isolation: Bisection[str] = Bisection(
        records, IsolationBudget(max_runs=10_000), shuffle=random.Random(1).shuffle
    )
    isolation.begin("whole")
    passes = 0
    while (step := isolation.next_step(0, passes)) is not None:
        if isinstance(step, Run):
            failed = fails(step.part)
            passes += not failed
            isolation.record(step.part, "part" if failed else None)
        elif isinstance(step, AwaitControl):
            isolation.give_up_waiting()
    return isolation.result


@dataclass
class Gate:
    """A gate that always wants as many records, of a handler that takes less."""

    wants: int = 564
    mean_bytes: int | None = None
    ceiling: SizeCeiling | None = None
    batches: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def run(self, batches: int, takes: Callable[[int], bool]) -> None:
        for _ in range(batches):
            size = None if self.mean_bytes is None else self.wants * self.mean_bytes
            cap = None if self.ceiling is None else self.ceiling.cap(self.wants, size)
            records = self.wants if cap is None else min(self.wants, cap.records)
            self._batch(records, takes)

    def _batch(self, records: int, takes: Callable[[int], bool]) -> None:
        size = BatchSize(records, None if self.mean_bytes is None else records * self.mean_bytes)
        if not takes(records):
            self.failed.append(len(self.batches))
            found = isolated(records, lambda part: not takes(size_of(records, part)))
            split = split_of(size, found)
            if split is not None:
                self.ceiling = learn_from(self.ceiling, split)
        elif self.ceiling is not None:
            self.ceiling = self.ceiling.after_pass(size)
        self.batches.append(records)


def at_most(limit: int) -> Callable[[int], bool]:
    return lambda records: records <= limit


def test_the_first_failed_batch_teaches_the_largest_part_that_passed() -> None:
    gate = Gate()
    gate.run(1, at_most(300))
    assert gate.ceiling is not None
    assert gate.ceiling.describe() == "564 records at once failed, 282 passed"


@pytest.mark.integration
@given(st.floats(0.5, 20), st.integers(8, 10_000))
@examples(200)
def test_at_a_fixed_limit_few_batches_fail_and_the_rest_are_nearly_as_large(
    times: float, limit: int
) -> None:
    wants = round(times * limit)
    gate = Gate(wants)
    gate.run(60, at_most(limit))
    assert len(gate.failed) <= 3
    gate.run(1_940, at_most(limit))
    later = [each for each in gate.failed if each >= 60]
    assert all(b - a > 100 for a, b in pairwise(later))
    assert len(later) <= 19
    least = min(wants, limit) / FINE
    assert all(each >= least - 1 for each in gate.batches[60:])


def test_what_fits_beside_three_hundred_is_nearly_three_hundred() -> None:
    gate = Gate()
    gate.run(60, at_most(300))
    assert sum(gate.batches) >= 0.9 * 60 * 300


def test_probes_become_rarer() -> None:
    gate = Gate()
    gate.run(2_000, at_most(300))
    later = [each for each in gate.failed if each >= 60]
    assert [b - a for a, b in pairwise(later)][:3] == [201, 401, 401]


def test_a_limit_that_rises_is_noticed_and_one_that_falls_is_learnt_anew() -> None:
    gate = Gate(2_000)
    gate.run(500, at_most(300))
    assert max(gate.batches[400:]) <= 1.05 * 300 + 1
    failed = len(gate.failed)
    gate.run(450, at_most(900))
    assert 900 / FINE <= gate.batches[-1] <= 900
    assert len(gate.failed) - failed <= 4  # a double, a coarse and a fine step, and a later try
    failed = len(gate.failed)
    gate.run(60, at_most(150))
    assert 150 / FINE - 1 <= gate.batches[-1] <= 150
    assert len(gate.failed) - failed <= 4


def test_a_limit_that_is_gone_leaves_no_ceiling() -> None:
    gate = Gate()
    gate.run(60, at_most(300))
    gate.run(120, at_most(10_000))
    assert gate.ceiling is None
    assert gate.batches[-1] == 564


def test_one_failure_that_was_no_matter_of_size_is_forgotten_within_a_few_batches() -> None:
    gate = Gate()
    gate.run(1, at_most(300))
    gate.run(8, at_most(10_000))
    assert gate.ceiling is None


def test_a_limit_in_bytes_holds_when_the_records_sizes_change() -> None:
    gate = Gate(2_000, mean_bytes=1_000)

    def takes(records: int) -> bool:
        return records * (gate.mean_bytes or 0) <= 300_000

    gate.run(60, takes)
    for mean_bytes in (500, 2_000, 250, 1_000, 4_000):
        gate.mean_bytes, failed = mean_bytes, len(gate.failed)
        gate.run(60, takes)
        assert 0.9 * 300_000 <= gate.batches[-1] * mean_bytes <= 300_000
        assert len(gate.failed) - failed <= 1
    assert gate.ceiling is not None
    assert (gate.ceiling.records, gate.ceiling.needs_bytes) == (None, True)


def test_a_limit_in_records_holds_when_the_records_sizes_change() -> None:
    gate = Gate(2_000, mean_bytes=1_000)
    gate.run(60, at_most(300))
    for mean_bytes in (500, 2_000, 250, 1_000, 4_000):
        gate.mean_bytes, failed = mean_bytes, len(gate.failed)
        gate.run(60, at_most(300))
        assert 0.9 * 300 <= gate.batches[-1] <= 300
        assert len(gate.failed) - failed <= 1
    assert gate.ceiling is not None
    assert gate.ceiling.bytes is None


@given(st.integers(2, 2_000), st.data())
@examples(200)
def test_bad_records_never_teach_a_ceiling(records: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, records - 1), min_size=1, max_size=3))
    limit = data.draw(st.one_of(st.none(), st.integers(1, records)))
    leaves = [path_of([OffsetRange("orders", 0, 0, records)], "orders", 0, at) or "" for at in bad]

    def fails(part: str) -> bool:
        is_bad = any(leaf.startswith(part) for leaf in leaves)
        return is_bad or (limit is not None and size_of(records, part) > limit)

    assert split_of(BatchSize(records), isolated(records, fails)) is None


def test_a_part_that_failed_and_is_no_larger_than_one_that_passed_teaches_nothing() -> None:
    found = isolated(564, lambda part: size_of(564, part) > 300)
    assert split_of(BatchSize(564), found) is not None
    assert split_of(BatchSize(564), replace(found, smallest_failed=250)) is None


def test_what_is_left_of_a_batch_teaches_nothing() -> None:
    found = replace(isolated(564, lambda part: size_of(564, part) > 300), left=[("", "why")])
    assert split_of(BatchSize(564), found) is None


@given(st.integers(2, 5_000), st.integers(1, 5_000), st.integers(0, 300))
@examples(100)
def test_a_ceiling_is_the_same_when_it_comes_back_from_text(
    wants: int, limit: int, batches: int
) -> None:
    gate = Gate(wants, mean_bytes=100)
    gate.run(batches, at_most(limit))
    if gate.ceiling is not None:
        assert SizeCeiling.from_text(gate.ceiling.to_text()) == gate.ceiling


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"records": null, "bytes": null}',
        SizeCeiling(Climb(0, 5, Stage.COARSE)).to_text(),
        SizeCeiling(Climb(9, 5, Stage.COARSE)).to_text(),
        SizeCeiling(Climb(1, 5, Stage.COARSE, wait=0)).to_text(),
        SizeCeiling(Climb(1, 5, Stage.COARSE)).to_text().replace("coarse", "slow"),
        SizeCeiling(Climb(1, 5, Stage.COARSE)).to_text().replace("5", '"5"'),
    ],
)
def test_a_text_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="The ceiling of a gate's batches is"):
        SizeCeiling.from_text(text)
    assert known_ceiling(text) is None


def test_a_ceiling_in_words() -> None:
    assert describe_climb(Climb.begin(250, 564)) == "564 records at once failed, 250 passed"
    climb = Climb(564, None, Stage.COARSE)
    assert describe_climb(climb, in_bytes=True) == "564 bytes at once passed, and more is tried"
