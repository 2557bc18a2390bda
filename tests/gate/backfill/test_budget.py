"""Budget of records that a backfill may run."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.ledger.samples import a_sample
from tests.services.ledgers import report_sample

from headrace.errors import LedgerError
from headrace.gate.backfill.schedule import (
    ASSUMED_RATE_PER_S,
    Account,
    Cost,
    ExternalBudget,
    InProcessBudget,
    LiveStream,
    UnlimitedBudget,
    live_per_s,
    records_beside,
)
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import RateSample
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


NEVER_ENDED = LiveStream(1_000.0, 1_000, running=True, start_ms=NOW_MS)
AHEAD = LiveStream(125.0, 10, start_ms=NOW_MS + 10, end_ms=NOW_MS - 10)
UNKNOWN = replace(IDLE, rate_per_s=None)
RESTED = LiveStream(1_000.0, 1_000, start_ms=NOW_MS - 9_000, end_ms=NOW_MS - 4_000)
# At 1000 records/s, 100 records take 100 ms of these.
CHEAP = Cost(records=100, elapsed_ms=300, end_ms=NOW_MS + 400)
SLOW = Cost(records=100, elapsed_ms=2_100, end_ms=NOW_MS)


@pytest.mark.parametrize(
    ("live", "last", "after_ms", "expected"),
    [
        pytest.param(RESTING, None, 400, 480, id="600 ms until the next trigger: 0.8 of that"),
        pytest.param(RESTING, None, 500, 400, id="500 ms until then"),
        pytest.param(
            replace(RESTING, start_ms=NOW_MS + 300), None, 400, 480, id="it began late itself"
        ),
        pytest.param(replace(RESTING, running=True), None, 400, 0, id="a batch runs"),
        pytest.param(NEVER_ENDED, None, 5_000, 0, id="the first batch runs"),
        pytest.param(replace(RESTING, end_ms=NOW_MS + 1_200), None, 1_200, 0, id="overrun"),
        pytest.param(replace(RESTING, end_ms=NOW_MS + 950), None, 950, 0, id="just in time"),
        pytest.param(RESTING, None, 1_000, 0, id="a trigger may find something"),
        pytest.param(RESTING, None, 1_400, 0, id="at any time"),
        pytest.param(RESTING, None, 1_401, 800, id="until it is idle for an interval"),
        pytest.param(AHEAD, None, 0, 1, id="a clock that was set back gives an interval at most"),
        pytest.param(IDLE, None, 0, 800, id="idle: an interval at a time"),
        pytest.param(RESTING, CHEAP, 400, 320, id="200 ms of fixed cost"),
        pytest.param(RESTING, replace(CHEAP, elapsed_ms=401), 400, 0, id="half would be cost"),
        pytest.param(IDLE, SLOW, 0, 0, id="a slow run"),
        pytest.param(IDLE, SLOW, 119_000, 0, id="is not forgotten yet"),
        pytest.param(IDLE, SLOW, 120_000, 400, id="is forgotten by half each minute"),
        pytest.param(replace(RESTED, end_ms=NOW_MS - 3_999), SLOW, 0, 0, id="rests too briefly"),
        pytest.param(RESTED, SLOW, 0, 800, id="a long rest pays for a slow run"),
        pytest.param(replace(RESTED, running=True), SLOW, 0, 0, id="unless a batch runs"),
        pytest.param(UNKNOWN, None, 0, int(ASSUMED_RATE_PER_S * 0.8), id="no rate is known"),
        pytest.param(UNKNOWN, Cost(500, 1_000, NOW_MS), 0, 400, id="but that of the last run"),
    ],
)
def test_a_backfill_may_run_what_the_stream_leaves_unused(
    live: LiveStream, last: Cost | None, after_ms: int, expected: int
) -> None:
    assert records_beside(live, last, NOW_MS + after_ms) == expected


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
