"""JSON as it came: what is taken apart is what a parser of JSON finds, byte for byte."""

import json
import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.receivers.json_text import (
    WORTH_ARROW_BYTES,
    MalformedError,
    are_objects,
    check_lines,
    values_of,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
spaces = st.text(" \t\r\n", max_size=3)


@given(st.lists(values, max_size=6), spaces)
def test_an_array_gives_its_elements_as_they_were_written(
    elements: list[object], space: str
) -> None:
    texts = [json.dumps(element) for element in elements]
    body = f"{space}[{space}" + f"{space},{space}".join(texts) + f"{space}]{space}"

    assert values_of(body.encode()) == [text.encode() for text in texts]


@given(values.filter(lambda value: not isinstance(value, list)), spaces)
def test_what_is_no_array_is_one_value(value: object, space: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert values_of(f"{space}{text}{space}".encode(errors="replace")) == [
        text.encode(errors="replace")
    ]


def test_numbers_and_names_stay_as_they_were_written() -> None:
    body = b'[1.10, 123456789012345678901234567890, {"b":1,"a":2,"a":3}, "\\u00e9"]'
    assert values_of(body) == [
        b"1.10",
        b"123456789012345678901234567890",
        b'{"b":1,"a":2,"a":3}',
        b'"\\u00e9"',
    ]


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1]2", b"{} {}", b"nil",
     b"{'a':1}", b"[NaN]", b"-Infinity", b"\xff", b'"\x00"', b"[" * 100_000, b'{"a":' * 100_000],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError, match="JSON"):
        values_of(body)


@given(st.lists(st.one_of(values.map(json.dumps), st.text(max_size=5)), max_size=8))
def test_lines_are_checked_as_a_parser_of_json_does(lines: list[str]) -> None:
    lines = [line.replace("\n", " ") for line in lines]
    data = "\n".join(lines).encode(errors="replace") + b"\n"
    wrong = None
    for place, line in enumerate(data.split(b"\n")[:-1]):
        try:
            json.loads(line.decode(), parse_constant=_refuse)
        except ValueError:
            wrong = place
            break

    if wrong is None:
        check_lines(data)
        return
    with pytest.raises(MalformedError, match=f"^Line {wrong + 7} is not JSON") as caught:
        check_lines(data, first=7)
    assert caught.value.place == wrong


def test_the_last_line_may_lack_its_end_and_lines_may_end_as_on_windows() -> None:
    check_lines(b'{"a":1}\r\n{"b":2}')


def test_no_two_lines_make_one_value_together() -> None:
    with pytest.raises(MalformedError, match=r"^Line 1 "):
        check_lines(b"[1,\n2]\n")
    with pytest.raises(MalformedError, match=r"^Line 2 "):
        check_lines(b"1\n2,3\n")


def _refuse(constant: str) -> float:
    raise ValueError(constant)


tricky_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('{}[]",:\\ \r\t\x00é𝄞aN', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
objects = st.lists(
    st.dictionaries(st.text(max_size=2), tricky_values, max_size=4), min_size=1, max_size=6
)


def lines_of(found: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in found)


@given(objects)
def test_objects_are_known_as_such(found: list[dict[str, object]]) -> None:
    assume(not re.search(b"NaN|Inf", lines_of(found)))
    assert are_objects(lines_of(found))
    assert are_objects(lines_of(found)[:-1])


@settings(max_examples=100)
@given(
    objects,
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(0, 2),
            st.sampled_from(b'{}[]",:\n\r\\0-1.eE\x00\xffN '),
        ),
        min_size=1,
        max_size=4,
    ),
)
@example([{"a": {}}, {"a": {}}], [(9, 1, ord("{"))])
def test_of_damaged_lines_none_is_taken_that_is_no_json(
    found: list[dict[str, object]], damages: list[tuple[int, int, int]]
) -> None:
    data = lines_of(found)
    for place, removed, added in damages:
        data = data[:place] + bytes([added]) + data[place + removed :]
    if are_objects(data):
        for line in data.removesuffix(b"\n").split(b"\n"):
            assert isinstance(json.loads(line.decode(), parse_constant=_refuse), dict)


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}\n\n", b"[1]\n", b'{"a":1}{"b":2}\n', b'{"a":\n1}{}\n',
     b'{"a":{}\n,"b":{}}{}\n', b'{"a":"}\n{"}\n', b'{"a":[{}\n{}]}\n', b'{"a":NaN}\n',
     b'{"a":-Infinity}\n', b'{"a":1}\x00}\n', b'{"a":"\xff"}\n', b'{"a":"\x01"}\n',
     b'{"a":01}\n', b"{'a':1}\n", b'{"a":1,}\n', b'{"a":1}//}\n'],
)  # fmt: skip
def test_what_is_no_json_or_no_object_is_not_known(data: bytes) -> None:
    assert not are_objects(data)


def test_many_lines_are_checked_as_a_few_are() -> None:
    data = b'{"a":1}\n' * WORTH_ARROW_BYTES
    check_lines(data)
    check_lines(data + b"[2]\n3")
    with pytest.raises(
        MalformedError, match=rf"^Line {WORTH_ARROW_BYTES + 2} is not JSON"
    ) as caught:
        check_lines(data + b"[2]\n{3}\n" + data)
    assert caught.value.place == WORTH_ARROW_BYTES + 1
