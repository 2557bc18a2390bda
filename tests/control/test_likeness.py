import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.likeness import (
    MAX_ACCUSED,
    MAX_LEARNT,
    FailureKind,
    Learnt,
    Place,
    kind_of,
    likeness_of,
)
from headrace.control.parts import cut_out
from headrace.core.ranges import OffsetRange

BAD: FailureKind = ("ValueError", "bad")


def batch(count: int, *bad: int) -> dict[Place, str]:
    return {("orders", 0, n): "bad" if n in bad else "good" for n in range(count)}


def at(*places: int) -> dict[Place, FailureKind]:
    return {("orders", 0, n): BAD for n in places}


@pytest.mark.parametrize(
    ("value", "likeness"),
    [
        (None, "null"),
        (b"", "empty"),
        (b"\x00\x00\x00\x01\x00tail", "schema 256"),
        (b"\x00\x00", "not JSON"),
        (b"oops", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[1]", "list"),
        (b'{"b": 1.5, "a": "x"}', "a:str,b:float"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_the_form_of_a_value(value: bytes | None, likeness: str) -> None:
    assert likeness_of(value) == likeness


@given(st.binary())
def test_every_value_has_a_form(value: bytes) -> None:
    assert likeness_of(value)


@given(st.dictionaries(st.text(), st.integers()), st.integers())
def test_content_changes_no_form(row: dict[str, int], other: int) -> None:
    same = json.dumps(dict.fromkeys(row, other)).encode()
    assert likeness_of(json.dumps(row).encode()) == likeness_of(same)


@given(st.integers(), st.text(alphabet="abc"))
def test_numbers_and_quoted_parts_change_no_kind(number: int, text: str) -> None:
    message = f"line {abs(number)}: '{text}' is bad"
    assert kind_of("E", message) == kind_of("E", "line 1: 'x' is bad")


def test_what_was_convicted_is_accused_when_a_batch_fails_in_the_same_way() -> None:
    learnt = Learnt()
    assert learnt.accused(BAD, batch(100, 3)) == []
    learnt.learn(batch(100, 3), at(3))
    assert learnt.accused(BAD, batch(100, 40, 41)) == [
        OffsetRange("orders", 0, n, n + 1) for n in (40, 41)
    ]
    assert learnt.accused(("OSError", "away"), batch(100, 40)) == []


def test_a_form_that_has_passed_is_not_accused() -> None:
    learnt = Learnt()
    learnt.learn(batch(100, 3, 4), at(3))
    assert learnt.accused(BAD, batch(100, 40)) == []
    learnt.learn(batch(100, 3, 4), at(3), unknown=[("orders", 0, 4)])
    assert len(learnt.accused(BAD, batch(100, 40))) == 1
    learnt.learn(batch(100, 40), {})
    assert learnt.accused(BAD, batch(100, 40)) == []


@given(st.integers(1, 500), st.integers(1, 100))
def test_only_a_few_records_are_accused(records: int, bad: int) -> None:
    learnt = Learnt()
    learnt.learn(batch(100, 3), at(3))
    accused = learnt.accused(BAD, batch(records, *range(min(bad, records))))
    assert len(accused) <= MAX_ACCUSED
    assert len(accused) * 10 < records


def test_what_is_remembered_is_bounded() -> None:
    learnt = Learnt()
    for n in range(3 * MAX_LEARNT):
        learnt.learn({("orders", 0, 0): f"bad {n}"}, {("orders", 0, 0): ("E", str(n))})
    assert len(learnt.kinds) == MAX_LEARNT
    assert ("E", str(3 * MAX_LEARNT - 1)) in learnt.kinds


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=4), st.data()
)
def test_what_is_left_is_the_rest_in_one_range_of_each_partition(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    ranges = [OffsetRange("a", n, start, start + size) for n, (start, size) in enumerate(rows)]
    everything = [(r.partition, n) for r in ranges for n in range(r.start, r.until)]
    out = data.draw(st.sets(st.sampled_from(everything)))
    parts = cut_out(ranges, [OffsetRange("a", where, n, n + 1) for where, n in out])
    left = [(r.partition, n) for part in parts for r in part for n in range(r.start, r.until)]
    assert sorted(left) == sorted(set(everything) - out)
    assert all(len({r.partition for r in part}) == len(part) > 0 for part in parts)
