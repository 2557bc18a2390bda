"""The demo counts the records that there were, and draws the numbers that it counts."""

import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace.cli.demo import (
    ACTS,
    BAD_ORDER,
    GATED,
    UNGATED,
    Frame,
    Run,
    Shop,
    has_display,
    missing_and_twice,
    open_journal,
)
from headrace.core.ranges import OffsetRange
from headrace.journal import Journal

pytestmark = pytest.mark.unit


@given(st.lists(st.integers(0, 40)), st.integers(0, 40))
def test_the_count_agrees_with_a_look_at_every_number(arrived: list[int], sent: int) -> None:
    """A missing order, one that came twice, a stranger: each is found beside any other."""
    missing = sum(number not in arrived for number in range(sent))
    twice = {number for number in arrived if arrived.count(number) > 1 or number >= sent}
    assert missing_and_twice(Counter(arrived), sent) == (missing, len(twice))


def test_every_order_that_is_counted_as_sent_is_in_the_journal(tmp_path: Path) -> None:
    with open_journal(tmp_path / "orders") as (sender, options):
        for orders in (1_003, 0, 275):
            sender.send(orders)
        sender.send_bad()
        journal = Journal.open(options["path"])
        values = [
            bytes(value)
            for lane, (first, until) in journal.bounds().items()
            for records in journal.read(OffsetRange(journal.name, lane, first, until))
            for value in records.column("value").to_pylist()
        ]
    assert values.count(BAD_ORDER) == sender.bad == 1
    numbers = [int(value[7:-1]) for value in values if value != BAD_ORDER]
    assert sorted(numbers) == list(range(sender.sent))


def test_the_shop_ends_what_was_killed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for lane in (GATED, UNGATED, GATED):
        shop.sql("INSERT INTO runs (lane, began_s, orders) VALUES (:lane, 1, 3)", lane=lane)
    shop.end(None, 1)
    shop.end("killed")
    shop.engine.dispose()
    assert [each.error for each in shop.runs()] == [None, "killed", "killed"]
    assert [each.id for each in shop.runs(GATED)] == [1, 3]
    assert all(each.ended_s for each in shop.runs())
    shop.engine.dispose()


def drawn(frame: Frame, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(frame)
    return [line.rstrip() for line in console.export_text().splitlines()]


def frame_of(runs: Sequence[Run], act: int = 0) -> Frame:
    return Frame("1/5 It", "Look.", [0.0, 15.0][: act + 1], runs, 1_000, 30.0, 60.0)


@pytest.mark.parametrize("act", ACTS)
def test_both_lanes_fit_a_small_terminal_side_by_side(act: tuple[str, str]) -> None:
    runs = [
        Run(1, UNGATED, 0.0, 20.0, 900, None),
        Run(2, GATED, 0.0, 2.0, 100, None),
        Run(3, UNGATED, 20.0, None, 100, None),
        Run(4, GATED, 20.0, 22.0, 100, "killed"),
    ]
    lines = drawn(Frame(*act, [0.0], runs, 1_000, 30.0, 60.0), 80)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    (heads,) = [line for line in lines if "gate ·" in line]
    assert re.fullmatch(
        r"Without a gate · 100 orders waiting +With a gate · 900 \w+ waiting", heads
    )
    (states,) = [line for line in lines if "so far" in line]
    assert re.fullmatch(r"batch of 100, 10\.0 s so far +stopped: killed", states)


def test_a_longer_batch_is_higher_and_wider() -> None:
    runs = [Run(1, UNGATED, 0.0, 16.0, 900, None), Run(2, GATED, 0.0, 2.0, 100, None)]
    top, *_, bottom = [
        line.ljust(80) for line in drawn(frame_of(runs), 80) if re.search("[▁-█]", line)
    ][:6]
    assert top.split() == ["█" * 11]
    assert bottom.split() == ["█" * 11, "▆▆"]


def test_a_frame_without_batches_is_drawn() -> None:
    assert "no batch yet" in "\n".join(drawn(frame_of([]), 80))
    assert "no batch yet" in frame_of([]).line()


def test_the_acts_are_marked_where_they_began() -> None:
    *_, marks = drawn(frame_of([Run(1, GATED, 0.0, 2.0, 100, None)], act=1), 80)
    assert re.fullmatch(r"1 {8}2 +1 {8}2", marks)


@pytest.mark.parametrize(
    ("variables", "platform", "opened"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({}, "darwin", True),
    ],
)
def test_the_dashboard_is_opened_where_somebody_looks(
    variables: dict[str, str], platform: str, opened: bool
) -> None:
    assert has_display(variables, platform) == opened


def test_captions_are_short_enough_to_be_read() -> None:
    assert all(len(caption) <= 160 for _, caption in ACTS)
