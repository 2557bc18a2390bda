from collections.abc import Mapping

import pytest

from headrace.errors import OptionError
from headrace.gate.source.read_bounds import Edge
from headrace.journal.journal_options import parse_options


def test_a_stream_begins_with_what_was_acknowledged_first() -> None:
    options = parse_options({"path": " /data/orders "}, streaming=True)
    assert (options.path, options.lanes) == ("/data/orders", None)
    assert options.shared.starting.at is Edge.EARLIEST


def test_lanes_are_numbers_with_commas() -> None:
    assert parse_options({"path": "x", "LANES": "3, 1,3"}, streaming=False).lanes == (1, 3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "The option path is missing or empty"),
        ({"path": " "}, "The option path is missing or empty"),
        (
            {"path": "x", "lanes": "0,../1"},
            "lanes is '0,../1'; it must be lane numbers separated by commas",
        ),
        ({"path": "x", "subscribe": "a"}, "There is no option subscribe for headrace-journal"),
        ({"path": "x", "endingOffsets": "latest"}, "endingOffsets is for a bounded read"),
    ],
)
def test_what_is_wrong_is_told(given: Mapping[str, str], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(given, streaming=True)
    assert told in str(raised.value)
