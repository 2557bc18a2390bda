"""The planner: what holds for every plan."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.gate.control.plans import counts, orders, plan_lags

from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import BatchLimits, PartitionLimit
from headrace.gate.control.plan import plan
from headrace.gate.control.rate_law import Reason


@st.composite
def limits_of(draw: st.DrawFn) -> BatchLimits:
    seconds = draw(st.sampled_from([0.1, 0.5, 1.0, 60.0]))
    floor = draw(st.integers(1, 50))
    caps = st.one_of(st.just(0.0), st.floats(floor / seconds * 1.01, 1e6))
    overrides = st.dictionaries(
        st.builds(TopicPartition, st.just("orders"), st.integers(0, 9)), caps
    )
    optional = st.one_of(st.none(), st.integers(50, 10**7))
    return BatchLimits(
        seconds,
        draw(st.one_of(st.none(), st.floats(0.1, 1e6))),
        PartitionLimit(draw(caps), draw(overrides)),
        PartitionLimit(floor),
        draw(optional),
        draw(optional),
    )


positions = st.lists(
    st.tuples(st.integers(0, 10**9), st.one_of(st.integers(-50, 50), st.integers(0, 10**9))),
    max_size=12,
)
rates = st.one_of(st.none(), st.floats(-1, 1e7))
sizes = st.one_of(st.none(), st.floats(0, 1e6), st.just({"orders": 100.0}))


@given(positions, rates, limits_of(), sizes)
def test_a_plan_adds_up_makes_progress_and_stays_within_what_there_is(
    positions: list[tuple[int, int]],
    rate: float | None,
    limits: BatchLimits,
    record_bytes: float | dict[str, float] | None,
) -> None:
    current = orders([start for start, _ in positions])
    latest = orders([start + ahead for start, ahead in positions])
    planned = plan(current, latest, rate, limits, record_bytes)

    assert planned.until.keys() == planned.reasons.keys() == latest.keys()
    for partition, until in planned.until.items():
        assert current[partition] <= until <= max(current[partition], latest[partition])
        lag = latest[partition] - current[partition]
        assert lag <= 0 or until > current[partition]
        reason = planned.reasons[partition]
        assert (reason is Reason.NOTHING_NEW) == (lag <= 0)
        assert (reason is Reason.EVERYTHING) == (lag > 0 and until == latest[partition])
    assert planned.records == sum(planned.until[p] - current[p] for p in latest)
    assert planned.lag == sum(max(latest[p] - current[p], 0) for p in latest)
    assert planned.left_over == sum(planned.unread.values())
    assert planned.left_over == 0 or planned.unread[planned.reason] == max(planned.unread.values())


lags_of = st.lists(st.one_of(st.integers(0, 100), st.integers(0, 10**9)), min_size=1, max_size=20)


@given(lags_of, st.floats(0.1, 1e6), st.integers(1, 1000))
def test_no_partition_gets_less_than_its_floor_unless_it_has_less(
    lags: list[int], rate: float, floor: int
) -> None:
    limits = BatchLimits(1.0, initial_rate=1, min_per_partition=PartitionLimit(floor))
    planned = plan_lags(lags, limits, rate=rate)
    assert all(count >= min(lag, floor) for count, lag in zip(counts(planned), lags, strict=True))


@given(lags_of, rates, st.integers(1, 10**6))
def test_max_offsets_is_exceeded_by_at_most_one_record_for_each_share_below_one(
    lags: list[int], rate: float | None, max_records: int
) -> None:
    by_rate = counts(plan_lags(lags, BatchLimits(1.0, initial_rate=1000), rate))
    planned = plan_lags(lags, BatchLimits(1.0, initial_rate=1000, max_records=max_records), rate)
    total = sum(by_rate)
    below_one = sum(0 < Fraction(max_records * count, total) < 1 for count in by_rate if count)
    assert planned.records <= max_records + below_one


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.fixed_dictionaries({topic: st.integers(1, 10**6) for topic in "abc"}),
    st.integers(1, 10**10),
)
def test_max_bytes_is_exceeded_by_at_most_one_record_for_each_share_below_one(
    partitions: list[tuple[str, int]], record_bytes: dict[str, int], max_bytes: int
) -> None:
    latest = {TopicPartition(topic, n): lag for n, (topic, lag) in enumerate(partitions)}
    planned = plan(
        dict.fromkeys(latest, 0),
        latest,
        None,
        BatchLimits(1.0, None, max_bytes=max_bytes),
        record_bytes,
    )
    size = sum(count * record_bytes[p.topic] for p, count in planned.until.items())
    total = sum(lag * record_bytes[p.topic] for p, lag in latest.items())
    excess = sum(
        record_bytes[p.topic]
        for p, lag in latest.items()
        if lag and Fraction(max_bytes * lag, total) < 1
    )
    assert size <= max_bytes + excess


@given(
    lags_of,
    st.data(),
    st.integers(1, 10**9),
    st.floats(1, 1e6),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_a_partition_that_falls_further_behind_gets_no_less(
    lags: list[int], data: st.DataObject, further: int, rate: float, max_records: int | None
) -> None:
    limits = BatchLimits(1.0, initial_rate=1, max_records=max_records)
    which = data.draw(st.integers(0, len(lags) - 1))
    behind = [lag + further if number == which else lag for number, lag in enumerate(lags)]
    before = counts(plan_lags(lags, limits, rate=rate))
    after = counts(plan_lags(behind, limits, rate=rate))
    assert after[which] >= before[which]
    if max_records is None:
        assert all(a <= b for n, (a, b) in enumerate(zip(after, before, strict=True)) if n != which)


@given(positions, rates, limits_of())
def test_a_plan_does_not_depend_on_the_order_of_partitions(
    positions: list[tuple[int, int]], rate: float | None, limits: BatchLimits
) -> None:
    current = orders([start for start, _ in positions])
    latest = orders([start + ahead for start, ahead in positions])
    backwards = dict(reversed(latest.items()))
    assert plan(current, latest, rate, limits) == plan(current, backwards, rate, limits)
