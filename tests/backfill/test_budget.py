"""How much a backfill may run."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.samples import a_sample
from tests.services.ledgers import report_sample

from headrace.backfill import Cost, ExternalBudget, InProcessBudget, LiveStream, UnlimitedBudget
from headrace.backfill.budget import (
    ASSUMED_RATE_PER_S,
    Account,
    live_per_s,
    records_beside,
)
from headrace.errors import LedgerError
from headrace.ledger import Ledger, RateSample
from headrace.testing import ManualClock

NOW_MS = 1_700_000_000_000  # a multiple of the interval
RESTING = LiveStream(1_000.0, 1_000, start_ms=NOW_MS, end_ms=NOW_MS + 400)
IDLE = LiveStream(1_000.0, 1_000)

rates = st.floats(0.01, 1e6)
intervals_ms = st.integers(10, 600_000)
costs = st.builds(
    Cost,
    records=st.integers(1, 10**7),
    elapsed_ms=st.integers(0, 10**6),
    end_ms=st.integers(NOW_MS - 10**7, NOW_MS),
)
streams = st.builds(
    LiveStream,
    rate_per_s=st.none() | rates,
    interval_ms=intervals_ms,
    running=st.booleans(),
    start_ms=st.none() | st.integers(NOW_MS - 10**6, NOW_MS),
    end_ms=st.none() | st.integers(NOW_MS - 10**6, NOW_MS),
)


def test_what_is_left_until_the_next_trigger_is_given_with_a_margin() -> None:
    assert records_beside(RESTING, None, NOW_MS + 400) == 480  # 600 ms at 1000/s, and 0.8 of it
    assert records_beside(RESTING, None, NOW_MS + 500) == 400


def test_the_next_trigger_is_at_a_multiple_of_the_interval_however_late_a_batch_began() -> None:
    late = replace(RESTING, start_ms=NOW_MS + 300)
    assert records_beside(late, None, NOW_MS + 400) == 480


def test_a_batch_of_the_stream_leaves_nothing() -> None:
    assert records_beside(replace(RESTING, running=True), None, NOW_MS + 400) == 0
    first = LiveStream(1_000.0, 1_000, running=True, start_ms=NOW_MS)
    assert records_beside(first, None, NOW_MS + 5_000) == 0


def test_a_stream_that_takes_all_of_its_time_leaves_nothing() -> None:
    overrun = replace(RESTING, end_ms=NOW_MS + 1_200)
    assert records_beside(overrun, None, NOW_MS + 1_200) == 0
    just_in_time = replace(RESTING, end_ms=NOW_MS + 950)
    assert records_beside(just_in_time, None, NOW_MS + 950) == 0


def test_a_trigger_that_found_nothing_may_find_something_at_any_time() -> None:
    assert records_beside(RESTING, None, NOW_MS + 1_000) == 0
    assert records_beside(RESTING, None, NOW_MS + 1_400) == 0
    assert records_beside(RESTING, None, NOW_MS + 1_401) == 800


def test_a_clock_that_was_put_back_leaves_no_more_than_an_interval() -> None:
    ahead = LiveStream(125.0, 10, start_ms=NOW_MS + 10, end_ms=NOW_MS - 10)
    assert records_beside(ahead, None, NOW_MS) == 1


def test_an_idle_stream_leaves_an_interval_at_a_time() -> None:
    assert records_beside(IDLE, None, NOW_MS) == 800


def test_what_a_run_costs_beyond_its_records_is_left_out() -> None:
    cost = Cost(records=100, elapsed_ms=300, end_ms=NOW_MS + 400)  # 100 ms of it at 1000/s
    assert records_beside(RESTING, cost, NOW_MS + 400) == 320
    slower = replace(cost, elapsed_ms=401)
    assert records_beside(RESTING, slower, NOW_MS + 400) == 0  # 301 of 600 ms would be cost


def test_a_slow_run_is_forgotten_by_and_by() -> None:
    slow = Cost(records=100, elapsed_ms=2_100, end_ms=NOW_MS)
    assert records_beside(IDLE, slow, NOW_MS) == 0
    assert records_beside(IDLE, slow, NOW_MS + 119_000) == 0
    assert records_beside(IDLE, slow, NOW_MS + 120_000) == 400


def test_behind_a_stream_that_rests_for_long_one_slow_run_follows_another() -> None:
    slow = Cost(records=100, elapsed_ms=2_100, end_ms=NOW_MS)  # 2 s beyond its records
    rests = LiveStream(1_000.0, 1_000, start_ms=NOW_MS - 9_000, end_ms=NOW_MS - 3_999)
    assert records_beside(rests, slow, NOW_MS) == 0
    assert records_beside(replace(rests, end_ms=NOW_MS - 4_000), slow, NOW_MS) == 800
    assert records_beside(replace(rests, end_ms=NOW_MS - 4_000, running=True), slow, NOW_MS) == 0


def test_where_no_rate_has_been_learnt_the_last_run_tells_one() -> None:
    unknown = replace(IDLE, rate_per_s=None)
    assert records_beside(unknown, None, NOW_MS) == int(ASSUMED_RATE_PER_S * 0.8)
    assert records_beside(unknown, Cost(500, 1_000, NOW_MS), NOW_MS) == 400


@given(streams, st.none() | costs, st.integers(NOW_MS - 1_000, NOW_MS + 10**6))
def test_never_more_than_the_rate_allows_in_an_interval(
    live: LiveStream, last: Cost | None, now_ms: int
) -> None:
    granted = records_beside(live, last, now_ms)
    assert granted >= 0
    if live.rate_per_s is not None:
        assert granted <= max(1, live.rate_per_s * live.interval_ms / 1000)
    if live.running:
        assert granted == 0


@given(
    rate_per_s=st.floats(100, 1e5),
    interval_ms=st.integers(200, 10_000),
    used=st.floats(0, 2),
    fixed_ms=st.integers(0, 3_000),
)
def test_beside_a_steady_stream_both_stay_below_the_rate_and_within_the_interval(
    rate_per_s: float, interval_ms: int, used: float, fixed_ms: int
) -> None:
    """A stream that uses this part of its time, and a backfill that costs what it costs."""
    took_ms = round(used * interval_ms)
    first_ms = NOW_MS // interval_ms * interval_ms
    last: Cost | None = None
    for number in range(20):
        start_ms = first_ms + number * interval_ms
        now_ms = start_ms + took_ms
        live = LiveStream(rate_per_s, interval_ms, start_ms=start_ms, end_ms=now_ms)
        records = rate_per_s * took_ms / 1000
        while now_ms < start_ms + interval_ms:
            granted = records_beside(live, last, now_ms)
            if granted == 0:
                break
            elapsed_ms = fixed_ms + round(granted / rate_per_s * 1000)
            known = last is not None and now_ms - last.end_ms < 9_000
            records += granted
            now_ms += elapsed_ms
            last = Cost(granted, elapsed_ms, now_ms)
            # Until a run has told what it costs, or once that is forgotten, a batch may be late.
            assert not known or now_ms <= start_ms + interval_ms
        assert used >= 1 or records <= rate_per_s * interval_ms / 1000 + 1
        assert used < 1 or records == rate_per_s * took_ms / 1000


steps = st.lists(
    st.tuples(st.integers(-1_000, 20_000), st.floats(0, 2_000), st.booleans()), max_size=40
)


@given(rates, intervals_ms, steps)
def test_an_account_never_grants_more_than_was_paid_in(
    rate_per_s: float, interval_ms: int, steps: list[tuple[int, float, bool]]
) -> None:
    account = Account(NOW_MS)
    now_ms = latest_ms = NOW_MS
    unused, granted = 0.0, 0
    for wait_ms, live, takes in steps:
        now_ms += wait_ms
        unused += max(0.0, rate_per_s - live) * max(0, now_ms - latest_ms) / 1000
        latest_ms = max(latest_ms, now_ms)
        account = account.paid_in(
            now_ms, rate_per_s=rate_per_s, live_per_s=live, interval_ms=interval_ms
        )
        now_granted = account.records
        assert now_granted <= max(1, rate_per_s * interval_ms / 1000)
        if live >= rate_per_s:
            assert now_granted == 0
        if takes:
            account = account.spent(now_granted)
            granted += now_granted
    assert granted <= unused * (1 + 1e-9)


def test_an_account_grants_from_half_of_an_intervals_worth_on_and_keeps_one() -> None:
    account = Account(NOW_MS)
    grants = []
    for after_ms in (0, 499, 500, 900, 5_000):
        account = account.paid_in(
            NOW_MS + after_ms, rate_per_s=500.0, live_per_s=300.0, interval_ms=1_000
        )
        grants.append(account.records)
    assert grants == [0, 0, 100, 180, 200]
    assert account.spent(150).records == 0
    assert account.spent(100).records == 100


def test_without_a_rate_an_account_is_paid_the_lowest_one() -> None:
    account = Account(NOW_MS).paid_in(
        NOW_MS + 1_000, rate_per_s=None, live_per_s=0.0, interval_ms=1_000
    )
    assert account.records == ASSUMED_RATE_PER_S


def test_a_slow_stream_is_paid_for_one_record_at_last() -> None:
    account = Account(NOW_MS)
    for seconds in (1, 5, 9):
        account = account.paid_in(
            NOW_MS + seconds * 1_000, rate_per_s=0.1, live_per_s=0.0, interval_ms=1_000
        )
        assert account.records == 0
    assert (
        account.paid_in(NOW_MS + 10_001, rate_per_s=0.1, live_per_s=0.0, interval_ms=1_000).records
        == 1
    )


@pytest.mark.parametrize(
    ("ended_ms_ago", "expected"),
    [
        ([], 0.0),
        ([0, 1_000, 2_000], 240 / 2.8),  # known for 2800 ms: the first batch took 800
        (list(range(0, 9_001, 1_000)), 800 / 9.8),
        ([10_000, 11_000], 0.0),
        ([500, 9_500, 20_000], 160 / 10.3),
    ],
)
def test_the_streams_rate_is_counted_over_ten_intervals_or_what_is_known(
    ended_ms_ago: list[int], expected: float
) -> None:
    samples: list[RateSample] = [a_sample(NOW_MS - ago) for ago in ended_ms_ago]
    assert live_per_s(samples, NOW_MS, 1_000) == pytest.approx(expected)


def test_beside_a_stream_the_last_run_that_went_through_tells_what_runs_cost() -> None:
    clock = ManualClock()
    stream = LiveStream(1_000.0, 1_000)
    budget = InProcessBudget(lambda: stream, clock)
    budget.spent(Cost(100, 9_000, clock(), succeeded=False))
    assert budget.records() == 800
    budget.spent(Cost(100, 9_000, clock()))  # the first, which makes workers
    assert budget.records() == 800
    budget.spent(Cost(100, 300, clock()))
    assert budget.records() == 640
    budget.spent(Cost(100, 2_000, clock(), succeeded=False))
    assert budget.records() == 640
    stream = LiveStream(1_000.0, 1_000, running=True, start_ms=clock())
    assert budget.records() == 0


def test_from_outside_the_ledger_tells_what_the_stream_leaves(
    ledger: Ledger, clock: ManualClock
) -> None:
    budget = ExternalBudget(ledger, "orders", clock)
    report_sample(ledger, a_sample(clock(), 100.0, records=32))  # in 800 ms: 40 records/s
    assert budget.records() == 0
    clock.now_ms += 1_000
    report_sample(ledger, a_sample(clock(), 100.0, records=40))
    assert budget.records() == 60
    budget.spent(Cost(60, 900, clock()))
    assert budget.records() == 0
    report_sample(ledger, a_sample(clock(), 100.0, records=500))  # more than the rate
    clock.now_ms += 1_000
    assert budget.records() == 0
    clock.now_ms += 20_000  # the stream has had nothing for long
    assert budget.records() == 100


def test_from_outside_a_gate_has_to_be_known(ledger: Ledger, clock: ManualClock) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ExternalBudget(ledger, "clicks", clock).records()


def test_unlimited_is_more_than_any_batch() -> None:
    budget = UnlimitedBudget()
    budget.spent(Cost(10**9, 1, 0))
    assert budget.records() == sys.maxsize
