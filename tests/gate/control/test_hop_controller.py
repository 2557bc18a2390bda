"""When a stage throttles the stage before it, and how much."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.hop import HopController
from headrace.gate.control.input_queue import InputQueue, takes_per_s
from headrace.gate.control.pressure import Epoch, HopSettings, PressureSignal, RateLimit

OVERLOAD, LIGHT = 50_000_000, 500_000
LOOK_MS = 250
RUN = Epoch(1000, "a")


def controller(level: float = 0.0, **settings: int) -> HopController:
    return HopController("shop", "enrich", "parse", RUN, HopSettings(**settings), level=level)


class Looking:
    """Looks at a queue every quarter of a second, with time and arrivals that go on."""

    def __init__(self, it: HopController, comes_per_s: int = 20_000_000) -> None:
        self.it = it
        self.comes_per_s = comes_per_s
        self.time_ms = 0
        self.arrived = 0
        self.said: list[tuple[int, float]] = []

    def at(
        self,
        waiting: int,
        for_ms: int,
        *,
        takes: float | None = None,
        left: int | None = None,
        is_running: bool = False,
        grows: bool = False,
    ) -> None:
        """Look at a queue of this size for so long; the last look is at the end of it."""
        until_ms = self.time_ms + for_ms
        while self.time_ms < until_ms:
            self.time_ms += LOOK_MS
            self.arrived += self.comes_per_s * LOOK_MS // 1000
            if grows:
                waiting += self.comes_per_s * LOOK_MS // 1000
            self.look(waiting, takes=takes, left=left, is_running=is_running)

    def look(
        self,
        waiting: int,
        *,
        takes: float | None = None,
        left: int | None = None,
        is_running: bool = False,
    ) -> None:
        left = waiting if left is None else left
        queue = InputQueue(waiting, left, self.arrived, takes, is_running)
        said = self.it.look(self.time_ms, queue)
        if said is not None:
            self.said.append((self.time_ms, said.level))

    @property
    def changes(self) -> list[tuple[int, float]]:
        """Return the levels that were sent, without repetitions of the one before."""
        before, changes = 0.0, []
        for time_ms, level in self.said:
            if level != before:
                changes.append((time_ms, level))
            before = level
        return changes


def test_an_overload_that_lasts_for_the_sensitivity_interval_is_signalled_then() -> None:
    looking = Looking(controller())
    looking.at(OVERLOAD, 2000)
    assert looking.said == []
    looking.at(OVERLOAD, 250)
    assert looking.said == [(2250, 1.0)]


def test_it_is_known_when_an_overload_will_have_lasted_for_long_enough() -> None:
    looking = Looking(controller())
    due = []
    for waiting, for_ms in ((OVERLOAD - 1, 250), (OVERLOAD, 250), (OVERLOAD, 2000), (0, 250)):
        looking.at(waiting, for_ms)
        due.append(looking.it.overload_due_ms)
    assert looking.changes == [(2500, 1.0)]
    assert due == [None, 2500, 4500, None]


def test_below_the_threshold_by_a_byte_it_never_is() -> None:
    looking = Looking(controller())
    looking.at(OVERLOAD - 1, 60_000)
    assert looking.said == []


def test_a_momentary_spike_is_not_signalled() -> None:
    looking = Looking(controller())
    for _ in range(20):
        looking.at(10 * OVERLOAD, 2000)
        looking.at(OVERLOAD - 1, 250)
    assert looking.said == []


def test_with_a_sensitivity_of_0_the_first_look_signals_it() -> None:
    looking = Looking(controller(overload_sensitivity_ms=0))
    looking.at(0, 250)
    looking.at(OVERLOAD, 250)
    assert looking.said == [(500, 1.0)]
    looking.at(OVERLOAD, 1750)
    assert looking.changes == [(500, 1.0)]
    looking.at(OVERLOAD, 250)
    assert looking.changes == [(500, 1.0), (2500, 2.0)]


def test_each_further_interval_is_one_more_level_where_it_is_not_known_what_is_taken() -> None:
    looking = Looking(controller())
    looking.at(OVERLOAD, 8250)
    assert looking.changes == [(2250, 1.0), (4250, 2.0), (6250, 3.0), (8250, 4.0)]


def test_levels_are_bounded() -> None:
    looking = Looking(controller())
    looking.at(OVERLOAD, 200_000)
    assert looking.it.level == 20.0


def test_without_traffic_there_is_no_signal_not_even_at_the_first_look() -> None:
    for sensitivity_ms in (0, 2000):
        looking = Looking(controller(overload_sensitivity_ms=sensitivity_ms), comes_per_s=0)
        looking.at(10 * OVERLOAD, 60_000)
        assert looking.said == []


def test_where_it_is_known_what_is_taken_one_signal_brings_what_comes_to_nine_tenths_of_it() -> (
    None
):
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    assert [time_ms for time_ms, _ in looking.said] == [12_250]
    assert looking.it.level == pytest.approx(2.152, abs=0.001)
    assert 20 * 0.5**looking.it.level == pytest.approx(0.9 * 5)


def test_what_the_stage_takes_is_averaged_over_the_interval() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 1000, takes=8_000_000)
    looking.at(OVERLOAD, 1250, takes=2_000_000)
    assert 20 * 0.5**looking.it.level == pytest.approx(0.9 * (4 * 8 + 5 * 2) / 9)


def test_what_came_during_the_overload_counts_where_nothing_was_measured_before() -> None:
    looking = Looking(controller(), comes_per_s=16_000_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    assert 16 * 0.5**looking.it.level == pytest.approx(0.9 * 5)


def test_a_queue_that_is_worked_off_is_not_throttled_further() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    looking.comes_per_s = 4_500_000
    looking.at(OVERLOAD, 60_000, takes=5_000_000)
    assert len(looking.changes) == 1


def test_a_queue_that_falls_is_not_throttled_further_where_what_is_taken_is_not_known() -> None:
    looking = Looking(controller())
    looking.at(2 * OVERLOAD, 2250)
    for waiting in range(2 * OVERLOAD, OVERLOAD, -1_000_000):
        looking.at(waiting, 250)
    assert looking.changes == [(2250, 1.0)]


def test_a_stage_that_takes_nothing_is_given_half_at_each_interval() -> None:
    looking = Looking(controller())
    looking.at(OVERLOAD, 4250, takes=0.0)
    assert looking.changes == [(2250, 1.0), (4250, 2.0)]


def test_a_light_load_for_the_whole_interval_is_one_level_up_and_so_on_until_it_is_free() -> None:
    looking = Looking(controller(level=3.0))
    looking.at(LIGHT, 8250)
    assert looking.changes == [(250, 3.0), (2250, 2.0), (4250, 1.0), (6250, 0.0)]
    looking.at(LIGHT, 60_000)
    assert len(looking.changes) == 4


def test_above_the_light_load_by_a_byte_nothing_is_let_go() -> None:
    looking = Looking(controller(level=3.0))
    looking.at(LIGHT + 1, 60_000)
    assert looking.changes == [(250, 3.0)]


def test_a_look_that_breaks_a_light_load_begins_its_interval_anew() -> None:
    looking = Looking(controller(level=3.0))
    for _ in range(20):
        looking.at(LIGHT, 2000)
        looking.at(LIGHT + 1, 250)
    assert looking.changes == [(250, 3.0)]


def test_between_the_thresholds_nothing_changes() -> None:
    looking = Looking(controller(level=2.0))
    looking.at((OVERLOAD + LIGHT) // 2, 600_000)
    assert looking.changes == [(250, 2.0)]


def test_what_comes_between_two_batches_does_not_make_a_load_heavy() -> None:
    """A second's worth of records waits for the next batch, and the last one left nothing."""
    looking = Looking(controller(level=1.0))
    looking.at(20_000_000, 2250, left=0)
    assert looking.changes == [(250, 1.0), (2250, 0.0)]


def test_an_up_goes_no_further_than_what_the_stage_takes() -> None:
    looking = Looking(controller(level=2.0), comes_per_s=5_000_000)
    looking.at(0, 60_000, takes=6_000_000)
    assert 20 * 0.5**looking.it.level == pytest.approx(6, rel=0.01)
    looking.comes_per_s = 6_000_000
    looking.at(0, 600_000, takes=6_000_000)
    assert 20 * 0.5**looking.it.level == pytest.approx(6, rel=0.01)


def test_an_up_is_at_most_one_step_and_ends_in_freedom() -> None:
    looking = Looking(controller(level=2.0), comes_per_s=5_000_000)
    looking.at(0, 60_000, takes=100_000_000)
    assert looking.changes == [(250, 2.0), (4250, 1.0), (6250, 0.0)]


def test_nothing_is_let_go_while_it_is_not_known_what_comes_but_what_is_taken() -> None:
    looking = Looking(controller(level=2.0), comes_per_s=5_000_000)
    looking.at(0, 2250, takes=100_000_000)
    assert looking.changes == [(250, 2.0)]


def test_a_stage_before_that_is_short_of_records_for_a_while_is_not_let_go() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    looking.comes_per_s = 4_500_000
    looking.at(OVERLOAD, 20_000, takes=5_000_000)
    pressed = looking.it.level
    looking.comes_per_s = 2_000_000
    looking.at(0, 30_000, takes=5_000_000)
    assert 0.14 < pressed - looking.it.level < 0.16  # from 4.5 to 5 MB/s, and no further


def test_when_nothing_comes_any_more_the_pressure_ends() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    looking.comes_per_s = 0
    looking.at(0, 120_000, takes=5_000_000)
    assert looking.it.level == 0.0


@pytest.mark.parametrize("takes", [None, 0.0, 5_000_000.0])
def test_an_idle_flow_left_alone_for_days_never_signals(takes: float | None) -> None:
    it = controller()
    for minute in range(5 * 24 * 60):
        assert it.look(60_000 * minute, InputQueue(0, 0, 10**12, takes)) is None


def test_a_level_is_signalled_again_every_third_of_a_lease_and_freedom_once() -> None:
    looking = Looking(controller(lease_ms=3000))
    looking.at(OVERLOAD, 2250, takes=18_000_000)
    looking.at(OVERLOAD - 1, 3000, takes=18_000_000, left=LIGHT + 1)
    assert [time_ms for time_ms, _ in looking.said] == [2250, 3250, 4250, 5250]
    assert len({level for _, level in looking.said}) == 1
    looking.at(0, 60_000, takes=40_000_000)
    assert [level for _, level in looking.said].count(0.0) == 1


def test_the_sequence_rises_with_every_signal_and_the_rest_stays() -> None:
    it = controller(level=2.0)
    said = list(all_said(it, [0] * 60))
    assert [signal.sequence for signal in said] == list(range(1, len(said) + 1))
    assert {(a.flow, a.sender, a.receiver, a.epoch, a.lease_ms) for a in said} == {
        ("shop", "enrich", "parse", RUN, 10_000)
    }


def all_said(it: HopController, waiting: list[int]) -> Iterator[PressureSignal]:
    for number, size in enumerate(waiting):
        said = it.look(500 * number, InputQueue(size, size, number, None))
        if said is not None:
            yield said


def test_a_restarted_stage_goes_on_with_its_level_and_signals_it_at_once() -> None:
    it = controller(level=1.5)
    said = it.look(0, InputQueue(LIGHT + 1, LIGHT + 1, 0, None))
    assert said is not None
    assert said.level == 1.5


def test_a_stage_that_stops_lets_go() -> None:
    it = controller(level=1.5)
    said = it.release(0)
    assert said is not None
    assert said.level == 0.0
    assert it.release(0) is None


def test_only_what_time_alone_can_change_is_worth_watching() -> None:
    looking = Looking(controller())
    looking.at(0, 1000)
    watching = [looking.it.is_watching]
    for waiting, for_ms in [(OVERLOAD, 250), (OVERLOAD, 3000), (LIGHT + 1, 250)]:
        looking.at(waiting, for_ms)
        watching.append(looking.it.is_watching)
    assert watching == [False, True, True, True]


def test_names_and_levels_are_checked_when_it_is_made() -> None:
    make: list[Callable[[], HopController]] = [
        lambda: HopController("shop", "en/rich", "parse", RUN, HopSettings()),
        lambda: controller(level=21),
    ]
    for each in make:
        with pytest.raises(OptionError):
            each()


@pytest.mark.parametrize(
    ("limit_per_s", "running_ms", "expected"),
    [
        (None, 0, 970.0),  # a part of the gate's rate
        (None, 1000, 970.0),  # a batch within its interval tells nothing yet
        (None, 4000, 242.5),  # 1000 records that have taken 4 s: 250 records/s at most
        (400.0, 0, 400.0),  # its own limit, wholly
        (400.0, 4000, 242.5),
    ],
)
def test_what_a_stage_takes_is_the_least_that_is_known_of_it(
    limit_per_s: float | None, running_ms: int, expected: float
) -> None:
    limit = None if limit_per_s is None else RateLimit(limit_per_s, "store", 1.0, 2 * limit_per_s)
    assert takes_per_s(1000.0, limit, 1000, 1000, running_ms) == expected


def test_what_a_stage_takes_is_known_from_a_batch_alone_where_no_rate_was_learnt_yet() -> None:
    assert takes_per_s(None, None, 1000, 1000, 0) is None
    assert takes_per_s(None, None, 1000, 1000, 1000) is None
    assert takes_per_s(None, None, 1000, 1000, 4000) == 242.5


def test_a_batch_that_runs_over_is_throttled_for_as_far_as_its_time_says_and_no_further() -> None:
    """A batch of 40 MB, which would take two seconds; 20 MB come in each."""
    looking = Looking(controller())
    looking.at(0, 10_000)
    began_ms, waiting = looking.time_ms, OVERLOAD
    while looking.time_ms < began_ms + 60_000:
        running_ms = looking.time_ms + LOOK_MS - began_ms
        takes = 0.97 * 40_000_000 * 1000 / max(running_ms, 2000)
        waiting += looking.comes_per_s * LOOK_MS // 1000
        looking.at(waiting, LOOK_MS, takes=takes, is_running=True)
        looking.comes_per_s = int(20_000_000 * 0.5**looking.it.level)
        assert looking.comes_per_s > 0.85 * 40_000_000 * 1000 / max(running_ms, 2250)
    assert looking.comes_per_s < 1.1 * 40_000_000 / 60


def test_a_batch_within_its_time_is_no_stand_still_though_nothing_is_taken() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 8000, takes=30_000_000, is_running=True, grows=True)
    assert looking.changes == []


def test_a_stage_that_stands_still_is_throttled_more_and_more_slowly() -> None:
    """Each time its stand-still has doubled, by a level: it takes the same in twice the time."""
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 128_250, takes=30_000_000, grows=True)
    levels = dict(looking.changes)
    assert levels[12_250] == 1.0
    assert levels[14_250] == pytest.approx(2.0)
    assert levels[18_250] == pytest.approx(3.0)
    assert levels[138_250] == pytest.approx(7.0)


def test_what_turns_out_to_be_too_much_is_taken_back_whatever_waits() -> None:
    looking = Looking(controller(level=8.0), comes_per_s=100_000)
    looking.at(3 * OVERLOAD, 10_000, takes=5_000_000)
    assert 100_000 * 0.5 ** (looking.it.level - 8) == pytest.approx(0.9 * 5_000_000)


def test_what_is_a_little_less_than_the_stage_takes_is_not_too_much() -> None:
    looking = Looking(controller(level=3.0), comes_per_s=3_100_000)
    looking.at((OVERLOAD + LIGHT) // 2, 60_000, takes=5_000_000)
    assert looking.changes == [(250, 3.0)]


def test_what_was_not_applied_yet_is_said_again_and_not_made_more() -> None:
    """The stage before has a batch at hand from before the signal, and goes on as it did."""
    looking = Looking(controller(lease_ms=60_000), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 2250, takes=5_000_000)
    looking.at(OVERLOAD, 50_000, takes=5_000_000)
    assert len(looking.changes) == 1
    assert len(looking.said) > 20
    looking.at(OVERLOAD, 20_000, takes=5_000_000)
    assert len(looking.changes) == 2, "a lease later it did not help"


QUEUES = st.lists(
    st.tuples(
        st.integers(1, 3000),
        st.sampled_from([0, LIGHT, LIGHT + 1, OVERLOAD - 1, OVERLOAD, 3 * OVERLOAD]),
        st.integers(0, 10**8),
        st.one_of(st.none(), st.floats(0, 1e9)),
    ),
    max_size=100,
)


@given(QUEUES, st.floats(0, 20))
def test_whatever_is_seen_levels_stay_in_bounds_and_changes_are_an_interval_apart(
    looks: list[tuple[int, int, int, float | None]], level: float
) -> None:
    it = controller(level=level)
    now_ms = arrived = 0
    changed_ms, sequence = None, 0
    for wait_ms, waiting, came, takes in looks:
        now_ms, arrived, before = now_ms + wait_ms, arrived + came, it.level
        said = it.look(now_ms, InputQueue(waiting, waiting, arrived, takes))
        assert 0 <= it.level <= 20
        if it.level != before:
            assert said is not None
            assert changed_ms is None or now_ms - changed_ms >= 2000
            assert waiting >= OVERLOAD or it.level < before
            if waiting <= LIGHT:  # else it takes back what was too much, however much that is
                assert before - it.level <= (1.1 if it.level == 0 else 1 + 1e-9)
            changed_ms = now_ms
        if said is not None:
            assert (said.level, said.sequence) == (it.level, sequence + 1)
            sequence = said.sequence


@given(QUEUES)
def test_equal_looks_are_equal_levels(
    looks: list[tuple[int, int, int, float | None]],
) -> None:
    def levels() -> list[float]:
        it, now_ms, arrived, seen = controller(), 0, 0, []
        for wait_ms, waiting, came, takes in looks:
            now_ms, arrived = now_ms + wait_ms, arrived + came
            it.look(now_ms, InputQueue(waiting, waiting, arrived, takes))
            seen.append(it.level)
        return seen

    assert levels() == levels()


def test_a_stage_that_took_nothing_is_throttled_by_one_level_at_least() -> None:
    looking = Looking(controller(), comes_per_s=20_000_000)
    looking.at(0, 10_000)
    for number in range(9):
        looking.at(OVERLOAD + 5_000_000 * number, 250, takes=30_000_000)
    assert looking.changes == [(12_250, 1.0)]


def test_what_came_in_an_earlier_overload_does_not_count_in_the_next() -> None:
    looking = Looking(controller(), comes_per_s=40_000_000)
    looking.at(0, 10_000)
    looking.at(OVERLOAD, 2250, takes=30_000_000)
    looking.at(0, 60_000, takes=90_000_000)
    assert looking.it.level == 0
    looking.comes_per_s = 10_000_000
    looking.at(0, 20_000)
    looking.at(OVERLOAD, 2250, takes=8_000_000)
    assert 10 * 0.5**looking.it.level == pytest.approx(0.9 * 8)
