"""The PID estimator: the reference's numbers, and what holds for all of them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.interval import IntervalLaw
from headrace.gate.control.law import BatchProgress, BatchStats, FinishedPart
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.pid import PIDRateEstimator

Call = tuple[int, int, int, int]

calls = st.tuples(
    st.integers(-10, 10_000_000_000_000),
    st.integers(-5, 1_000_000_000),
    st.integers(-5, 100_000_000),
    st.integers(0, 100_000_000),
)
gains = st.floats(0, 10)


def test_the_first_batch_gives_no_rate_and_the_second_does() -> None:
    estimator = PIDRateEstimator(20, 1, 0, 0, 10)
    assert estimator.compute(0, 10, 10, 0) is None
    assert estimator.compute(10, 10, 10, 0) == 1000.0


def test_the_rate_stays_at_the_minimum_while_batches_keep_being_late() -> None:
    estimator = PIDRateEstimator(20, 1, 1, 0, 5)
    answers = [estimator.compute(20 * i, 1, 20, 100) for i in range(50)]
    assert answers == [None] + [5.0] * 49


def test_the_rate_follows_a_processing_rate_that_grows() -> None:
    estimator = PIDRateEstimator(20, 1, 1, 0, 10)
    answers = [estimator.compute(20 * i, 20 * (i + 1), 20, 0) for i in range(50)]
    assert answers == [None] + [1000.0 * (i + 1) for i in range(1, 50)]


def test_the_gains_have_sparks_defaults() -> None:
    ours, explicit = PIDRateEstimator(1000), PIDRateEstimator(1000, 1.0, 0.2, 0.0, 100.0)
    for call in [(1000, 5000, 900, 0), (2500, 5000, 1500, 500), (3500, 10, 1000, 0)]:
        assert ours.compute(*call) == explicit.compute(*call)
    assert ours.compute(4500, 1, 1000, 0) == 100.0


@pytest.mark.parametrize("name", ["proportional", "integral", "derivative"])
@pytest.mark.parametrize("value", [-0.1, -1e-300, math.nan, math.inf])
def test_a_gain_below_zero_or_not_finite_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"^{name} is {value!r}; it must be .* 0 or more"):
        PIDRateEstimator(1000, **{name: value})


@pytest.mark.parametrize("value", [0.0, -5.0, math.nan, math.inf])
def test_a_minimum_rate_that_is_not_above_zero_is_refused_by_name(value: float) -> None:
    with pytest.raises(OptionError, match=f"^min_rate is {value!r}; it must be .* above 0"):
        PIDRateEstimator(1000, min_rate=value)


@pytest.mark.parametrize("value", [0, -1])
def test_an_interval_that_is_not_above_zero_is_refused_by_name(value: int) -> None:
    with pytest.raises(OptionError, match=f"^batch_interval_ms is {value}; it must be .* above 0"):
        PIDRateEstimator(value)


def test_gains_of_zero_are_allowed_and_leave_the_rate_alone() -> None:
    estimator = PIDRateEstimator(1000, 0, 0, 0, 1)
    estimator.compute(1000, 500, 1000, 0)
    assert estimator.compute(2000, 9, 1000, 7000) == 500.0


def test_the_terms_say_what_went_into_the_rate() -> None:
    estimator = PIDRateEstimator(1000, proportional=0.5, integral=0.2, derivative=0.1, min_rate=1)
    estimator.compute(1000, 1000, 1000, 0)
    rate = estimator.compute(3000, 1000, 2000, 400)
    terms = estimator.terms
    assert terms is not None
    assert terms.processing_rate_per_s == 500.0
    assert terms.error == 500.0
    assert terms.historical_error == 200.0
    assert terms.d_error == 250.0
    assert terms.proportional == -250.0
    assert terms.integral == -40.0
    assert terms.derivative == -25.0
    assert rate == 1000.0 - 250.0 - 40.0 - 25.0


def test_there_are_no_terms_before_the_first_rate() -> None:
    estimator = PIDRateEstimator(1000)
    assert estimator.terms is None
    estimator.compute(1000, 1000, 1000, 0)
    assert estimator.terms is None


def test_a_contribution_of_nothing_is_shown_without_a_sign() -> None:
    estimator = PIDRateEstimator(1000)
    estimator.compute(1000, 1000, 1000, 0)
    estimator.compute(2000, 1000, 1000, 0)
    assert estimator.terms is not None
    assert str(estimator.terms.proportional) == "0.0"
    assert str(estimator.terms.integral) == "0.0"
    assert str(estimator.terms.derivative) == "0.0"


@given(st.lists(calls, max_size=30), gains, gains, gains, st.floats(1e-6, 1e6))
def test_a_rate_is_never_below_the_minimum(
    history: list[Call], proportional: float, integral: float, derivative: float, min_rate: float
) -> None:
    estimator = PIDRateEstimator(1000, proportional, integral, derivative, min_rate)
    for call in history:
        rate = estimator.compute(*call)
        assert rate is None or rate >= min_rate


teaching = st.tuples(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**6))


@given(
    st.lists(teaching, min_size=2, max_size=10),
    st.integers(0, 8),
    st.sampled_from(["not later", "no elements", "no time"]),
)
def test_a_batch_that_teaches_nothing_changes_no_state(
    batches: list[tuple[int, int, int]], position: int, what: str
) -> None:
    plain, disturbed = PIDRateEstimator(1000, 1, 0.2, 0.1), PIDRateEstimator(1000, 1, 0.2, 0.1)
    position %= len(batches) - 1
    for number, batch in enumerate(batches):
        time_ms = 1000 * (number + 1)
        assert plain.compute(time_ms, *batch) == disturbed.compute(time_ms, *batch)
        if number == position:
            before = disturbed.terms
            useless: dict[str, Call] = {
                "not later": (time_ms, 77, 7, 7),
                "no elements": (time_ms + 500, 0, 7, 7),
                "no time": (time_ms + 500, 77, 0, 7),
            }
            assert disturbed.compute(*useless[what]) is None
            assert disturbed.terms == before


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.lists(st.integers(0, 10**7), min_size=2))
def test_a_longer_delay_never_gives_a_higher_rate(
    records: int, processing_delay_ms: int, delays_ms: list[int]
) -> None:
    rates = []
    for delay_ms in sorted(delays_ms):
        estimator = PIDRateEstimator(1000, min_rate=0.001)
        estimator.compute(1000, 5000, 1000, 0)
        rate = estimator.compute(2000, records, processing_delay_ms, delay_ms)
        assert rate is not None
        rates.append(rate)
    assert all(later <= sooner for sooner, later in pairwise(rates))


def gains_of(proportional: float, integral: float, derivative: float) -> dict[str, float]:
    return {
        "backpressure.pid.proportional": proportional,
        "backpressure.pid.integral": integral,
        "backpressure.pid.derived": derivative,
    }


def test_settings_make_the_estimator_they_describe() -> None:
    made = EstimatorSettings("pid", gains_of(1, 1, 0.5), 7).start(20)
    same = PIDRateEstimator(20, 1, 1, 0.5, 7)
    for call in [(20, 30, 20, 5), (40, 20, 30, 5), (60, 90, 10, 0), (80, 1, 30, 90)]:
        stats = BatchStats(*call)
        progress = BatchProgress(0, stats.processing_delay_ms, stats.num_elements, 0)
        part = FinishedPart(progress, stats, 20, None)
        assert made.batch(part, None) == same.compute(*call)


def test_an_unknown_estimator_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(
        OptionError,
        match=r"^backpressure\.rateEstimator is 'vegas'; it must be one of: pid, learned",
    ):
        EstimatorSettings("vegas")


@given(gains, gains, gains, st.floats(0, 1e9, exclude_min=True))
def test_settings_come_back_from_their_text_to_the_last_bit(
    proportional: float, integral: float, derivative: float, min_rate: float
) -> None:
    settings = EstimatorSettings("learned", {}, min_rate, IntervalLaw(5_000, 0.7))
    assert EstimatorSettings.from_text(settings.to_text()) == settings
    settings = EstimatorSettings("pid", gains_of(proportional, integral, derivative), min_rate)
    assert EstimatorSettings.from_text(settings.to_text()) == settings


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '"pid"', "{", '{"gain": 1}', '{"name": 1}', '{"min_rate": "100"}'],
)
def test_text_that_no_settings_wrote_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="run the same version"):
        EstimatorSettings.from_text(text)
