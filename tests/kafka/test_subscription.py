from collections.abc import Mapping

import pytest

from headrace.control import TopicPartition
from headrace.errors import OptionError
from headrace.kafka.subscription import parse_subscription


def test_topics_are_named_with_commas_and_spaces_and_each_counts_once() -> None:
    assert parse_subscription({"subscribe": " b, a ,b,"}).topics == ("b", "a")


def test_partitions_are_named_by_topic() -> None:
    assigned = parse_subscription({"assign": '{"orders": [2, 0], "returns": [1]}'})
    assert assigned.partitions == (
        TopicPartition("orders", 2),
        TopicPartition("orders", 0),
        TopicPartition("returns", 1),
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            "Nothing says which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign.",
        ),
        (
            {"assign": "{}", "subscribe": "a"},
            "subscribe and assign say which topics to read; give exactly one of subscribe,"
            " subscribePattern and assign.",
        ),
        ({"subscribe": " ,"}, "subscribe is ' ,'; name one topic, or several with commas."),
        (
            {"subscribePattern": " "},
            "subscribePattern is empty; write a regular expression of topic names.",
        ),
        (
            {"subscribePattern": "a("},
            "subscribePattern is 'a('; it must be a regular expression, and this is not: missing ),"
            " unterminated subpattern at position 1.",
        ),
        (
            {"assign": '{"orders": []}'},
            "assign is '{\"orders\": []}'; it must be JSON with the partitions of each topic, such"
            ' as {"orders": [0, 1]}.',
        ),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(given: Mapping[str, str], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_subscription(given)
    assert str(raised.value) == told
