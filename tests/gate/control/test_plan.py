"""The planner: how far a batch reads, and for which reason."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.gate.control.plans import counts, orders, plan_lags

from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import (
    BatchLimits,
    OperatorAction,
    OperatorActionKind,
    OperatorLimits,
    PartitionLimit,
)
from headrace.gate.control.plan import ASSUMED_RECORD_BYTES, Plan, empty_plan, plan, should_wait
from headrace.gate.control.pressure import RateLimit
from headrace.gate.control.rate_law import Reason
from headrace.gate.control.size_ceiling import SizeCeiling

OFF = BatchLimits(1.0, initial_rate=None)


# Limits of a batch


def test_without_limits_a_batch_takes_everything() -> None:
    planned = plan(orders([5, 7]), orders([15, 7]), None, OFF)
    assert planned.until == orders([15, 7])
    assert (planned.records, planned.lag, planned.left_over) == (10, 10, 0)
    assert planned.reason is Reason.EVERYTHING
    assert list(planned.reasons.values()) == [Reason.EVERYTHING, Reason.NOTHING_NEW]
    assert planned.rate_per_s is None
    assert planned.unread == {}


def test_an_estimated_rate_limits_a_batch() -> None:
    planned = plan(orders([10, 10]), orders([1010, 3010]), 400.7, BatchLimits(1.0, initial_rate=50))
    assert planned.until == orders([110, 310])
    assert (planned.records, planned.lag, planned.left_over) == (400, 4000, 3600)
    assert planned.rate_per_s == 400.0
    assert planned.reason is Reason.RATE
    assert planned.unread == {Reason.RATE: 3600}


def test_the_initial_rate_limits_the_very_first_batch() -> None:
    planned = plan_lags([10**9], BatchLimits(1.0, initial_rate=50))
    assert counts(planned) == [50]
    assert planned.rate_per_s == 50.0
    assert planned.reason is Reason.INITIAL_RATE


def test_the_cap_of_a_partition_limits_it() -> None:
    caps = PartitionLimit(0, {TopicPartition("orders", 0): 10})
    planned = plan_lags(
        [1000, 1000], BatchLimits(1.0, initial_rate=1, max_rate_per_partition=caps), rate=100
    )
    assert counts(planned) == [10, 90]
    assert list(planned.reasons.values()) == [Reason.PARTITION_CAP, Reason.RATE]
    assert planned.reason is Reason.PARTITION_CAP


def test_a_floor_above_the_share_is_the_reason() -> None:
    limits = BatchLimits(1.0, initial_rate=1, min_per_partition=PartitionLimit(30))
    planned = plan_lags([100, 100], limits, rate=10)
    assert counts(planned) == [30, 30]
    assert planned.reason is Reason.PARTITION_FLOOR


def test_a_partition_with_less_than_its_floor_gives_all_it_has() -> None:
    limits = BatchLimits(1.0, initial_rate=1, min_per_partition=PartitionLimit(30))
    planned = plan_lags([20, 0, 1000], limits, rate=10)
    assert counts(planned) == [20, 0, 30]
    assert list(planned.reasons.values()) == [
        Reason.EVERYTHING,
        Reason.NOTHING_NEW,
        Reason.PARTITION_FLOOR,
    ]


def test_max_offsets_per_trigger_applies_to_what_the_rate_has_left() -> None:
    limits = BatchLimits(1.0, initial_rate=1, max_records=40)
    planned = plan_lags([1000, 3000], limits, rate=400)
    assert counts(planned) == [10, 30]
    assert planned.reason is Reason.MAX_RECORDS
    assert planned.rate_per_s == 400.0


def test_a_cap_that_does_not_bite_is_not_the_reason() -> None:
    limits = BatchLimits(1.0, initial_rate=1, max_records=10_000, max_bytes=10**9)
    planned = plan_lags([1000, 3000], limits, rate=400, record_bytes=100)
    assert counts(planned) == [100, 300]
    assert planned.reason is Reason.RATE


def test_a_cap_in_bytes_limits_a_batch() -> None:
    planned = plan_lags([100, 300], BatchLimits(1.0, None, max_bytes=4000), record_bytes=100)
    assert counts(planned) == [10, 30]
    assert planned.reason is Reason.MAX_BYTES


def test_a_cap_in_bytes_counts_each_topics_records_by_their_own_size() -> None:
    small, large = TopicPartition("small", 0), TopicPartition("large", 0)
    planned = plan(
        {small: 0, large: 0},
        {small: 1000, large: 1000},
        None,
        BatchLimits(1.0, None, max_bytes=11_000),
        {"small": 10, "large": 100},
    )
    assert planned.until == {small: 100, large: 100}


@pytest.mark.parametrize("record_bytes", [None, {}, {"payments": 10.0}])
def test_a_cap_in_bytes_holds_before_any_record_was_measured(
    record_bytes: dict[str, float] | None,
) -> None:
    limits = BatchLimits(1.0, None, max_bytes=5 * ASSUMED_RECORD_BYTES)
    assert counts(plan_lags([10**9], limits, record_bytes=record_bytes)) == [5]


def test_records_larger_than_the_cap_in_bytes_pass_one_by_one() -> None:
    planned = plan_lags([100], BatchLimits(1.0, None, max_bytes=1000), record_bytes=50_000)
    assert counts(planned) == [1]
    assert planned.reason is Reason.MAX_BYTES


def test_a_cap_in_bytes_that_takes_from_max_offsets_is_the_reason() -> None:
    limits = BatchLimits(1.0, None, max_records=100, max_bytes=1000)
    assert plan_lags([500], limits, record_bytes=20).reason is Reason.MAX_BYTES
    assert plan_lags([500], limits, record_bytes=10).reason is Reason.MAX_RECORDS


def test_the_reason_of_a_batch_is_the_one_that_leaves_the_most_unread() -> None:
    caps = PartitionLimit(0, {TopicPartition("orders", 0): 10})
    limits = BatchLimits(1.0, initial_rate=1, max_rate_per_partition=caps)
    planned = plan_lags([1000, 10_000], limits, rate=1100)
    assert planned.unread == {Reason.PARTITION_CAP: 990, Reason.RATE: 8910}
    assert planned.reason is Reason.RATE


def test_of_equal_reasons_the_one_listed_first_is_given_in_any_order_of_partitions() -> None:
    limits = BatchLimits(
        1.0,
        initial_rate=1,
        max_rate_per_partition=PartitionLimit(0, {TopicPartition("orders", 0): 50}),
    )
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    for order in ([first, second], [second, first]):
        planned = plan(dict.fromkeys(order, 0), {first: 150, second: 350}, 300, limits)
        assert planned.unread == {Reason.PARTITION_CAP: 100, Reason.RATE: 100}
        assert planned.reason is Reason.RATE


def test_an_empty_batch_says_that_nothing_is_new() -> None:
    planned = plan(orders([5]), orders([5]), 100, BatchLimits(1.0, initial_rate=1))
    assert planned.until == orders([5])
    assert planned.reason is Reason.NOTHING_NEW
    assert planned.rate_per_s == 100.0


def test_no_partitions_make_an_empty_plan() -> None:
    planned = plan({}, {}, 100, BatchLimits(1.0, initial_rate=1, max_records=5, max_bytes=5))
    assert planned.until == {}
    assert planned.reason is Reason.NOTHING_NEW


def test_a_partition_made_anew_does_not_move_back() -> None:
    planned = plan(orders([500, 0]), orders([3, 10]), None, OFF)
    assert planned.until == orders([500, 10])
    assert planned.lag == 10


def test_a_partition_without_a_position_is_a_callers_mistake() -> None:
    with pytest.raises(KeyError):
        plan(orders([0]), orders([5, 5]), None, OFF)


def test_reasons_read_as_words_in_which_a_spark_user_finds_the_option() -> None:
    assert [str(reason) for reason in Reason] == [
        "rate",
        "initial rate",
        "throttled",
        "limited",
        "maxRatePerPartition",
        "minRatePerPartition",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "ceiling",
        "held",
        "waiting for minOffsetsPerTrigger",
        "everything available",
        "nothing new",
    ]


# minOffsetsPerTrigger


def test_a_batch_waits_while_there_is_too_little_and_the_delay_has_not_passed() -> None:
    assert should_wait(available=99, min_records=100, waited_ms=899, max_delay_ms=900)


def test_a_batch_does_not_wait_when_there_is_enough() -> None:
    assert not should_wait(available=100, min_records=100, waited_ms=0, max_delay_ms=900)


def test_a_batch_does_not_wait_when_the_delay_has_passed() -> None:
    assert not should_wait(available=0, min_records=100, waited_ms=900, max_delay_ms=900)


def test_a_batch_that_waits_moves_nobody_and_says_why() -> None:
    held = empty_plan(orders([5, 7, 9]), orders([10, 7, 2]))
    assert held.until == orders([5, 7, 9])
    assert (held.records, held.lag, held.left_over) == (0, 5, 5)
    assert held.reason is Reason.WAITING
    assert list(held.reasons.values()) == [
        Reason.WAITING,
        Reason.NOTHING_NEW,
        Reason.NOTHING_NEW,
    ]


# maxOffsetsPerTrigger as in the native source


def natively(lags: Sequence[int], limit: int) -> list[int]:
    """The native source's rule, written down from its documentation and source."""
    total = float(sum(lags))
    if total < 1:
        return [0] * len(lags)
    granted = []
    for lag in lags:
        share = float(limit) * (float(lag) / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        granted.append(min(lag, whole))
    return granted


def test_sparks_own_case_of_max_offsets_per_trigger_comes_out_the_same() -> None:
    limits = BatchLimits(1.0, None, max_records=10)
    assert counts(plan_lags([101, 11, 1], limits)) == [8, 1, 1]
    assert counts(plan_lags([93, 10, 0], limits)) == [9, 1, 0]


many_lags = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 10_000), st.integers(0, 2**62)), max_size=40
)


@given(many_lags, st.one_of(st.integers(1, 100), st.integers(1, 2**62)))
def test_without_a_rate_max_offsets_per_trigger_is_exactly_the_native_sources(
    lags: list[int], limit: int
) -> None:
    assert counts(plan_lags(lags, BatchLimits(1.0, None, max_records=limit))) == natively(
        lags, limit
    )


@given(many_lags)
def test_a_limit_of_just_what_is_there_is_exactly_the_native_sources(lags: list[int]) -> None:
    limit = sum(lags)
    assume(limit > 0)
    assert counts(plan_lags(lags, BatchLimits(1.0, None, max_records=limit))) == natively(
        lags, limit
    )


# Under the pressure of a stage after it

PRESSED = BatchLimits(1.0, initial_rate=1000.0)


def plan_under(
    rate_limit: RateLimit | None, rate: float | None, limits: BatchLimits = PRESSED
) -> Plan:
    return plan(orders([0, 0]), orders([3000, 1000]), rate, limits, rate_limit=rate_limit)


def limit_of(rate_per_s: float) -> RateLimit:
    return RateLimit(rate_per_s, "enrich", 1.0, 2 * rate_per_s)


@pytest.mark.parametrize("rate", [None, 800.0])
def test_a_rate_limit_below_the_rate_is_what_is_admitted_and_the_reason_names_its_stage(
    rate: float | None,
) -> None:
    planned = plan_under(limit_of(400.7), rate)
    assert (planned.records, planned.rate_per_s) == (400, 400.0)
    assert planned.describe(planned.reason) == "throttled by enrich"
    assert set(planned.reasons.values()) == {Reason.THROTTLED}


@pytest.mark.parametrize("per_s", [800.0, 900.0])
def test_a_rate_limit_that_is_not_the_least_takes_nothing_away(per_s: float) -> None:
    planned, free = plan_under(limit_of(per_s), 800.0), plan_under(None, 800.0)
    assert (planned.until, planned.reason) == (free.until, Reason.RATE)
    assert planned.describe(planned.reason) == "rate"


def test_a_rate_limit_applies_where_backpressure_is_off() -> None:
    planned = plan_under(limit_of(400.0), None, BatchLimits(1.0, initial_rate=None))
    assert (planned.records, planned.reason) == (400, Reason.THROTTLED)


def test_a_cap_below_the_rate_limit_is_the_reason() -> None:
    planned = plan_under(
        limit_of(400.0), None, BatchLimits(1.0, initial_rate=1000.0, max_records=100)
    )
    assert (planned.records, planned.reason) == (100, Reason.MAX_RECORDS)


def test_a_limit_of_almost_nothing_leaves_a_record_to_each_partition() -> None:
    assert plan_under(limit_of(0.001), 800.0).records == 2


NOON = 43_200_000
PAUSE = OperatorAction(2, "orders", OperatorActionKind.PAUSE, "ops", "sink migration", NOON)


def under(records_per_s: float | None, hold: OperatorAction | None = None) -> OperatorLimits:
    """A control with this limit, at noon."""
    limit = OperatorAction(1, "orders", OperatorActionKind.LIMIT, "jo", "", NOON, records_per_s)
    return OperatorLimits("orders", NOON, hold, None if records_per_s is None else limit)


@pytest.mark.parametrize("rate", [None, 800.0])
@pytest.mark.parametrize("initial_rate", [None, 900.0])
def test_an_operator_s_limit_below_every_rate_is_what_is_admitted_and_the_reason_says_whose(
    rate: float | None, initial_rate: float | None
) -> None:
    planned = plan(
        orders([0, 0]),
        orders([3000, 1000]),
        rate,
        BatchLimits(1.0, initial_rate),
        rate_limit=limit_of(500.0),
        operator=under(400.7),
    )
    assert (planned.records, planned.rate_per_s) == (400, 400.0)
    assert (
        planned.describe(planned.reason) == "limited to 400.7 records/s by jo, since 12:00:00 UTC"
    )
    assert set(planned.reasons.values()) == {Reason.LIMITED}


def test_an_operator_s_limit_that_is_not_the_least_takes_nothing_away() -> None:
    planned = plan(orders([0, 0]), orders([3000, 1000]), 800.0, PRESSED, operator=under(800.0))
    assert (planned.records, planned.reason) == (800, Reason.RATE)


def test_under_a_pause_nothing_is_admitted_and_the_reason_says_by_whom() -> None:
    planned = plan(orders([0, 5]), orders([3000, 5]), 800.0, PRESSED, operator=under(9.0, PAUSE))
    assert (planned.records, planned.lag, planned.until) == (0, 3000, orders([0, 5]))
    assert planned.describe(planned.reason) == "paused by ops: sink migration, since 12:00:00 UTC"
    assert list(planned.reasons.values()) == [Reason.HELD, Reason.NOTHING_NEW]


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
    st.integers(1, 2_000),
)
def test_a_ceiling_caps_the_whole_batch_exactly(lags: list[int], most: int) -> None:
    partitions = [TopicPartition("orders", number) for number in range(len(lags))]
    latest = dict(zip(partitions, lags, strict=True))
    limits = BatchLimits(seconds_per_batch=1, initial_rate=None)
    ceiling = SizeCeiling(most, most + 1)
    planned = plan(dict.fromkeys(partitions, 0), latest, None, limits, ceiling=ceiling)
    assert planned.records == min(sum(lags), ceiling.records)
    assert all(planned.until[each] <= latest[each] for each in partitions)
    if planned.records < sum(lags):
        assert planned.reason is Reason.CEILING
        said = f"ceiling: {most + 1} records at once failed, {most} passed"
        assert planned.describe(planned.reason) == said


def test_under_a_ceiling_of_fewer_records_than_partitions_these_take_turns() -> None:
    """Seen: each batch had a record of each of 8 partitions, and failed; 1 023 calls for 2 000."""
    partitions = [TopicPartition("orders", number) for number in range(8)]
    latest = dict.fromkeys(partitions, 50) | {partitions[3]: 2}
    current, limits = dict.fromkeys(partitions, 0), BatchLimits(1, initial_rate=None)
    for batches in range(1, 200):
        planned = plan(current, latest, None, limits, ceiling=SizeCeiling(2, 4))
        if not planned.records:
            break
        assert planned.records == min(3, sum(latest.values()) - sum(current.values()))
        current = dict(planned.until)
        if batches == 20:
            lead = [current[each] for each in partitions if each != partitions[3]]
            assert max(lead) - min(lead) <= 2
    assert current == latest
