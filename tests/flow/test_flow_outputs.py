"""What a handler answers must go with the channels that its stage writes."""

from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.flow.flows import a_flow

from headrace.errors import OptionError
from headrace.flow.running import outputs


class Frame(DataFrame):
    """A DataFrame of which nothing is computed."""

    def __new__(cls) -> "Frame":
        return object.__new__(cls)

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "Frame"


ONE, OTHER = Frame(), Frame()


def answered(writes: list[str], made: Any) -> dict[str, DataFrame]:
    flow = a_flow(("split", "raw", writes))
    return outputs(flow.graph.stages["split"], made)


def test_each_channel_is_given_what_is_for_it() -> None:
    assert answered([], None) == {}
    assert answered(["good"], ONE)["good"] is ONE
    assert answered(["good"], {"good": ONE})["good"] is ONE
    both = answered(["good", "bad"], {"bad": OTHER, "good": ONE})
    assert (both["good"], both["bad"]) == (ONE, OTHER)


@pytest.mark.parametrize(
    ("writes", "made", "sentence"),
    [
        ([], ONE, "a value of type Frame; it must return None, for it writes no channel"),
        (["good"], None, "nothing; it must return a DataFrame, for it writes the channel 'good'"),
        (["good"], 7, "a value of type int; it must return a DataFrame"),
        (["good", "bad"], ONE, "a DataFrame for each of .'good', 'bad'., by name"),
        (["good", "bad"], {"good": ONE}, "a mapping with the names .'good'.; it must return"),
        (["good", "bad"], {"good": ONE, "bad": None}, "nothing for the channel 'bad'"),
    ],
)
def test_another_answer_is_refused_with_the_stages_line(
    writes: list[str], made: Any, sentence: str
) -> None:
    with pytest.raises(
        OptionError, match=rf"Stage 'split' \(.*flows.py:\d+\) has return.*{sentence}"
    ):
        answered(writes, made)
