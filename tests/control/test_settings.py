"""An estimator's settings, on their way through the ledger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control import EstimatorSettings, PIDRateEstimator
from headrace.errors import OptionError

gains = st.floats(0, 1e9)


@given(gains, gains, gains, st.floats(0, 1e9, exclude_min=True))
def test_settings_come_back_from_their_text_to_the_last_bit(
    proportional: float, integral: float, derivative: float, min_rate: float
) -> None:
    settings = EstimatorSettings("pid", proportional, integral, derivative, min_rate)
    assert EstimatorSettings.from_text(settings.to_text()) == settings


def test_settings_make_the_estimator_they_describe() -> None:
    assert isinstance(EstimatorSettings().create(1_000), PIDRateEstimator)
    made = EstimatorSettings(proportional=0.0, min_rate=5.0).create(1_000)
    rates = [made.compute(time_ms, 10, 1_000, 0) for time_ms in (1_000, 2_000)]
    assert rates == [None, 10.0]
    assert made.compute(3_000, 1, 1_000, 0) == 10.0  # nothing is corrected without a proportion


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '"pid"', "{", '{"gain": 1}', '{"name": 1}', '{"min_rate": "100"}'],
)
def test_text_that_no_settings_wrote_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="one version throughout"):
        EstimatorSettings.from_text(text)
