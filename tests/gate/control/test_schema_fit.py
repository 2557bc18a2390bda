"""A schema is wrong when it has fitted nothing, and has stopped fitting by several batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gate.control.schema_fit import FitCount, never_fitted, stopped_fitting

COUNTS = st.builds(
    lambda unfit, fit: FitCount(unfit + fit, unfit), st.integers(0, 9), st.integers(0, 9)
)


@given(history=st.lists(COUNTS, max_size=6), least=st.integers(1, 20))
def test_a_schema_never_fitted_only_if_enough_records_are_unfit_and_all_of_them(
    history: list[FitCount], least: int
) -> None:
    *before, newest = [*history, FitCount(2, 2)]
    fitted = any(batch.unfit < batch.records for batch in before)
    unfit_before = None if fitted else sum(batch.unfit for batch in before)
    in_all = sum(batch.unfit for batch in (*before, newest))
    verdict = never_fitted(newest, unfit_before, least=least)
    assert verdict == (not fitted and in_all >= least)
    assert not never_fitted(FitCount(newest.records + 1, newest.unfit), unfit_before, least=least)


@given(newest=st.lists(COUNTS, max_size=6), at=st.integers(0, 6))
def test_batches_without_records_and_more_bad_ones_never_acquit_a_schema(
    newest: list[FitCount], at: int
) -> None:
    stopped = stopped_fitting(newest)
    assert stopped_fitting([*newest[:at], FitCount(0, 0), *newest[at:]]) == stopped
    assert not stopped or stopped_fitting([FitCount(1, 1), *newest])
    assert not stopped_fitting([FitCount(2, 1), *newest])


@pytest.mark.parametrize(
    ("unfit", "stopped"), [([4, 4, 4], True), ([4, 4], False), ([4, 3, 4], False)]
)
def test_it_has_stopped_fitting_after_three_batches_of_which_most_does_not_fit(
    unfit: list[int], *, stopped: bool
) -> None:
    assert stopped_fitting([FitCount(6, number) for number in unfit]) is stopped
    assert not stopped_fitting([FitCount(3, 3)] * 3), "nine records are too few"
