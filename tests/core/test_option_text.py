import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import options
from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError

partitions = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True),
    st.dictionaries(st.integers(0, 99).map(str), st.integers(-2, 2**62), max_size=4),
    max_size=4,
)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1 second", 1_000),
        ("500 ms", 500),
        ("500 milliseconds", 500),
        ("15m", 900_000),
        ("1 minute 30 seconds", 90_000),
        ("interval 2 seconds", 2_000),
        (" 10S ", 10_000),
        ("2 hours", 7_200_000),
        ("1d", 86_400_000),
        ("250", 250),
    ],
)
def test_a_duration_is_read_as_spark_writes_it(text: str, expected_ms: int) -> None:
    assert options.duration_ms("headrace.interval", text) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "-1 s", "1.5 s", "1 fortnight", "s", "1 s soon", "٣"])
def test_what_is_no_duration_is_refused_with_its_name_and_value(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        options.duration_ms("headrace.interval", text)
    assert "headrace.interval" in str(refused.value)
    assert repr(text) in str(refused.value)


@given(st.integers(0, 10**12), st.sampled_from(["ms", " milliseconds"]))
def test_milliseconds_stay_what_they_are(number: int, unit: str) -> None:
    assert options.duration_ms("interval", f"{number}{unit}") == number


@pytest.mark.parametrize(("text", "expected"), [("true", True), (" FALSE ", False)])
def test_a_boolean_is_read_in_any_case(text: str, expected: bool) -> None:
    assert options.boolean("failOnDataLoss", text) is expected


@pytest.mark.parametrize("text", ["", "yes", "1", "truth"])
def test_what_is_no_boolean_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"failOnDataLoss is .*; it must be true or false"):
        options.boolean("failOnDataLoss", text)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "many", "1e3"])
def test_a_whole_number_below_the_smallest_or_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"minPartitions is .* whole number of 1 or more"):
        options.whole_number("minPartitions", text, at_least=1)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "ten"])
def test_a_number_that_is_not_finite_or_below_zero_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"backpressure.initialRate is .*above 0"):
        options.number("backpressure.initialRate", text, above_zero=True)


def test_zero_is_allowed_where_it_has_a_meaning() -> None:
    assert options.number("maxRatePerPartition", "0", above_zero=False) == 0
    with pytest.raises(OptionError, match=r"above 0"):
        options.number("backpressure.initialRate", "0", above_zero=True)


@given(partitions)
def test_offsets_by_partition_are_read_as_kafkas_json(topics: dict[str, dict[str, int]]) -> None:
    found = options.offsets_by_partition("startingOffsets", json.dumps(topics))
    expected = {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in topics.items()
        for partition, offset in offsets.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": 1.5}}',
     '{"a": {"0": true}}', '{"a": [0]}'],
)  # fmt: skip
def test_json_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets is .* it must be JSON"):
        options.offsets_by_partition("startingOffsets", text)


def test_partitions_are_read_by_topic() -> None:
    found = options.partitions_by_topic("assign", '{"a": [0, 2], "b": [1]}')
    assert found == [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"a": []}', '{"a": 0}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": [true]}']
)
def test_partitions_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"assign is .* it must be JSON with the partitions"):
        options.partitions_by_topic("assign", text)


def _whole(option: str, text: str) -> int:
    return options.whole_number(option, text, at_least=1)


def test_one_number_holds_for_all_partitions() -> None:
    assert options.number_by_partition("minRatePerPartition", "7", _whole, 1) == (7, {})


def test_some_partitions_have_a_number_of_their_own() -> None:
    text = '{"default": 5, "orders": {"0": 9}}'
    found = options.number_by_partition("minRatePerPartition", text, _whole, 1)
    assert found == (5, {TopicPartition("orders", 0): 9})


def test_without_a_default_the_rest_keeps_the_option_s_own() -> None:
    found = options.number_by_partition("minRatePerPartition", '{"orders": {"0": 9}}', _whole, 1)
    assert found == (1, {TopicPartition("orders", 0): 9})


def test_a_topic_may_be_called_default() -> None:
    found = options.number_by_partition("minRatePerPartition", '{"default": {"3": 9}}', _whole, 1)
    assert found == (1, {TopicPartition("default", 3): 9})


@pytest.mark.parametrize("text", ['{"orders": 5}', '{"orders": {"x": 5}}', "{", '{"default": null'])
def test_numbers_by_partition_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"minRatePerPartition is .* a number, or JSON"):
        options.number_by_partition("minRatePerPartition", text, _whole, 1)


@pytest.mark.parametrize("text", ['{"orders": {"0": 0}}', '{"default": "no"}'])
def test_each_number_by_partition_is_checked(text: str) -> None:
    with pytest.raises(OptionError, match=r"minRatePerPartition is .* of 1 or more"):
        options.number_by_partition("minRatePerPartition", text, _whole, 1)
