"""JSON as it came: what is taken apart is what a parser of JSON finds, byte for byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.receivers.json_text import MalformedError, check_lines, values_of

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
def test_an_array_is_taken_apart_into_what_stands_in_it(elements: list[object], space: str) -> None:
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
