"""The planner under the pressure of a stage after it."""

import pytest
from tests.control.plans import orders

from headrace.control import Limits, Plan, RateLimit, Reason, plan

LIMITS = Limits(1.0, initial_rate=1000.0)


def plan_under(bound: RateLimit | None, rate: float | None, limits: Limits = LIMITS) -> Plan:
    return plan(orders([0, 0]), orders([3000, 1000]), rate, limits, rate_limit=bound)


def bound_of(rate_per_s: float) -> RateLimit:
    return RateLimit(rate_per_s, "enrich", 1.0, 2 * rate_per_s)


@pytest.mark.parametrize("rate", [None, 800.0])
def test_a_bound_below_the_rate_is_what_is_admitted_and_the_reason_names_its_stage(
    rate: float | None,
) -> None:
    planned = plan_under(bound_of(400.7), rate)
    assert (planned.records, planned.rate_per_s) == (400, 400.0)
    assert planned.describe(planned.reason) == "throttled by enrich"
    assert set(planned.reasons.values()) == {Reason.THROTTLED}


@pytest.mark.parametrize("per_s", [800.0, 900.0])
def test_a_bound_that_is_not_the_least_takes_nothing_away(per_s: float) -> None:
    planned, free = plan_under(bound_of(per_s), 800.0), plan_under(None, 800.0)
    assert (planned.until, planned.reason) == (free.until, Reason.RATE)
    assert planned.describe(planned.reason) == "rate"


def test_a_bound_holds_where_backpressure_is_off() -> None:
    planned = plan_under(bound_of(400.0), None, Limits(1.0, initial_rate=None))
    assert (planned.records, planned.reason) == (400, Reason.THROTTLED)


def test_a_cap_below_the_bound_is_the_reason() -> None:
    planned = plan_under(bound_of(400.0), None, Limits(1.0, initial_rate=1000.0, max_records=100))
    assert (planned.records, planned.reason) == (100, Reason.MAX_RECORDS)


def test_a_bound_of_almost_nothing_leaves_a_record_to_each_partition() -> None:
    assert plan_under(bound_of(0.001), 800.0).records == 2
