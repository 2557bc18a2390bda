"""Who is to blame when stages throttle each other."""

import pytest
from tests.flow.samples import state_of_stage

from headrace.flow.signals.codec import bottlenecks


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
