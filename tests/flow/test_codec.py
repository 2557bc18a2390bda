"""Signals and states as text: what is written comes back; and who the bottleneck is by them."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flow.samples import a_signal, state_of_stage

from headrace.errors import OptionError
from headrace.flow import StageState
from headrace.flow.signal_codec import MAX_BYTES, bottlenecks, decode_signal, decode_state, encode
from headrace.gate.control.pressure import MAX_LEASE_MS, MAX_LEVEL, Epoch, PressureSignal

names = st.from_regex(r"(?!\.+$)[A-Za-z0-9._-]{1,100}", fullmatch=True)
wholes = st.integers(0, 2**63 - 1)
levels = st.floats(0, MAX_LEVEL) | st.integers(0, MAX_LEVEL)
leases = st.integers(1, MAX_LEASE_MS)
signals = st.builds(
    PressureSignal, names, names, names, st.builds(Epoch, wholes, names), wholes, levels, leases
)
free = st.builds(
    StageState, names, names, st.none(), st.just(0), st.none(), st.none() | wholes, leases
)
throttled = st.builds(
    StageState,
    names,
    names,
    names,
    st.floats(0, MAX_LEVEL, exclude_min=True),
    st.none() | st.floats(0, allow_infinity=False),
    st.none() | wholes,
    leases,
)


@given(signals)
def test_a_signal_comes_back_from_its_text(signal: PressureSignal) -> None:
    text = encode(signal)
    assert decode_signal(text) == decode_signal(text.encode()) == signal
    assert text.isascii()
    assert len(text) <= MAX_BYTES


@given(free | throttled)
def test_a_state_comes_back_from_its_text(state: StageState) -> None:
    assert decode_state(encode(state)) == state


def changed(**values: Any) -> str:
    return json.dumps(asdict(a_signal()) | values)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param("null", id="no object"),
        pytest.param("[]", id="a list"),
        pytest.param("[" * MAX_BYTES, id="brackets without end"),
        pytest.param("{}", id="an empty object"),
        pytest.param(changed(more=1), id="a field too many"),
        pytest.param(changed() + " x", id="something after it"),
        pytest.param(changed().replace('"level"', '"flow"'), id="a field twice"),
        pytest.param(changed().replace('"level": 1', '"level": NaN'), id="NaN"),
        pytest.param(changed().replace('"level": 1', '"level": Infinity'), id="infinity"),
        pytest.param(changed().replace('"level": 1', '"level": 1e999'), id="infinity in digits"),
        pytest.param(changed(level=10**3_000), id="a number of 3000 digits"),
        pytest.param(changed(level=MAX_LEVEL + 1), id="a level too high"),
        pytest.param(changed(level=-1), id="a level below 0"),
        pytest.param(changed(level=True), id="a level that is no number"),
        pytest.param(changed(level="1"), id="a level in quotes"),
        pytest.param(changed(sequence=1.5), id="a sequence that is not whole"),
        pytest.param(changed(sequence=2**63), id="a sequence beyond 64 bits"),
        pytest.param(changed(lease_ms=0), id="no lease"),
        pytest.param(changed(lease_ms=MAX_LEASE_MS + 1), id="a lease too long"),
        pytest.param(changed(sender="b/c"), id="a name with a slash"),
        pytest.param(changed(sender="é"), id="a name with an accent"),
        pytest.param(changed(sender=["b"]), id="a name that is a list"),
        pytest.param(changed(epoch=None), id="no epoch"),
        pytest.param(changed(epoch={"started_ms": 1}), id="half an epoch"),
        pytest.param(changed(sender="b" * MAX_BYTES), id="too long"),
        pytest.param(encode(state_of_stage("b")), id="a state"),
    ],
)
def test_what_is_no_signal_is_refused_with_one_sentence(text: str | bytes) -> None:
    with pytest.raises(OptionError, match=r"^[A-Z][^\n]*\.$"):
        decode_signal(text)


@given(st.binary(max_size=200) | st.text().map(lambda text: json.dumps(text).encode()))
def test_any_bytes_are_refused(data: bytes) -> None:
    for read in (decode_signal, decode_state):
        with pytest.raises(OptionError):
            read(data)


@pytest.mark.parametrize(
    "values",
    [
        {"throttled_by": "b"},
        {"throttle_level": 1},
        {"rate_limit_per_s": 5.0},
        {"throttled_by": "b", "throttle_level": 1, "rate_limit_per_s": -1.0},
        {"throttled_by": "b", "throttle_level": 1, "rate_limit_per_s": float("inf")},
        {"throttled_by": "b", "throttle_level": 1, "rate_limit_per_s": True},
        {"throttled_by": "b c", "throttle_level": 1},
        {"queue_bytes": -1},
        {"queue_bytes": 1.5},
        {"lease_ms": 0},
        {"lease_ms": MAX_LEASE_MS + 1},
        {"stage": ""},
        {"flow": None},
    ],
)
def test_a_state_that_contradicts_itself_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        StageState(**(asdict(state_of_stage("a")) | values))


@pytest.mark.parametrize(
    ("throttled_by", "blamed"),
    [
        ({}, []),
        ({"a": None, "b": None}, []),
        ({"a": "b", "c": None}, []),  # b does not run
        ({"a": "b", "b": "c", "c": None, "d": "e", "e": None}, ["c", "e"]),
    ],
)
def test_every_stage_at_the_end_of_a_row_of_throttled_ones_is_to_blame(
    throttled_by: dict[str, str | None], blamed: list[str]
) -> None:
    assert bottlenecks(state_of_stage(*each) for each in throttled_by.items()) == blamed
