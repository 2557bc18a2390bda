import math
from collections import Counter
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.gate.source.readers import RECORDS_WORTH_A_TASK, pack

counts = st.lists(st.integers(0, 200_000), max_size=40)


def ranges_of(sizes: Sequence[int]) -> list[OffsetRange]:
    return [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(sizes)]


def offsets(ranges: Sequence[OffsetRange]) -> dict[int, int]:
    """Count the offsets of each partition; assert that its parts lie end to end."""
    found: dict[int, int] = {}
    for r in sorted(ranges):
        assert r.start == 7 + found.get(r.partition, 0)
        found[r.partition] = found.get(r.partition, 0) + r.count
    return found


@given(
    counts,
    st.integers(1, 16),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1_000, 90_000),
)
def test_every_offset_is_in_exactly_one_task(
    sizes: list[int], parallelism: int, least: int | None, most: int | None
) -> None:
    tasks = pack(
        ranges_of(sizes), parallelism, min_partitions=least, max_records_per_partition=most
    )
    expected = {number: size for number, size in enumerate(sizes) if size}
    assert offsets([r for task in tasks for r in task]) == expected
    assert all(task for task in tasks)


@given(counts, st.integers(1, 16))
def test_small_ranges_share_tasks_and_no_more_than_the_cluster_runs_at_once(
    sizes: list[int], parallelism: int
) -> None:
    tasks = pack(ranges_of(sizes), parallelism)
    held = [size for size in sizes if size]
    if sum(held) <= parallelism * RECORDS_WORTH_A_TASK:
        assert len(tasks) == min(len(held), parallelism)
    else:
        assert len(tasks) >= min(len(held), parallelism)


@given(counts, st.integers(1, 16))
def test_no_task_has_twice_the_load_that_a_fair_share_and_the_largest_range_make(
    sizes: list[int], parallelism: int
) -> None:
    tasks = pack(ranges_of(sizes), parallelism)
    loads = [sum(r.count for r in task) for task in tasks]
    if loads:
        assert max(loads) <= sum(sizes) / len(tasks) + max(sizes)
        assert loads == sorted(loads, reverse=True)


def native_counts(sizes: Sequence[int], least: int | None, most: int | None) -> dict[int, int]:
    """Count the tasks that Spark's own connector makes of each partition, by its documented rule.

    Each partition makes as many as hold ``most`` records each. If that is fewer than ``least``,
    each of those is given its rounded share of ``least``: in a first round all of them, in a second
    one only partitions of which nothing came to one task in the first, among the places left.
    """
    per_task = [
        (number, part)
        for number, size in enumerate(sizes)
        if size
        for part in shared_out(size, 1 if most is None else Decimal(size) / most)
    ]
    if least is None or least <= len(per_task):
        return Counter(number for number, _ in per_task)
    first = [rounded(Decimal(size) * least / sum(s for _, s in per_task)) for _, size in per_task]
    alone = [each for each, tasks in zip(per_task, first, strict=True) if tasks <= 1]
    places = max(least - len(alone), 1)
    left = sum(s for _, s in per_task) - sum(s for _, s in alone)
    settled = {number for number, _ in alone}
    made = Counter[int]()
    for number, size in per_task:
        tasks = 1 if number in settled else max(rounded(Decimal(size) * places / left), 1)
        made[number] += min(tasks, size)
    return made


def shared_out(size: int, tasks: Decimal | int) -> list[int]:
    """A partition in so many tasks, rounded up, none of which differs by more than a record."""
    count = math.ceil(tasks)
    return [size // count + (number < size % count) for number in range(count)]


def rounded(number: Decimal) -> int:
    return int(number.quantize(Decimal(1), ROUND_HALF_UP))


few = st.lists(st.integers(0, 2_000), max_size=12)


@given(few, st.none() | st.integers(1, 60), st.none() | st.integers(1, 900))
@example([200, 200, 200, 200], None, 50)
@example([7, 3, 1_000], 10, None)
@example([1, 1], 1_000, None)
def test_both_options_make_as_many_tasks_as_the_native_connector(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    assume(least is not None or most is not None)
    tasks = pack(ranges_of(sizes), 2, min_partitions=least, max_records_per_partition=most)
    assert all(len(task) == 1 for task in tasks)
    assert Counter(r.partition for (r,) in tasks) == native_counts(sizes, least, most)


@given(counts, st.integers(1_000, 90_000))
def test_max_records_per_partition_bounds_each_task(sizes: list[int], most: int) -> None:
    tasks = pack(ranges_of(sizes), 2, max_records_per_partition=most)
    assert all(r.count <= most for task in tasks for r in task)


def test_one_large_partition_is_split_evenly() -> None:
    tasks = pack([OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 3)], 2, min_partitions=5)
    assert sorted(r.count for (r,) in tasks) == [3, 25, 25, 25, 25]


def test_nothing_to_read_is_no_task() -> None:
    assert pack([OffsetRange("t", 0, 5, 5)], 2, min_partitions=4) == []
