"""Rate that a throttled stage may emit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.pressure import (
    Epoch,
    HopSettings,
    PressureSignal,
    SignalOutcome,
    UpstreamThrottle,
)

RUN = Epoch(1000, "a")
NEXT_RUN = Epoch(2000, "b")


def says(
    sequence: int,
    level: float,
    *,
    sender: str = "enrich",
    run: Epoch = RUN,
    lease_ms: int = 10_000,
) -> PressureSignal:
    return PressureSignal("shop", sender, "parse", run, sequence, level, lease_ms)


def throttle(step: float = 0.5) -> UpstreamThrottle:
    return UpstreamThrottle("shop", "parse", ["enrich", "store"], HopSettings(step=step))


def rate(of: UpstreamThrottle, time_ms: int) -> float | None:
    limit = of.rate_limit(time_ms)
    return None if limit is None else limit.rate_per_s


def test_a_stage_that_received_nothing_is_free() -> None:
    assert throttle().rate_limit(0) is None
    assert throttle().expire(10**9) == []


def test_the_first_down_remembers_the_rate_and_each_further_one_multiplies_it_again() -> None:
    it = throttle()
    assert it.apply(says(1, 1), 0, 1000.0) is SignalOutcome.THROTTLES
    assert rate(it, 0) == 500.0
    it.apply(says(2, 2), 1000, 480.0)
    assert rate(it, 1000) == 250.0
    limit = it.rate_limit(1000)
    assert limit is not None
    assert (limit.throttled_by, limit.level, limit.origin_per_s) == ("enrich", 2, 1000.0)


def test_ups_lead_back_to_the_origin_rate_and_then_it_is_free() -> None:
    it = throttle()
    for sequence, level, expected in [(1, 2, 250.0), (2, 1, 500.0)]:
        it.apply(says(sequence, level), 0, 1000.0)
        assert rate(it, 0) == expected
    assert it.apply(says(3, 0), 0, 500.0) is SignalOutcome.FREE
    assert rate(it, 0) is None


def test_a_part_of_a_level_is_a_part_of_a_step() -> None:
    it = throttle(step=0.25)
    it.apply(says(1, 0.5), 0, 1000.0)
    assert rate(it, 0) == pytest.approx(500.0)


def test_pressure_after_freedom_has_an_origin_of_its_own() -> None:
    it = throttle()
    it.apply(says(1, 1), 0, 1000.0)
    it.apply(says(2, 0), 0, 500.0)
    it.apply(says(3, 1), 0, 600.0)
    assert rate(it, 0) == 300.0


def test_what_is_older_is_ignored_and_reported() -> None:
    it = throttle()
    it.apply(says(5, 2), 0, 1000.0)
    assert it.apply(says(5, 0), 0, 1000.0) is SignalOutcome.STALE
    assert it.apply(says(4, 0), 0, 1000.0) is SignalOutcome.STALE
    it.apply(says(1, 1, run=NEXT_RUN), 0, 1000.0)
    assert it.apply(says(99, 3), 0, 1000.0) is SignalOutcome.STALE_EPOCH
    assert rate(it, 0) == 500.0


@pytest.mark.parametrize("level", [0, 2])
def test_a_run_that_began_by_an_earlier_clock_is_heard_once_the_lease_of_the_later_is_over(
    level: float,
) -> None:
    it = throttle()
    it.apply(says(1, level, run=Epoch(10**15, "forged")), 0, 1000.0)
    assert it.apply(says(1, 1), 9999, 1000.0) is SignalOutcome.STALE_EPOCH
    assert it.apply(says(2, 1), 10_000, 1000.0) is SignalOutcome.THROTTLES
    assert rate(it, 10_000) == 500.0
    assert it.apply(says(3, 0), 10_001, 500.0) is SignalOutcome.FREE


def test_a_sender_that_restarts_while_it_throttles_does_not_change_the_origin() -> None:
    it = throttle()
    it.apply(says(5, 2), 0, 1000.0)
    it.apply(says(1, 1, run=NEXT_RUN), 100, 250.0)
    assert rate(it, 100) == 500.0


def test_without_a_signal_within_its_lease_it_is_free_at_once_and_reported() -> None:
    it = throttle()
    it.apply(says(1, 1), 5000, 1000.0)
    assert rate(it, 14_999) == 500.0
    assert it.expire(14_999) == []
    assert rate(it, 15_000) is None
    assert it.expire(15_000) == ["enrich"]
    assert it.expire(15_001) == []


def test_a_signal_again_renews_the_lease() -> None:
    it = throttle()
    it.apply(says(1, 1), 0, 1000.0)
    it.apply(says(2, 1), 9000, 500.0)
    assert rate(it, 18_999) == 500.0
    assert rate(it, 19_000) is None


def test_a_node_that_cannot_be_deleted_holds_nothing_beyond_its_lease() -> None:
    it = throttle()
    it.apply(says(1, 1), 0, 1000.0)
    for time_ms in range(0, 60_000, 500):
        assert it.apply(says(1, 1), time_ms, 1000.0) is SignalOutcome.STALE
    assert rate(it, 10_000) is None
    it.expire(10_000)
    assert it.apply(says(1, 1), 11_000, 1000.0) is SignalOutcome.STALE
    assert rate(it, 11_000) is None


def test_of_several_downstreams_the_strictest_limit_holds_and_all_must_let_go() -> None:
    it = throttle()
    it.apply(says(1, 1), 0, 1000.0)
    it.apply(says(1, 2, sender="store"), 0, 500.0)
    limit = it.rate_limit(0)
    assert limit is not None
    assert (limit.rate_per_s, limit.throttled_by) == (125.0, "store")
    it.apply(says(2, 0, sender="store"), 0, 125.0)
    assert rate(it, 0) == 500.0
    it.apply(says(2, 0), 0, 500.0)
    assert rate(it, 0) is None


def test_of_equal_limits_the_first_name_is_shown() -> None:
    it = throttle()
    it.apply(says(1, 1, sender="store"), 0, 1000.0)
    it.apply(says(1, 1), 0, 1000.0)
    limit = it.rate_limit(0)
    assert limit is not None
    assert limit.throttled_by == "enrich"


@pytest.mark.parametrize("present", [None, 0.0])
def test_what_emits_nothing_is_not_limited_until_it_emits(present: float | None) -> None:
    it = throttle()
    assert it.apply(says(1, 1), 0, present) is SignalOutcome.THROTTLES
    assert it.rate_limit(0) is None
    it.apply(says(2, 1), 100, 400.0)
    assert rate(it, 100) == 200.0


def test_a_rate_limit_lowers_another_rate_and_never_raises_it() -> None:
    it = throttle()
    it.apply(says(1, 1), 0, 1000.0)
    limit = it.rate_limit(0)
    assert limit is not None
    assert [limit.applied_to(other) for other in (None, 400.0, 700.0)] == [500.0, 400.0, 500.0]


def test_a_restarted_stage_keeps_its_origin_and_its_memory_for_one_lease_more() -> None:
    before = throttle()
    before.apply(says(7, 1), 50_000, 1000.0)
    it = throttle()
    it.restore(before.states(), 0)
    assert it.apply(says(7, 3), 10, 500.0) is SignalOutcome.STALE
    assert rate(it, 9999) == 500.0
    assert rate(it, 10_000) is None
    again = throttle()
    again.restore(before.states(), 0)
    again.apply(says(8, 2), 0, 500.0)
    assert rate(again, 0) == 250.0


@pytest.mark.parametrize(
    ("stranger", "message"),
    [
        (replace(says(1, 1), flow="other"), "is for stage 'parse' of flow 'other'; this is stage"),
        (replace(says(1, 1), receiver="load"), "is for stage 'load' of flow 'shop'"),
        (says(1, 1, sender="forged"), "which are 'enrich', 'store'"),
    ],
)
def test_strangers_are_refused_and_change_nothing(stranger: PressureSignal, message: str) -> None:
    it = throttle()
    with pytest.raises(OptionError, match=message):
        it.apply(stranger, 0, 1000.0)
    assert it.states() == []


def test_a_pressure_of_a_stranger_is_not_restored() -> None:
    before = throttle()
    before.apply(says(1, 1), 0, 1000.0)
    it = UpstreamThrottle("shop", "parse", ["store"], HopSettings())
    with pytest.raises(OptionError, match="restore only their states"):
        it.restore(before.states(), 0)


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([RUN, NEXT_RUN]),
        st.integers(1, 12),
        st.sampled_from(["enrich", "store"]),
    ),
    max_size=40,
)


def level_of(run: Epoch, sequence: int) -> float:
    """Return the level of a message; a sequence number has one level, however often it is sent."""
    return float((sequence * 7 + run.started_ms) % 5)


@given(MESSAGES)
def test_messages_may_be_lost_repeated_and_overtaken(
    messages: list[tuple[Epoch, int, str]],
) -> None:
    """Whatever comes in whatever order, the newest that came is in force, as if it came alone."""
    it = throttle()
    for run, sequence, sender in messages:
        it.apply(says(sequence, level_of(run, sequence), run=run, sender=sender), 0, 1000.0)
    newest: dict[str, tuple[Epoch, int]] = {}
    for run, sequence, sender in messages:
        newest[sender] = max(newest.get(sender, (run, sequence)), (run, sequence))
    rates = [1000.0 * 0.5 ** level_of(*last) for last in newest.values() if level_of(*last) > 0]
    assert rate(it, 0) == min(rates, default=None)


@given(MESSAGES, st.lists(st.integers(0, 5000), max_size=40), st.floats(1.0, 1e6))
def test_nothing_ever_holds_for_longer_than_a_lease_after_the_last_message(
    messages: list[tuple[Epoch, int, str]], waits_ms: list[int], present: float
) -> None:
    it, now_ms = throttle(), 0
    for (run, sequence, sender), wait_ms in zip(messages, waits_ms, strict=False):
        now_ms += wait_ms
        it.apply(says(sequence, level_of(run, sequence), run=run, sender=sender), now_ms, present)
        limit = it.rate_limit(now_ms)
        assert limit is None or 0 < limit.rate_per_s < present
    assert it.rate_limit(now_ms + 10_000) is None


def test_pressure_that_was_only_lost_goes_on_from_the_same_origin() -> None:
    it = throttle()
    it.apply(says(1, 2), 0, 1000.0)
    assert it.expire(10_000) == ["enrich"]
    it.apply(says(2, 2), 19_999, 700.0)
    assert rate(it, 19_999) == 250.0
    it.apply(says(3, 2), 19_999 + 20_000, 700.0)
    assert rate(it, 39_999) == 175.0
