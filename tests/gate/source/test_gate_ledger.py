"""A gate's ledger as its planner keeps it, and the claim by which it is the only one."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.services.ledgers import patient, report_sample
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.system import is_gone, new_owner, number_of, this_process
from headrace.errors import GateInUseError, LedgerError
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.limits import BatchLimits
from headrace.gate.control.plan import plan
from headrace.gate.control.pressure import RateLimit
from headrace.gate.control.rate_law import Reason
from headrace.gate.ledger.gates import GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedRange, RateSample, batch_key
from headrace.gate.ledger.transitions import Status
from headrace.gate.source.gate_ledger import GateIdentity, GateLedger, await_turn, describe_process
from headrace.gate.source.stream_offset import StreamOffset
from headrace.testing import ManualClock

RUN = "run"
END = StreamOffset({}, "orders", RUN, {"orders": "first"})
SETTINGS = EstimatorSettings("pid", {"backpressure.pid.proportional": 0.5})
GATE = GateIdentity("orders", 10_000, SETTINGS, "kafka", "broker:9092")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate_ledger(url: str, clock: ManualClock) -> Iterator[GateLedger]:
    with claimed(GateLedger(url, GATE, clock)) as opened:
        yield opened


@pytest.fixture
def ledger(url: str, gate_ledger: GateLedger) -> Iterator[Ledger]:
    """The same ledger, as the driver's listener has it."""
    with Ledger.open(url) as opened:
        yield opened


@contextmanager
def claimed(gate_ledger: GateLedger) -> Iterator[GateLedger]:
    with closing(gate_ledger):
        gate_ledger.claim()
        yield gate_ledger


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_planner_that_ends_after_its_program_was_killed_keeps_the_gate_claimed(
    url: str, clock: ManualClock, is_killed: bool
) -> None:
    machine, _number, rest = this_process().split(":", 2)
    driver = f"{machine}:{2**31}:{rest}" if is_killed else this_process()
    with claimed(GateLedger(url, replace(GATE, driver=driver), clock)):
        pass
    with Ledger.open(url) as ledger:
        found = ledger.gates.last_queries(["orders"]).get("orders")
    assert (found is not None) is is_killed


def ranges_of(number: int) -> list[OffsetRange]:
    return [OffsetRange("orders", 0, number * 10, number * 10 + 10)]


def begin(gate_ledger: GateLedger, number: int) -> str:
    """Begin the batch of this number; its name."""
    gate_ledger.begin(END, ranges_of(number), None, {})
    return batch_key("orders", RUN, ranges_of(number), END.topic_ids)


def report(ledger: Ledger, batch: str, rate_per_s: float) -> None:
    report_sample(ledger, RateSample("orders", 0, rate_per_s, 10, 900, 0, batch_key=batch))


def test_the_gate_is_declared_with_what_the_listener_must_know(ledger: Ledger) -> None:
    (gate,) = ledger.gates.all()
    assert (gate.name, gate.interval_ms, gate.source) == ("orders", 10_000, "kafka")
    assert EstimatorSettings.from_text(gate.estimator) == SETTINGS


def test_a_batch_is_written_down_with_its_plan(gate_ledger: GateLedger, ledger: Ledger) -> None:
    here, there = TopicPartition("orders", 0), TopicPartition("orders", 1)
    latest = {here: 30, there: 2}
    planned = plan({here: 0, there: 2}, latest, 7.0, BatchLimits(1.0, initial_rate=1.0))
    ranges = [OffsetRange("orders", 0, 0, 7)]
    gate_ledger.begin(END, ranges, planned, latest)
    (batch,) = ledger.batches.newest("orders")
    assert (batch.reason, batch.lag, batch.rate_per_s) == (Reason.RATE, 30, 7.0)
    assert ledger.batches.ranges(batch.batch_key) == (
        PlannedRange(ranges[0], 30, Reason.RATE, "first"),
    )


def test_a_batch_that_is_held_back_is_written_down_with_the_stage_that_holds_it(
    gate_ledger: GateLedger, ledger: Ledger
) -> None:
    here = TopicPartition("orders", 0)
    ledger.gates.throttle("orders", RateLimit(7.0, "enrich", 1.0, 14.0), 60_000, "")
    gate = gate_ledger.admission()
    held = None if gate is None else gate.rate_limit
    planned = plan({here: 0}, {here: 30}, 9.0, BatchLimits(1.0, initial_rate=1.0), rate_limit=held)
    gate_ledger.begin(END, [OffsetRange("orders", 0, 0, 7)], planned, {here: 30})
    (batch,) = ledger.batches.newest("orders")
    assert (batch.reason, batch.rate_per_s) == ("throttled by enrich", 7.0)
    (begun,) = ledger.batches.ranges(batch.batch_key)
    assert begun.reason == "throttled by enrich"


def test_the_same_offsets_of_a_topic_that_recreated_are_another_batch(
    gate_ledger: GateLedger, ledger: Ledger
) -> None:
    ledger.batches.succeed(begin(gate_ledger, 0))
    gate_ledger.begin(replace(END, topic_ids={"orders": "second"}), ranges_of(0), None, {})
    assert [b.status for b in ledger.batches.newest("orders")] == [
        Status.IN_PROGRESS,
        Status.SUCCESS,
    ]


def test_a_batch_of_nothing_is_not_written_down(gate_ledger: GateLedger, ledger: Ledger) -> None:
    gate_ledger.begin(END, [], None, {})
    assert ledger.batches.newest("orders") == ()


def rate_of(gate_ledger: GateLedger) -> float | None:
    """The rate that the next batch is planned with."""
    gate = gate_ledger.admission()
    return None if gate is None else gate.rate_per_s


def test_before_the_first_batch_nothing_is_waited_for(
    gate_ledger: GateLedger, clock: ManualClock
) -> None:
    assert rate_of(gate_ledger) is None
    assert clock.monotonic() == 0


def test_the_report_of_the_last_batch_is_waited_for(
    gate_ledger: GateLedger, ledger: Ledger, clock: ManualClock
) -> None:
    for number in range(3):
        batch = begin(gate_ledger, number)
        clock.on_sleep = lambda: report(ledger, batch, 40.0 + number)  # noqa: B023
        assert rate_of(gate_ledger) == 40.0 + number


def test_a_report_that_is_there_costs_no_time(
    gate_ledger: GateLedger, ledger: Ledger, clock: ManualClock
) -> None:
    report(ledger, begin(gate_ledger, 0), 40.0)
    assert rate_of(gate_ledger) == 40.0
    assert clock.monotonic() == 0


@pytest.mark.integration
def test_a_report_that_does_not_come_is_waited_for_one_interval_and_the_rate_stays(
    gate_ledger: GateLedger, ledger: Ledger, clock: ManualClock
) -> None:
    report(ledger, begin(gate_ledger, 0), 40.0)
    begin(gate_ledger, 1)
    assert rate_of(gate_ledger) == 40.0
    assert clock.monotonic() == pytest.approx(10.0, abs=0.01)


@pytest.mark.integration
def test_where_nobody_listens_only_the_first_report_is_waited_for(
    gate_ledger: GateLedger, ledger: Ledger, clock: ManualClock
) -> None:
    begin(gate_ledger, 0)
    assert rate_of(gate_ledger) is None
    waited_s = clock.monotonic()
    for number in range(1, 4):
        begin(gate_ledger, number)
        assert rate_of(gate_ledger) is None
    assert clock.monotonic() == waited_s > 0


@pytest.mark.integration
def test_one_report_that_came_late_does_not_end_the_waiting(
    gate_ledger: GateLedger, ledger: Ledger, clock: ManualClock
) -> None:
    first = begin(gate_ledger, 0)
    assert rate_of(gate_ledger) is None
    report(ledger, first, 40.0)
    second = begin(gate_ledger, 1)
    clock.on_sleep = lambda: report(ledger, second, 50.0)
    assert rate_of(gate_ledger) == 50.0


def test_a_batch_begun_twice_has_one_row_and_two_attempts(
    gate_ledger: GateLedger, ledger: Ledger
) -> None:
    begin(gate_ledger, 0)
    begin(gate_ledger, 0)
    (batch,) = ledger.batches.newest("orders")
    assert (batch.attempts, batch.reason) == (2, "run again after a restart")


@contextmanager
def locked(url: str, clock: ManualClock) -> Iterator[tuple[GateLedger, sqlite3.Connection]]:
    """A claimed gate, and a connection that has its database's only lock until it rolls back."""
    with (
        claimed(GateLedger(url, GATE, clock, timeouts=patient(clock))) as gate_ledger,
        closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        yield gate_ledger, other


def test_a_planner_whose_driver_has_ended_waits_no_longer(
    url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(url, clock) as (gate_ledger, other):
        parent = os.getppid()
        monkeypatch.setattr(os, "getppid", lambda: 1 if clock.monotonic() > 20 else parent)
        with pytest.raises(LedgerError, match="because the driver ended"):
            begin(gate_ledger, 1)
        assert 20 < clock.monotonic() < 23
        other.rollback()
    with Ledger.open(url) as ledger:
        assert ledger.batches.newest("orders") == ()


@pytest.mark.integration
def test_a_planner_waits_for_its_ledger(url: str, clock: ManualClock) -> None:
    with locked(url, clock) as (gate_ledger, other):
        clock.on_sleep = lambda: other.rollback() if clock.monotonic() > 60 else None
        begin(gate_ledger, 1)
        assert 60 < clock.monotonic() < 63
        assert rate_of(gate_ledger) is None


def query(owner: str, until_ms: int, driver: str | None = None) -> GateQuery:
    return GateQuery(owner, driver, None, "process 7 on web", "/ckpt", "run", 0, until_ms, 0)


class Gate:
    """A gate that answers each look with the next of these, then that it is free."""

    def __init__(self, *answers: GateQuery | None) -> None:
        self._answers: Iterator[GateQuery | None] = iter(answers)
        self.gone: list[str | None] = []
        self.waits = 0

    def look(self, gone: str | None) -> GateQuery | None:
        self.gone.append(gone)
        return next(self._answers, None)

    def wait(self, _seconds: float) -> None:
        self.waits += 1


def await_gate(gate: Gate) -> None:
    await_turn("orders", gate.look, gate.wait)


@pytest.fixture
def ended() -> str:
    """The name of a process that has ended."""
    tell = "from headrace.core.system import this_process; print(this_process())"
    told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def test_a_free_gate_is_not_waited_for() -> None:
    gate = Gate()
    await_gate(gate)
    assert (gate.waits, gate.gone) == (0, [None])


def test_a_query_that_renews_its_lease_is_alive_and_named() -> None:
    gate = Gate(query("blue", 1_000), query("blue", 1_000), query("blue", 6_000))
    with pytest.raises(
        GateInUseError,
        match=r"'orders' is in use by another query, of process 7 on web, since 1970-01-01 00:00:00"
        r" UTC, with the checkpoint /ckpt: a gate has one query at a time",
    ):
        await_gate(gate)
    assert gate.waits == 2


def test_a_query_that_gives_no_sign_of_life_is_waited_for_until_its_lease_is_over() -> None:
    gate = Gate(*[query("blue", 1_000)] * 300)
    await_gate(gate)
    assert gate.waits == 300


def test_a_query_that_took_the_gate_meanwhile_is_watched_from_then_on() -> None:
    gate = Gate(query("blue", 1_000), query("green", 9_000), query("green", 9_000))
    await_gate(gate)
    with pytest.raises(GateInUseError):
        await_gate(Gate(query("blue", 1_000), query("green", 9_000), query("green", 9_500)))


@pytest.mark.integration
@pytest.mark.parametrize("of", ["planner", "driver"])
def test_a_query_whose_process_has_ended_is_replaced_at_once(ended: str, of: str) -> None:
    assert is_gone(ended)
    owner = f"{ended}/1" if of == "planner" else new_owner()
    gate = Gate(query(owner, 1_000, None if of == "planner" else ended))
    await_gate(gate)
    assert (gate.waits, gate.gone) == (0, [None, owner])


@pytest.mark.integration
def test_a_process_that_ended_and_that_nobody_has_asked_about_is_gone() -> None:
    says = (
        "from headrace.core.system import this_process; print(this_process(), flush=True); input()"
    )
    command = [sys.executable, "-c", says]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        assert not is_gone(name)
        child.kill()
        wait_until(lambda: is_gone(name))


def test_a_query_of_a_process_that_lives_is_not_gone() -> None:
    gate = Gate(query(new_owner(), 1_000, this_process()), query(new_owner(), 1_000))
    await_gate(gate)
    assert gate.gone == [None, None, None]


@pytest.mark.integration
def test_a_look_that_cannot_take_over_is_content_when_the_process_has_ended(ended: str) -> None:
    gate = Gate(*[query(f"{ended}/1", 1_000)] * 3)
    await_gate(gate)
    assert gate.waits == 0


def test_a_process_is_described_by_its_number() -> None:
    number = number_of(this_process())
    assert number is not None
    assert describe_process(this_process(), otherwise=1).startswith(f"process {number} on ")
    assert describe_process(None, otherwise=1).startswith("process 1 on ")
    assert describe_process("unknown", otherwise=2).startswith("process 2 on ")
