import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.parts import cut_out
from headrace.control.record_form import MAX_FORMS, MAX_HINTS, BadForms, Place, form_of
from headrace.core.ranges import OffsetRange


def batch(count: int, *bad: int) -> dict[Place, str]:
    return {("orders", 0, n): "bad" if n in bad else "good" for n in range(count)}


def at(*places: int) -> list[Place]:
    return [("orders", 0, n) for n in places]


@pytest.mark.parametrize(
    ("value", "form"),
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
def test_the_form_of_a_value(value: bytes | None, form: str) -> None:
    assert form_of(value) == form


@given(st.binary())
def test_every_value_has_a_form(value: bytes) -> None:
    assert form_of(value)


@given(st.dictionaries(st.text(), st.integers()), st.integers())
def test_content_changes_no_form(row: dict[str, int], other: int) -> None:
    same = json.dumps(dict.fromkeys(row, other)).encode()
    assert form_of(json.dumps(row).encode()) == form_of(same)


def test_records_of_a_form_that_was_convicted_are_looked_at_first() -> None:
    bad = BadForms()
    assert bad.hints(batch(100, 3)) == []
    bad.learn(batch(100, 3), at(3), [])
    assert bad.hints(batch(100, 40, 41)) == [OffsetRange("orders", 0, n, n + 1) for n in (40, 41)]


def test_a_form_that_has_passed_is_not() -> None:
    bad = BadForms()
    bad.learn(batch(100, 3, 4), at(3), [])
    assert not bad
    bad.learn(batch(100, 3, 4), at(3), unknown=at(4))
    assert len(bad.hints(batch(100, 40))) == 1
    bad.learn(batch(100, 40), [], [])
    assert not bad


@pytest.mark.parametrize(("records", "number"), [(5, 1), (100, 11), (10_000, 40), (10_000, 32)])
def test_only_a_few_records_are(records: int, number: int) -> None:
    bad = BadForms()
    bad.learn(batch(100, 3), at(3), [])
    hints = bad.hints(batch(records, *range(number)))
    assert len(hints) == (number if number <= MAX_HINTS and number * 10 < records else 0)


def test_the_oldest_form_goes_first() -> None:
    bad, place = BadForms(), ("orders", 0, 0)
    for n in range(3 * MAX_FORMS):
        bad.learn({place: f"bad {n}"}, [place], [])
    many = {("orders", 1, n): "good" for n in range(100)}
    assert bad.hints({**many, place: f"bad {2 * MAX_FORMS}"})
    assert not bad.hints({**many, place: f"bad {2 * MAX_FORMS - 1}"})


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
