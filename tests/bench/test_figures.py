"""Figures against their targets, as a table and as JSON."""

import io
import json
import math
from dataclasses import replace

import pytest
from bench.figures import AtLeast, AtMost, Figure, Near, Target
from bench.pairs import Spread
from bench.table import table_of
from rich.console import Console


def figure(target: Target | None, headrace: float = 3.0) -> Figure:
    return Figure.side_by_side(
        "speed", "rows/s", headrace=[headrace] * 3, native=[2.0] * 3, target=target
    )


def printed(title: str, *figures: Figure) -> list[str]:
    """The rows of their table."""
    file = io.StringIO()
    Console(file=file, width=140).print(table_of(title, figures))
    return file.getvalue().splitlines()[1:]


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (AtLeast(1.5), True),
        (AtLeast(1.51), False),
        (AtMost(1.5), True),
        (AtMost(1.49), False),
        (Near(1.4, by=0.11), True),
        (Near(1.4, by=0.09), False),
        (Near(1.6, by=0.09), False),
        (None, None),
    ],
)
def test_beside_a_native_figure_the_ratio_is_held_against_the_target(
    target: Target | None, met: bool | None
) -> None:
    assert figure(target).is_met is met


def test_an_absolute_target_is_for_headraces_figure_whatever_is_beside_it() -> None:
    assert replace(figure(AtLeast(3)), absolute=True).is_met
    assert not replace(figure(AtMost(2)), absolute=True).is_met


@pytest.mark.parametrize(("bound", "met"), [(3.0, True), (2.9, False)])
def test_alone_the_median_is_held_against_the_target(bound: float, met: bool) -> None:
    assert Figure("time", "ms", Spread(3.0, 1.0, 9.0), target=AtMost(bound)).is_met is met


def test_the_table_shows_medians_ratio_target_and_whether_it_is_met() -> None:
    missed, met = printed("throughput", figure(AtLeast(2)), figure(AtMost(2)))
    assert missed.split() == ["speed", "2", "3", "rows/s", "1.50", "≥", "2", "no"]
    assert met.split() == ["speed", "2", "3", "rows/s", "1.50", "≤", "2", "yes"]


def test_what_never_happened_is_null_in_json_and_never_in_the_table() -> None:
    never = Figure("settled", "batches", Spread.of([math.inf]), target=AtMost(4))
    told = json.loads(json.dumps(never.to_json(), allow_nan=False))
    assert told["headrace"]["median"] is None
    assert (told["target"], told["met"]) == ("≤ 4", False)
    (row,) = printed("recovery", never)
    assert row.split() == ["settled", "never", "batches", "≤", "4", "no"]
