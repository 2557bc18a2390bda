"""Steps of a stage's agent, one by one; the time is an argument."""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flow.stages import RunningStage
from tests.flow.worlds import LedgerWorld
from tests.services.ledgers import gate_now, new_ledger, report_sample
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.errors import BrokerError
from headrace.flow import Signals, StageState
from headrace.flow.agent import SavedPressure, StageAgent, StageSpec
from headrace.flow.kafka_channel import KafkaQueue
from headrace.flow.ledger_transport import ledger_states
from headrace.flow.monitoring import MIN_POLL_S, NEAR_POLL_S, POLL_S
from headrace.gate.control.input_queue import InputQueue
from headrace.gate.control.pressure import Epoch, HopSettings, PressureSignal, RateLimit
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, RateSample

SETTINGS = HopSettings(overload_bytes=10_000, light_load_bytes=1000, lease_ms=10_000)
SPEC = StageSpec("shop", "enrich", "shop.enrich", 1000, ("parse",), ("store",), SETTINGS)
RUN = Epoch(1000, "store-1")


class RecordedSignals(Signals):
    """Signals that go nowhere, and are remembered."""

    is_connected = True

    def __init__(self) -> None:
        self.sent: list[PressureSignal] = []
        self.published: list[StageState] = []
        self.is_closed = False
        self.others: dict[str, str | None] = {"parse": None, "store": None}
        """The stages around it, with what throttles each."""

    def send(self, signal: PressureSignal) -> None:
        self.sent.append(signal)

    def publish(self, state: StageState) -> None:
        self.published.append(state)

    def states(self, names: Collection[str] | None = None) -> Mapping[str, StageState]:
        return {
            name: StageState("shop", name, by, 1.0 if by else 0.0, None, None, 60_000)
            for name, by in self.others.items()
        }

    def close(self) -> None:
        self.is_closed = True


class Queue(KafkaQueue):
    """A queue that is as long as the test says."""

    def __init__(self) -> None:
        self.found = InputQueue(waiting_bytes=0, left_bytes=0, arrived_bytes=0)
        self.fault: str | None = None
        self.is_closed = False

    def grow(self, bytes_more: int) -> None:
        waiting = self.found.waiting_bytes + bytes_more
        self.found = InputQueue(waiting, waiting, self.found.arrived_bytes + bytes_more)

    def drain(self) -> None:
        self.found = replace(self.found, waiting_bytes=0, left_bytes=0)

    def measure(self) -> InputQueue:
        if self.fault is not None:
            raise BrokerError(self.fault)
        return self.found

    def close(self) -> None:
        self.is_closed = True


class Driven:
    """An agent whose steps the test takes."""

    def __init__(self, ledger: Ledger, *, publishes_to_ledger: bool = False) -> None:
        self.ledger = ledger
        self.signals = RecordedSignals()
        self.queue = Queue()
        self.agent = StageAgent(
            SPEC, ledger, self.signals, self.queue, publishes_to_ledger=publishes_to_ledger
        )

    @property
    def level(self) -> float:
        """Level at which it throttles the stage before it."""
        return self.signals.sent[-1].level if self.signals.sent else 0

    @property
    def state(self) -> StageState:
        return self.signals.published[-1]

    def rate_limit(self) -> RateLimit | None:
        return gate_now(self.ledger, SPEC.gate).rate_limit

    def step(self, now_ms: int, *received: PressureSignal, wall_ms: int | None = None) -> None:
        self.agent.step(now_ms, now_ms if wall_ms is None else wall_ms, list(received))

    def steps(self, from_ms: int, until_ms: int) -> None:
        for time_ms in range(from_ms, until_ms, 250):
            self.step(time_ms)

    def overload(self, wall_ms: int | None = None) -> int:
        """Have too much wait, until it throttles; when that is."""
        for time_ms in range(0, 3001, 250):
            self.queue.grow(2000)
            self.step(time_ms, wall_ms=wall_ms)
        return 3000

    def begin(self, number: int) -> None:
        """Begin a batch of 100 records."""
        ranges = (PlannedRange(OffsetRange("topic", 0, number * 100, (number + 1) * 100)),)
        self.ledger.batches.begin(PlannedBatch(SPEC.gate, "run", ranges, "rate", ""))

    def emit(self) -> int:
        """Admit 100 records in each of five seconds; when the last began."""
        for number in range(5):
            self.begin(number)
            self.step(number * 1000)
        return 4000

    def restarted(self) -> "Driven":
        """The next run of the same stage, over the same ledger."""
        return Driven(self.ledger)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(f"sqlite:///{tmp_path}/headrace.db") as opened:
        opened.gates.declare(SPEC.gate, interval_ms=1000, source="kafka", estimator="{}")
        yield opened


@pytest.fixture
def driven(ledger: Ledger) -> Driven:
    return Driven(ledger)


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def says(
    sequence: int, level: float, lease_ms: int = 10_000, sender: str = "store"
) -> PressureSignal:
    return PressureSignal("shop", sender, "enrich", RUN, sequence, level, lease_ms)


def test_a_stage_that_is_overloaded_throttles_the_one_before_it_until_it_ends(
    driven: Driven,
) -> None:
    driven.overload()
    said = driven.signals.sent[0]
    assert (said.sender, said.receiver) == ("enrich", "parse")
    assert said.level > 0
    assert driven.state.queue_bytes == driven.queue.found.waiting_bytes
    driven.agent.close()
    assert driven.level == 0
    state = SavedPressure.of_json(driven.ledger.gates.pressures(SPEC.gate) or "")
    assert state.levels == {"parse": 0}
    assert driven.signals.is_closed
    assert driven.queue.is_closed


def test_an_idle_stage_says_nothing_however_long(driven: Driven) -> None:
    for time_ms in range(0, 10_000_000, 10_000):
        driven.step(time_ms)
    assert driven.signals.sent == []


def test_the_gate_of_a_stage_that_is_throttled_has_a_rate_limit(driven: Driven) -> None:
    now_ms = driven.emit()
    driven.step(now_ms, says(1, 1))
    assert driven.rate_limit() == RateLimit(50.0, "store", 1, 100.0)
    state = driven.state
    assert (state.throttled_by, state.throttle_level, state.rate_limit_per_s) == ("store", 1, 50.0)
    driven.step(now_ms + 250, says(2, 0))
    assert driven.rate_limit() is None
    assert driven.state.throttled_by is None


def test_a_stage_is_free_when_the_lease_is_over_and_says_so(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = driven.emit()
    driven.step(now_ms, says(1, 1))
    driven.step(now_ms + 9_999)
    assert driven.rate_limit() is not None
    driven.step(now_ms + 10_000)
    assert driven.rate_limit() is None
    assert driven.state.throttled_by is None
    assert "Stage 'enrich' of flow 'shop' is no longer throttled by 'store'" in caplog.text


def test_a_stranger_is_logged_and_changes_nothing(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    driven.step(driven.emit(), says(1, 5, sender="nobody"), says(1, 1))
    assert "signal comes from stage 'nobody'" in caplog.text
    limit = driven.rate_limit()
    assert limit is not None
    assert limit.throttled_by == "store"


def test_a_stage_that_restarts_while_it_is_throttled_keeps_its_origin(driven: Driven) -> None:
    driven.step(driven.emit(), says(1, 2))
    driven.ledger.gates.throttle(SPEC.gate, None, 0, driven.ledger.gates.pressures(SPEC.gate) or "")
    driven.restarted().step(monotonic_ms())
    assert driven.rate_limit() == RateLimit(25.0, "store", 2, 100.0)


@pytest.mark.parametrize(("ago_ms", "throttles"), [(0, True), (60_000, False)])
def test_a_stage_that_restarts_throttles_as_before_unless_that_was_over_a_lease_ago(
    driven: Driven, ago_ms: int, throttles: bool
) -> None:
    wall_ms = wall_clock_ms() - ago_ms
    driven.overload(wall_ms)
    again = driven.restarted()
    again.step(monotonic_ms(), wall_ms=wall_ms)
    assert again.level == (driven.level if throttles else 0)
    for said in again.signals.sent:
        assert said.epoch > driven.signals.sent[-1].epoch


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pressures": [{}], "levels": {}}', "null"])
def test_a_pressure_state_that_is_none_is_logged_and_done_without(
    ledger: Ledger, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.gates.throttle(SPEC.gate, None, 0, text)
    Driven(ledger).step(0)
    assert "begins without its saved pressure" in caplog.text


def test_a_pressure_state_reads_as_it_was_written() -> None:
    state = SavedPressure(5, (), {"parse": 1.25})
    assert SavedPressure.of_json(state.to_json()) == state
    levels = [state.level("parse", wall_ms, lease_ms=1000) for wall_ms in (1005, 1006, 4)]
    assert levels == [1.25, 0, 0]
    assert state.level("other", 5, lease_ms=1000) == 0


def test_a_queue_that_cannot_be_measured_is_logged_once_and_tried_again(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    driven.queue.fault = "The topic is gone."
    now_ms = driven.emit()
    driven.step(now_ms, says(1, 1))
    assert caplog.text.count("cannot process its queue now and will retry: The topic is gone.") == 1
    assert driven.rate_limit() is not None
    assert driven.state.queue_bytes is None
    driven.queue.fault = None
    driven.step(now_ms + 1000)
    assert driven.state.queue_bytes == 0


def test_a_poll_is_late_neither_where_an_overload_begins_nor_where_it_has_lasted_long_enough(
    driven: Driven,
) -> None:
    half, fifth = SETTINGS.overload_bytes // 2, SETTINGS.overload_bytes // 5
    for now_ms, more_bytes, next_s in (
        (0, 0, POLL_S),
        (250, half, NEAR_POLL_S),
        (290, fifth, 0.03),  # half of the time until it is overloaded
        (299, fifth, MIN_POLL_S),
    ):
        driven.queue.grow(more_bytes)
        driven.step(now_ms)
        assert driven.agent.next_poll_s(now_ms) == next_s
    driven.queue.grow(SETTINGS.overload_bytes)
    driven.step(300)
    assert driven.agent.next_poll_s(310) == POLL_S, "for there is time"
    assert driven.agent.next_poll_s(2290) == 0.01
    assert driven.agent.next_poll_s(2300) == POLL_S, "for nothing comes"
    driven.queue.grow(1)
    driven.step(2300)
    driven.queue.found = InputQueue(5001, 5001, driven.queue.found.arrived_bytes)
    driven.step(2400)
    assert driven.agent.next_poll_s(2400) == POLL_S, "for it throttles already"


def test_a_stage_whose_signals_are_elsewhere_publishes_its_state_in_the_ledger_too(
    ledger: Ledger,
) -> None:
    driven = Driven(ledger, publishes_to_ledger=True)
    driven.queue.grow(500)
    now_ms = driven.emit()
    driven.step(now_ms, says(1, 1))
    assert ledger_states(ledger, "shop") == {"enrich": driven.state}
    assert (driven.state.throttled_by, driven.state.queue_bytes) == ("store", 500)
    driven.step(now_ms + 2000, says(2, 0))
    assert ledger_states(ledger, "shop")["enrich"].throttled_by is None
    driven.agent.close()
    assert ledger.signals.published("shop") == ()


def test_a_batch_that_takes_minutes_throttles_no_further_than_its_time_says(driven: Driven) -> None:
    """Nothing is taken meanwhile, for longer than sizes of records are remembered."""
    report_sample(driven.ledger, RateSample(SPEC.gate, 0, 100.0, 100, 1000, 0))
    for number in range(2):
        driven.begin(number)
        driven.queue.found = InputQueue(0, 0, 10_000 * (number + 1))
        driven.step(number * 1000, wall_ms=wall_clock_ms())
    (batch,) = driven.ledger.batches.newest(SPEC.gate, 1)
    least = 1.0
    for time_ms in range(1_250, 180_000, 250):
        driven.queue.grow(round(2500 * 0.5**driven.level))
        driven.step(time_ms, wall_ms=batch.created_time_ms + time_ms)
        comes_per_s = 10_000 * 0.5**driven.level
        least = min(least, comes_per_s / (100 * 100 * 1000 / time_ms))
    assert driven.level > 6, "180 s for what should take one"
    assert least > 0.8


@pytest.mark.parametrize("others", [{"store": None}, {"parse": "audit", "store": None}])
def test_a_light_load_lets_nobody_go_who_does_not_run_or_is_throttled_by_another(
    driven: Driven, others: dict[str, str | None]
) -> None:
    now_ms = driven.overload()
    before = driven.level
    driven.signals.others = others
    driven.queue.drain()
    driven.steps(now_ms + 250, now_ms + 200_000)
    assert driven.level == before > 0
    driven.signals.others = {"parse": "enrich", "store": None}
    driven.steps(now_ms + 200_000, now_ms + 230_000)
    assert driven.level == 0


def test_a_stage_says_which_stage_before_it_does_not_run(driven: Driven) -> None:
    missing = []
    for now_ms, running in ((0, "parse"), (2_000, "store"), (4_000, "parse")):
        driven.signals.others = {running: None}
        driven.step(now_ms)
        missing.append(driven.state.missing_upstream)
    assert missing == [None, "parse", None]


def test_while_the_signals_are_unreachable_the_others_count_as_running(driven: Driven) -> None:
    now_ms = driven.overload()
    driven.signals.others = {}
    driven.signals.is_connected = False
    driven.queue.drain()
    driven.steps(now_ms + 250, now_ms + 30_000)
    assert driven.level == 0
    assert driven.state.missing_upstream is None


def test_who_does_not_publish_that_it_runs_throttles_nobody_but_may_let_go(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = driven.emit() + 2_000
    driven.signals.others = {"parse": None}
    for sequence in range(1, 10):
        driven.step(now_ms, says(sequence, 1))
    assert driven.rate_limit() is None
    assert caplog.text.count("A signal under the name of stage 'store' is ignored") == 1
    driven.signals.others = {"parse": None, "store": None}
    driven.step(now_ms, says(10, 1))
    assert driven.rate_limit() is not None
    driven.signals.others = {"parse": None}
    driven.step(now_ms + 2_000, says(11, 0))
    assert driven.rate_limit() is None


def test_a_lease_is_at_most_the_one_that_the_flow_has_declared_also_after_a_restart(
    driven: Driven, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = driven.emit()
    for sequence in range(1, 4):
        driven.step(now_ms, says(sequence, 20, lease_ms=600_000))
    assert caplog.text.count("the lease is cut to 10000 ms, as the flow declares") == 1
    text = driven.ledger.gates.pressures(SPEC.gate) or ""
    driven.step(now_ms + 10_000)
    assert driven.rate_limit() is None
    driven.ledger.gates.throttle(SPEC.gate, None, 0, text.replace("10000", "600000"))
    again, began_ms = driven.restarted(), monotonic_ms()
    again.step(began_ms + 5_000)
    assert driven.rate_limit() is not None
    again.step(began_ms + 11_000)
    assert driven.rate_limit() is None


def test_an_overloaded_stage_throttles_the_one_before_it_until_it_ends(tmp_path: Path) -> None:
    """With threads of their own, and signals over the ledger's database."""
    url, chain = f"sqlite:///{tmp_path}/flow.db", ("parse", "store")
    with LedgerWorld("shop", url) as world, Ledger.open(url) as ledger:
        parse, store = (RunningStage(world, ledger, name, chain) for name in chain)

        def throttled_by() -> str | None:
            parse.admit()
            return parse.throttled_by()

        store.queue.flood()
        wait_until(lambda: throttled_by() == "store", timeout_s=100)
        wait_until(lambda: len(ledger.signals.published("shop")) == 2, timeout_s=100)
        store.close()
        wait_until(lambda: throttled_by() is None, timeout_s=50)
        parse.close()
        assert ledger.signals.published("shop") == ()
