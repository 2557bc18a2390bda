"""JSON as it came: what is taken apart is what a parser of JSON finds, byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.journal.receivers.json_text import (
    COMMAS_PER_RECORD,
    MAX_DIGITS,
    MalformedError,
    TooManyError,
    check_lines,
    ids_of_lines,
    values_of,
)

MANY = 100_000


def written(body: bytes) -> list[bytes]:
    """The values of a body as bytes."""
    return list(map(bytes, values_of(body, MANY)))


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

    assert written(body.encode()) == [text.encode() for text in texts]


@given(values.filter(lambda value: not isinstance(value, list)), spaces)
def test_what_is_no_array_is_one_value(value: object, space: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert written(f"{space}{text}{space}".encode(errors="replace")) == [
        text.encode(errors="replace")
    ]


def test_numbers_and_names_stay_as_they_were_written() -> None:
    body = b'[1.10, 123456789012345678901234567890, {"b":1,"a":2,"a":3}, "\\u00e9"]'
    assert written(body) == [
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
        values_of(body, MANY)


@pytest.mark.parametrize("body", [b'{"a":1}\n{"b":2}\n', b"1\n2", b"[1]\n[2]\n"])
def test_several_values_in_one_body_are_told_how_to_be_sent(body: bytes) -> None:
    check_lines(body)
    with pytest.raises(MalformedError, match="several values in an array, or as application/x-nd"):
        values_of(body, MANY)


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
def test_objects_are_taken_with_and_without_the_last_end(found: list[dict[str, object]]) -> None:
    check_lines(lines_of(found))
    check_lines(lines_of(found)[:-1])


@examples(100)
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
    try:
        check_lines(data)
    except MalformedError:
        return
    for line in data.removesuffix(b"\n").split(b"\n"):
        json.loads(line.decode(), parse_constant=_refuse)


@pytest.mark.parametrize(
    "data",
    [b"\n", b"{}\n\n", b'{"a":1}{"b":2}\n', b'{"a":\n1}{}\n', b'{"a":{}\n,"b":{}}{}\n',
     b'{"a":"}\n{"}\n', b'{"a":[{}\n{}]}\n', b'{"a":NaN}\n', b'{"a":-Infinity}\n',
     b'{"a":1}\x00}\n', b'{"a":"\xff"}\n', b'{"a":"\x01"}\n', b'{"a":01}\n', b"{'a':1}\n",
     b'{"a":1,}\n', b'{"a":1}//}\n', b'{"a":"\\ud800"}\n', b"{}" * 2 + b"\n{\n}\n"],
)  # fmt: skip
def test_lines_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="is not JSON"):
        check_lines(data)


def test_many_lines_are_checked_as_a_few_are() -> None:
    data = b'{"a":1}\n' * 10_000
    check_lines(data)
    check_lines(data + b"[2]\n3")
    with pytest.raises(MalformedError, match=r"^Line 10002 is not JSON") as caught:
        check_lines(data + b"[2]\n{3}\n" + data)
    assert caught.value.place == 10_001


@pytest.mark.parametrize("around", [b"%b", b"[1,%b]", b'{"a":-%b}', b'["%b\\"",%b]'])
def test_an_integer_is_refused_from_4301_digits_on_but_not_in_a_string(around: bytes) -> None:
    def body(number: bytes) -> bytes:
        return around.replace(b"%b", number)

    values_of(body(b"7" * MAX_DIGITS), MANY)
    check_lines(body(b"0." + b"7" * 9_000))
    check_lines(b'{"a":"%b"}' % (b"7" * 9_000))
    for check in (check_lines, lambda data: values_of(data, MANY)):
        with pytest.raises(MalformedError, match="an integer of 4301 digits, but 4300 are allowed"):
            check(body(b"7" * (MAX_DIGITS + 1)))


@pytest.mark.parametrize("value", [b"1", b"[1]"])
def test_a_single_value_does_not_keep_the_space_around_it(value: bytes) -> None:
    body: Any = bytearray(b" " * 1_000 + value)
    (found,) = values_of(body, MANY)
    body.clear()  # an error while something has a view of it
    assert bytes(found) == b"1"


def test_an_array_with_more_elements_than_are_allowed_is_refused() -> None:
    assert len(values_of(b"[1,2,3]", 3)) == 3
    with pytest.raises(TooManyError, match="4 elements, but a request may have 3"):
        values_of(b"[1,2,3,4]", 3)
    # Before anything is built, where there are many more, in whatever they are.
    commas = COMMAS_PER_RECORD * 3
    assert values_of(b"[[1" + b",1" * (commas - 1) + b"]]", 3)
    with pytest.raises(TooManyError, match="24 commas or more"):
        values_of(b"[[1" + b",1" * commas + b"]]", 3)


def test_the_ids_of_lines_are_what_a_field_says() -> None:
    data = b'{"n":1,"id":"a"}\n{"id":17}\r\n{"id":"\\u00e9","x":[{"id":2}]}'
    assert ids_of_lines(data, "id") == ["a", "17", "\u00e9"]
    assert ids_of_lines(data.replace(b'"id"', b'"event key"'), "event key") == ["a", "17", "\u00e9"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (
            b'{"n":1}',
            "has no message id: it must be a JSON object whose field 'id' is a text of 1 to",
        ),
        (b'{"id":null}', "has no message id"),
        (b'{"id":""}', "has no message id"),
        (b'{"id":"' + b"x" * 201 + b'"}', "has no message id"),
        (b'{"id":"a\\u0000"}', "has no message id"),
        (b'{"id":1.5}', "has no message id"),
        (b"[1]", "has no message id"),
        (b'{"id":' + b"7" * 5_000 + b"}", "has no message id"),
        (b'{"id":1', "is not JSON"),
    ],
)
def test_a_line_without_a_usable_id_is_refused_with_its_number(line: bytes, wrong: str) -> None:
    with pytest.raises(MalformedError, match=f"^Line 9 .*({wrong})") as caught:
        ids_of_lines(b'{"id":1}\n{"id":2}\n' + line + b'\n{"id":4}\n', "id", first=7)
    assert (caught.value.place, caught.value.ids) == (2, ["1", "2"])
