"""What a stage's agent does, look by look; the time is an argument."""

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from tests.services.ledgers import new_ledger

from headrace.control import Epoch, HopSettings, InputQueue, OffsetRange, PressureSignal, RateLimit
from headrace.errors import JournalError
from headrace.flow import StageState
from headrace.flow.agent import StageAgent, StagePlace
from headrace.flow.memory import Memory
from headrace.flow.pace import LEAST_LOOK_S, LOOK_S, NEAR_LOOK_S
from headrace.flow.signals_ledger import ledger_states
from headrace.ledger import Ledger, PlannedBatch, PlannedRange, RateSample
from headrace.ledger.base import wall_clock_ms

SETTINGS = HopSettings(overload_bytes=10_000, light_load_bytes=1000, lease_ms=10_000)
PLACE = StagePlace("shop", "enrich", "shop.enrich", 1000, ("parse",), ("store",), SETTINGS)
RUN = Epoch(1000, "store-1")


class Mail:
    """Signals that go nowhere, and are remembered."""

    def __init__(self) -> None:
        self.sent: list[PressureSignal] = []
        self.shown: list[StageState] = []
        self.is_closed = False
        self.is_connected = True
        self.others: dict[str, str | None] = {"parse": None, "store": None}

    def send(self, assertion: PressureSignal) -> None:
        self.sent.append(assertion)

    def receive(self, wait_s: float = 0) -> list[PressureSignal]:
        raise AssertionError("the test hands over what is heard")

    def publish(self, state: StageState) -> None:
        self.shown.append(state)

    def states(self, names: Collection[str] | None = None) -> Mapping[str, StageState]:
        return {
            name: StageState("shop", name, held_by, 1.0 if held_by else 0.0, None, None, 60_000)
            for name, held_by in self.others.items()
        }

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> "Mail":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class Waiting:
    """A queue that is as long as it is told."""

    def __init__(self) -> None:
        self.found = InputQueue(waiting_bytes=0, left_bytes=0, arrived_bytes=0)
        self.fault: str | None = None
        self.is_closed = False

    def grow(self, bytes_more: int) -> None:
        waiting = self.found.waiting_bytes + bytes_more
        self.found = InputQueue(waiting, waiting, self.found.arrived_bytes + bytes_more)

    def look(self) -> InputQueue:
        if self.fault is not None:
            raise JournalError(self.fault)
        return self.found

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(f"sqlite:///{tmp_path}/headrace.db") as opened:
        opened.declare_gate(PLACE.gate, interval_ms=1000, source="journal", estimator="{}")
        yield opened


@pytest.fixture
def mail() -> Mail:
    return Mail()


@pytest.fixture
def queue() -> Waiting:
    return Waiting()


@pytest.fixture
def agent(ledger: Ledger, mail: Mail, queue: Waiting) -> StageAgent:
    return StageAgent(PLACE, ledger, mail, queue)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def says(sequence: int, level: float, run: Epoch = RUN) -> PressureSignal:
    return PressureSignal("shop", "store", "enrich", run, sequence, level, 10_000)


def begin(ledger: Ledger, number: int, records: int = 100) -> None:
    offsets = OffsetRange("lane", 0, number * records, (number + 1) * records)
    ledger.begin(
        PlannedBatch(
            gate=PLACE.gate,
            run_id="run",
            ranges=(PlannedRange(offsets, None, None, None),),
            reason="rate",
            bootstrap_servers="",
            lag=0,
            rate_per_s=100.0,
        )
    )


def emit(agent: StageAgent, ledger: Ledger, from_ms: int, seconds: int = 5) -> int:
    """Admit 100 records in each of some seconds; when the last began."""
    for number in range(seconds):
        begin(ledger, from_ms // 1000 + number)
        agent.step(from_ms + number * 1000, 0, [])
    return from_ms + (seconds - 1) * 1000


def test_a_stage_that_is_overloaded_presses_the_one_before_it(
    agent: StageAgent, mail: Mail, queue: Waiting
) -> None:
    for time_ms in range(0, 3001, 250):
        queue.grow(2000)
        agent.step(time_ms, time_ms, [])
    assert [(said.sender, said.receiver) for said in mail.sent][:1] == [("enrich", "parse")]
    assert mail.sent[0].level > 0
    assert mail.shown[-1].queue_bytes == queue.found.waiting_bytes


def test_an_idle_stage_says_nothing_however_long(agent: StageAgent, mail: Mail) -> None:
    for time_ms in range(0, 10_000_000, 10_000):
        agent.step(time_ms, time_ms, [])
    assert mail.sent == []


def test_a_stage_that_is_pressed_has_its_gate_held_back(
    agent: StageAgent, ledger: Ledger, mail: Mail
) -> None:
    now_ms = emit(agent, ledger, 0)
    agent.step(now_ms, 0, [says(1, 1)])
    assert ledger.admission(PLACE.gate).held == RateLimit(50.0, "store", 1, 100.0)
    shown = mail.shown[-1]
    assert (shown.held_by, shown.level, shown.rate_bound_per_s) == ("store", 1, 50.0)
    agent.step(now_ms + 250, 0, [says(2, 0)])
    assert ledger.admission(PLACE.gate).held is None
    assert mail.shown[-1].held_by is None


def test_a_stage_is_free_when_the_lease_is_over_and_says_so(
    agent: StageAgent, ledger: Ledger, mail: Mail, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = emit(agent, ledger, 0)
    agent.step(now_ms, 0, [says(1, 1)])
    agent.step(now_ms + 9_999, 0, [])
    assert ledger.admission(PLACE.gate).held is not None
    agent.step(now_ms + 10_000, 0, [])
    assert ledger.admission(PLACE.gate).held is None
    assert mail.shown[-1].held_by is None
    assert "Stage 'enrich' of flow 'shop' is free of 'store'" in caplog.text


def test_a_stranger_is_told_and_changes_nothing(
    agent: StageAgent, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = emit(agent, ledger, 0)
    forged = PressureSignal("shop", "nobody", "enrich", RUN, 1, 5, 10_000)
    agent.step(now_ms, 0, [forged, says(1, 1)])
    assert "A signal comes from stage 'nobody'" in caplog.text
    held = ledger.admission(PLACE.gate).held
    assert held is not None
    assert held.throttled_by == "store"


def test_a_stage_that_restarts_while_it_is_held_keeps_its_origin(
    agent: StageAgent, ledger: Ledger, queue: Waiting
) -> None:
    now_ms = emit(agent, ledger, 0)
    agent.step(now_ms, 0, [says(1, 2)])
    ledger.hold(PLACE.gate, None, 0, ledger.pressures(PLACE.gate) or "")
    again = StageAgent(PLACE, ledger, Mail(), queue)
    again.step(_monotonic_ms(), 0, [])
    assert ledger.admission(PLACE.gate).held == RateLimit(25.0, "store", 2, 100.0)


def test_a_stage_that_restarts_at_once_presses_as_hard_as_before(
    agent: StageAgent, ledger: Ledger, mail: Mail, queue: Waiting
) -> None:
    wall_ms = time.time_ns() // 1_000_000
    for time_ms in range(0, 3001, 250):
        queue.grow(2000)
        agent.step(time_ms, wall_ms, [])
    again_mail = Mail()
    again = StageAgent(PLACE, ledger, again_mail, queue)
    again.step(_monotonic_ms(), wall_ms, [])
    assert again_mail.sent[0].level == mail.sent[-1].level
    assert again_mail.sent[0].epoch > mail.sent[-1].epoch


def test_a_stage_that_was_away_for_longer_than_a_lease_presses_nobody_at_first(
    agent: StageAgent, ledger: Ledger, queue: Waiting
) -> None:
    wall_ms = time.time_ns() // 1_000_000 - 60_000
    for time_ms in range(0, 3001, 250):
        queue.grow(2000)
        agent.step(time_ms, wall_ms, [])
    mail = Mail()
    StageAgent(PLACE, ledger, mail, queue).step(_monotonic_ms(), wall_ms, [])
    assert mail.sent == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pressures": [{}], "levels": {}}', "null"])
def test_a_memory_that_is_none_is_told_and_done_without(
    ledger: Ledger, mail: Mail, queue: Waiting, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.hold(PLACE.gate, None, 0, text)
    StageAgent(PLACE, ledger, mail, queue).step(0, 0, [])
    assert "begins without its memory" in caplog.text


def test_a_memory_reads_as_it_was_written() -> None:
    memory = Memory(5, (), {"parse": 1.25})
    assert Memory.of_text(memory.to_text()) == memory
    assert memory.level("parse", 1005, lease_ms=1000) == 1.25
    assert memory.level("parse", 1006, lease_ms=1000) == 0
    assert memory.level("parse", 4, lease_ms=1000) == 0
    assert memory.level("other", 5, lease_ms=1000) == 0


def test_a_queue_that_cannot_be_looked_at_is_told_once_and_tried_again(
    agent: StageAgent, ledger: Ledger, mail: Mail, queue: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    queue.fault = "The journal is away."
    now_ms = emit(agent, ledger, 0)
    agent.step(now_ms, 0, [says(1, 1)])
    assert caplog.text.count("cannot see to its queue at present: The journal is away.") == 1
    assert ledger.admission(PLACE.gate).held is not None
    assert mail.shown[-1].queue_bytes is None
    queue.fault = None
    agent.step(now_ms + 1000, 0, [])
    assert mail.shown[-1].queue_bytes == 0


def test_a_look_is_late_neither_where_an_overload_begins_nor_where_it_has_lasted_long_enough(
    agent: StageAgent, queue: Waiting
) -> None:
    agent.step(0, 0, [])
    assert agent.next_look_s(0) == LOOK_S
    queue.grow(SETTINGS.overload_bytes // 2)
    agent.step(250, 250, [])
    assert agent.next_look_s(250) == NEAR_LOOK_S
    queue.grow(SETTINGS.overload_bytes // 5)
    agent.step(290, 290, [])
    assert agent.next_look_s(290) == 0.03, "half of the time until it is too long"
    queue.grow(SETTINGS.overload_bytes // 5)
    agent.step(299, 299, [])
    assert agent.next_look_s(299) == LEAST_LOOK_S
    queue.grow(SETTINGS.overload_bytes)
    agent.step(300, 300, [])
    assert agent.next_look_s(310) == LOOK_S, "for there is time"
    assert agent.next_look_s(2290) == 0.01
    assert agent.next_look_s(2300) == LOOK_S, "for nothing comes"
    queue.grow(1)
    agent.step(2300, 2300, [])
    queue.found = InputQueue(5001, 5001, queue.found.arrived_bytes)
    agent.step(2400, 2400, [])
    assert agent.next_look_s(2400) == LOOK_S, "for it presses already"


def test_an_agent_that_ends_presses_nobody_any_longer(
    agent: StageAgent, ledger: Ledger, mail: Mail, queue: Waiting
) -> None:
    for time_ms in range(0, 3001, 250):
        queue.grow(2000)
        agent.step(time_ms, time_ms, [])
    agent.close()
    assert mail.sent[-1].level == 0
    assert Memory.of_text(ledger.pressures(PLACE.gate) or "").levels == {"parse": 0}
    assert mail.is_closed
    assert queue.is_closed


def test_a_stage_whose_signals_are_elsewhere_shows_itself_in_the_ledger_too(
    ledger: Ledger, mail: Mail, queue: Waiting
) -> None:
    agent = StageAgent(PLACE, ledger, mail, queue, shows_in_ledger=True)
    queue.grow(500)
    agent.step(now_ms := emit(agent, ledger, 0), 0, [says(1, 1)])
    assert ledger_states(ledger, "shop") == {"enrich": mail.shown[-1]}
    assert (mail.shown[-1].held_by, mail.shown[-1].queue_bytes) == ("store", 500)
    agent.step(now_ms + 2000, 0, [says(2, 0)])
    assert ledger_states(ledger, "shop")["enrich"].held_by is None
    agent.close()
    assert ledger.shown_stages("shop") == ()


def test_a_batch_that_takes_minutes_presses_no_further_than_its_time_says(
    ledger: Ledger, mail: Mail, queue: Waiting
) -> None:
    """Nothing is taken meanwhile, for longer than sizes of records are looked back on."""
    agent = StageAgent(PLACE, ledger, mail, queue)
    ledger.publish_rate(RateSample(PLACE.gate, 0, 100.0, 100, 1000, 0))
    wall_ms = wall_clock_ms()
    for number in range(2):
        begin(ledger, number)
        queue.found = InputQueue(0, 0, 10_000 * (number + 1))
        agent.step(number * 1000, wall_ms, [])
    (batch,) = ledger.batches(PLACE.gate, 1)
    least = 1.0
    for time_ms in range(1_250, 180_000, 250):
        queue.grow(round(2500 * 0.5 ** (mail.sent[-1].level if mail.sent else 0)))
        agent.step(time_ms, batch.created_time_ms + time_ms, [])
        comes_per_s = 10_000 * 0.5 ** (mail.sent[-1].level if mail.sent else 0)
        least = min(least, comes_per_s / (100 * 100 * 1000 / time_ms))
    assert mail.sent[-1].level > 6, "180 s for what should take one"
    assert least > 0.8


def press(agent: StageAgent, queue: Waiting, from_ms: int = 0) -> int:
    """Have too much wait, until it presses; when that is."""
    for time_ms in range(from_ms, from_ms + 3001, 250):
        queue.grow(2000)
        agent.step(time_ms, time_ms, [])
    return from_ms + 3000


@pytest.mark.parametrize("others", [{"store": None}, {"parse": "audit", "store": None}])
def test_a_light_load_lets_nobody_go_who_does_not_run_or_is_held_back_by_another(
    agent: StageAgent, mail: Mail, queue: Waiting, others: dict[str, str | None]
) -> None:
    now_ms = press(agent, queue)
    pressed = mail.sent[-1].level
    mail.others = others
    queue.found = InputQueue(0, 0, queue.found.arrived_bytes)
    for time_ms in range(now_ms + 250, now_ms + 200_000, 250):
        agent.step(time_ms, time_ms, [])
    assert mail.sent[-1].level == pressed > 0
    mail.others = {"parse": "enrich", "store": None}
    for time_ms in range(now_ms + 200_000, now_ms + 230_000, 250):
        agent.step(time_ms, time_ms, [])
    assert mail.sent[-1].level == 0


def test_a_stage_says_which_stage_before_it_does_not_run(agent: StageAgent, mail: Mail) -> None:
    without = []
    for now_ms, running in ((0, "parse"), (2_000, "store"), (4_000, "parse")):
        mail.others = {running: None}
        agent.step(now_ms, 0, [])
        without.append(mail.shown[-1].without)
    assert without == [None, "parse", None]


def test_while_the_signals_are_away_the_others_count_as_running(
    agent: StageAgent, mail: Mail, queue: Waiting
) -> None:
    now_ms = press(agent, queue)
    mail.others = {}
    mail.is_connected = False
    queue.found = InputQueue(0, 0, queue.found.arrived_bytes)
    for time_ms in range(now_ms + 250, now_ms + 30_000, 250):
        agent.step(time_ms, time_ms, [])
    assert mail.sent[-1].level == 0
    assert mail.shown[-1].without is None


def test_who_does_not_show_that_it_runs_presses_nobody_but_may_let_go(
    agent: StageAgent, ledger: Ledger, mail: Mail, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = emit(agent, ledger, 0) + 2_000
    mail.others = {"parse": None}
    for sequence in range(1, 10):
        agent.step(now_ms, 0, [says(sequence, 1)])
    assert ledger.admission(PLACE.gate).held is None
    assert caplog.text.count("'store' seems to have sent is ignored") == 1
    mail.others = {"parse": None, "store": None}
    agent.step(now_ms, 0, [says(10, 1)])
    assert ledger.admission(PLACE.gate).held is not None
    mail.others = {"parse": None}
    agent.step(now_ms + 2_000, 0, [says(11, 0)])
    assert ledger.admission(PLACE.gate).held is None


def test_a_lease_is_at_most_the_one_that_the_flow_has_declared_also_after_a_restart(
    agent: StageAgent,
    ledger: Ledger,
    queue: Waiting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ms = emit(agent, ledger, 0)
    for sequence in range(1, 4):
        forged = PressureSignal("shop", "store", "enrich", RUN, sequence, 20, 600_000)
        agent.step(now_ms, 0, [forged])
    assert caplog.text.count("it is for 10000 ms, which the flow has declared") == 1
    text = ledger.pressures(PLACE.gate) or ""
    agent.step(now_ms + 10_000, 0, [])
    assert ledger.admission(PLACE.gate).held is None
    ledger.hold(PLACE.gate, None, 0, text.replace("10000", "600000"))
    again, began_ms = StageAgent(PLACE, ledger, Mail(), queue), _monotonic_ms()
    again.step(began_ms + 5_000, 0, [])
    assert ledger.admission(PLACE.gate).held is not None
    again.step(began_ms + 11_000, 0, [])
    assert ledger.admission(PLACE.gate).held is None
