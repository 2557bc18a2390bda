import subprocess
import sys
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.ledger import schedule_id

offset_ranges = st.builds(
    lambda topic, partition, start, count: OffsetRange(topic, partition, start, start + count),
    st.text(max_size=5),
    st.integers(0, 3),
    st.integers(0, 2**62),
    st.integers(0, 3),
)


@given(st.lists(offset_ranges, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_the_ranges_makes_no_difference(
    ranges: list[OffsetRange], random: Random
) -> None:
    shuffled = list(ranges)
    random.shuffle(shuffled)
    assert schedule_id("g", "r", shuffled) == schedule_id("g", "r", ranges)


@given(st.lists(offset_ranges), st.lists(st.integers(0, 2**62)))
def test_empty_ranges_are_as_if_they_were_not_there(
    ranges: list[OffsetRange], positions: list[int]
) -> None:
    empty = [OffsetRange("t", 0, position, position) for position in positions]
    assert schedule_id("g", "r", ranges + empty) == schedule_id("g", "r", ranges)


@given(st.sets(offset_ranges), st.sets(offset_ranges))
def test_two_batches_have_one_id_only_if_they_read_the_same_offsets(
    some: set[OffsetRange], others: set[OffsetRange]
) -> None:
    same_offsets = {r for r in some if r.count} == {r for r in others if r.count}
    assert (schedule_id("g", "r", some) == schedule_id("g", "r", others)) == same_offsets


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_gates_and_runs_are_told_apart(one: tuple[str, str], other: tuple[str, str]) -> None:
    ranges = [OffsetRange("t", 0, 0, 1)]
    assert (schedule_id(*one, ranges) == schedule_id(*other, ranges)) == (one == other)


def test_a_topic_that_was_made_anew_has_other_batches_of_the_same_offsets() -> None:
    ranges = [OffsetRange("orders", 0, 0, 9), OffsetRange("clicks", 0, 0, 9)]

    def with_ids(**topic_ids: str) -> str:
        return schedule_id("g", "r", ranges, topic_ids)

    assert with_ids(orders="1") != with_ids(orders="2")
    assert len({with_ids(), with_ids(orders="1"), with_ids(clicks="1")}) == 3
    assert with_ids(orders="1", unread="3") == with_ids(orders="1")


def test_the_id_is_the_same_in_every_process_and_version() -> None:
    # The beginning of the SHA-256 of ["orders","run",[["orders",0,10,20]]].
    known = "df10f41d56d43a69259e8831d5fe4b63"
    assert schedule_id("orders", "run", [OffsetRange("orders", 0, 10, 20)]) == known
    code = (
        "from headrace.ledger import schedule_id; from headrace.core.ranges import OffsetRange;"
        "print(schedule_id('orders', 'run', [OffsetRange('orders', 0, 10, 20)]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == known
