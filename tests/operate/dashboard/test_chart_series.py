"""Contents of charts: the range of the address, or the batches in the span up to now."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operate.dashboard.histories import add_batch

from headrace.gate.ledger.ledger import Ledger
from headrace.operate.dashboard.gate_page import SHORTEST_MS, chart_range, series_of

NOW_MS = 1_700_000_000_000


def test_a_chart_of_three_minutes_of_batches_shows_three_minutes() -> None:
    began_ms = NOW_MS - 180_000
    for span in ("15 min", "7 d", "all", "none"):
        found = chart_range({"span": span}, NOW_MS, lambda _ms: began_ms, NOW_MS - 500)
        assert found == (began_ms, NOW_MS)


@pytest.mark.parametrize("span", ["", "15 min", "6 h", "all"])
def test_the_charts_of_a_gate_that_ended_long_ago_end_with_its_last_batch(span: str) -> None:
    newest_ms = NOW_MS - 3 * 3_600_000
    planned = [newest_ms - 120_000, newest_ms]

    def oldest_ms(since_ms: int) -> int | None:
        return next((each for each in planned if each >= since_ms), None)

    since_ms, until_ms = chart_range({"span": span}, NOW_MS, oldest_ms, newest_ms)
    assert since_ms == planned[0] and newest_ms < until_ms < newest_ms + 60_000


def test_a_span_is_no_longer_than_it_says_and_what_has_just_begun_has_a_minute() -> None:
    assert chart_range({}, NOW_MS, lambda ms: ms, NOW_MS) == (NOW_MS - 900_000, NOW_MS)
    young = (NOW_MS - SHORTEST_MS, NOW_MS)
    assert chart_range({}, NOW_MS, lambda _ms: NOW_MS, NOW_MS) == young
    assert chart_range({}, NOW_MS, lambda _ms: NOW_MS - 5, NOW_MS - 5) == young
    assert chart_range({}, NOW_MS, lambda _ms: None, None) == young


@given(st.text("0123456789-+ .x", max_size=20), st.text("0123456789-+ .x", max_size=20))
def test_whatever_an_address_says_is_a_range(since: str, until: str) -> None:
    found = chart_range({"from": since, "until": until}, NOW_MS, lambda ms: ms, NOW_MS)
    assert 0 <= found[0] < found[1]


@pytest.mark.parametrize(
    ("since", "until"), [("5", ""), ("", "5"), ("9", "5"), ("-5", "9"), ("1", "1" * 19)]
)
def test_half_a_range_or_none_is_the_span(since: str, until: str) -> None:
    found = chart_range({"from": since, "until": until}, NOW_MS, lambda ms: ms, NOW_MS)
    assert found == (NOW_MS - 900_000, NOW_MS)


def test_the_batches_of_a_range_are_those_planned_in_it(url: str) -> None:
    with Ledger.open(url) as now:
        now_ms = now.database_time_ms()
    times = [now_ms]
    with Ledger.open(url, clock=lambda: times[0]) as ledger:
        for number in range(10):
            times[0] = now_ms + 60_000 * (number + 1)
            add_batch(ledger, start=10_000 + 100 * number, lag=number)
        query = {"from": str(now_ms + 120_000), "until": str(now_ms + 300_000)}
        found = series_of(ledger, "orders", query, now_ms + 700_000)
        assert found["lag"] == [1, 2, 3]
        assert (found["since_ms"], found["until_ms"]) == (now_ms + 120_000, now_ms + 300_000)
