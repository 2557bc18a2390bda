"""What Arrow's parser is trusted to say of lines: only that they are JSON, and never wrongly."""

import json
import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.receivers.json_text import WORTH_ARROW_BYTES, MalformedError, are_objects, check_lines

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('{}[]",:\\ \r\t\x00é𝄞aN', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
objects = st.lists(st.dictionaries(st.text(max_size=2), values, max_size=4), min_size=1, max_size=6)


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


def _refuse(constant: str) -> float:
    raise ValueError(constant)
