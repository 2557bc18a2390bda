import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.isolation import Isolated, Isolation, IsolationBudget, Ranges, halves
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError

ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=5
).map(
    lambda rows: tuple(
        OffsetRange("orders", place, start, start + count)
        for place, (_, start, count) in enumerate(rows)
    )
)


class Bad(Exception):  # noqa: N818  (the tests' own)
    """A record that cannot be processed."""


def offsets(parts: Ranges) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in parts for offset in range(r.start, r.until)]


def isolate(
    batch: Ranges, bad: set[tuple[int, int]], budget: IsolationBudget
) -> tuple[Isolated[Bad], list[tuple[int, int]]]:
    """Run it as a query would; answers what was processed, too."""
    processed: list[tuple[int, int]] = []
    isolation: Isolation[Bad] = Isolation(budget)
    isolation.record(batch, Bad("whole"))
    while (part := isolation.next_child(elapsed_ms=0)) is not None:
        if bad.isdisjoint(offsets(part)):
            processed += offsets(part)
            isolation.record(part, None)
        else:
            isolation.record(part, Bad(str(part)))
    return isolation.result, processed


@given(ranges)
def test_halves_are_the_whole_in_order_and_even(batch: Ranges) -> None:
    first, second = halves(batch)
    assert offsets(first) + offsets(second) == offsets(batch)
    assert 0 <= len(offsets(first)) - len(offsets(second)) <= 1


@given(ranges, st.data())
def test_exactly_the_bad_records_stand_alone_and_the_rest_is_processed_once(
    batch: Ranges, data: st.DataObject
) -> None:
    everything = offsets(batch)
    bad = data.draw(st.sets(st.sampled_from(everything), min_size=1))
    result, processed = isolate(batch, bad, IsolationBudget(max_runs=10_000))
    assert {(r.partition, r.start) for r, _ in result.alone} == bad
    assert all(r.count == 1 for r, _ in result.alone)
    assert sorted(processed) == sorted(set(everything) - bad)
    assert result.left == []


@pytest.mark.parametrize(("records", "bad"), [(1_000, 1), (100_000, 3), (1_000_000, 5)])
def test_the_runs_stay_near_2_k_log2_n(records: int, bad: int) -> None:
    batch = (OffsetRange("orders", 0, 0, records),)
    where = {int(records * (i + 0.37) / bad) for i in range(bad)}
    isolation: Isolation[Bad] = Isolation(IsolationBudget(max_runs=10_000))
    isolation.record(batch, Bad("whole"))
    while (part := isolation.next_child(0)) is not None:
        failed = any(part[0].start <= offset < part[0].until for offset in where)
        isolation.record(part, Bad("part") if failed else None)
    assert len(isolation.result.alone) == bad
    assert isolation.result.runs <= 2 * bad * math.ceil(math.log2(records))


@given(ranges, st.integers(1, 20), st.data())
def test_what_the_budget_leaves_is_accounted_for(
    batch: Ranges, runs: int, data: st.DataObject
) -> None:
    everything = offsets(batch)
    bad = data.draw(st.sets(st.sampled_from(everything), min_size=1))
    result, processed = isolate(batch, bad, IsolationBudget(max_runs=runs))
    left = [where for part, _ in result.left for where in offsets(part)]
    alone = [(r.partition, r.start) for r, _ in result.alone]
    assert result.runs <= runs
    assert sorted(processed + left + alone) == sorted(everything)


def test_time_ends_it_too() -> None:
    batch = (OffsetRange("orders", 0, 0, 8),)
    isolation: Isolation[Bad] = Isolation(IsolationBudget(max_time_ms=100))
    isolation.record(batch, Bad("whole"))
    assert isolation.next_child(elapsed_ms=99) is not None
    assert isolation.next_child(elapsed_ms=100) is None
    assert [offsets(part) for part, _ in isolation.result.left] == [[(0, n) for n in range(4, 8)]]


def test_parts_that_were_not_run_any_more_are_run_before_they_are_halved() -> None:
    parts = [(OffsetRange("orders", 0, n, n + 2),) for n in (0, 2)]
    isolation = Isolation(IsolationBudget(), [(part, Bad("whole")) for part in parts])
    assert isolation.next_child(0) == parts[0]
    isolation.record(parts[0], Bad("part"))
    assert [isolation.next_child(0) for _ in range(4)] == [
        (OffsetRange("orders", 0, 0, 1),),
        (OffsetRange("orders", 0, 1, 2),),
        parts[1],
        None,
    ]


def test_a_batch_of_one_record_stands_alone_at_once() -> None:
    isolation: Isolation[Bad] = Isolation(IsolationBudget())
    isolation.record((OffsetRange("orders", 0, 7, 8),), Bad("it"))
    assert isolation.next_child(0) is None
    assert [(str(r), str(error)) for r, error in isolation.result.alone] == [
        ("orders-0 [7, 8)", "it")
    ]


@pytest.mark.parametrize("wrong", [{"max_runs": 0}, {"max_time_ms": 0}])
def test_a_budget_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=r"isolate's max_.* must be"):
        IsolationBudget(**wrong)
