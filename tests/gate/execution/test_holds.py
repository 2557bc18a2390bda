"""A batch whose sink is away waits in place, with a real ledger, and with crashes."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from tests.gate.execution.events import planned
from tests.gate.execution.readers import (
    READER,
    KeyedSink,
    Killed,
    OnceSink,
    Place,
    Poisoned,
    places,
)
from tests.gate.ledger.samples import stored
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.core.system import new_owner
from headrace.core.timing import LEASE_MS
from headrace.errors import OptionError
from headrace.gate.control.hold import OutageSettings, SinkOutage
from headrace.gate.control.law import Law
from headrace.gate.control.laws import DEFAULT_LAW, LAWS, EstimatorSettings
from headrace.gate.execution.batch import Batch, Handler
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.policy import OnFailure, parse_on_failure, with_outages
from headrace.gate.execution.world import BatchRunner
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.testing import Crash, MemoryLog, StreamHarness

WHOLE = OffsetRange("orders-topic", 0, 0, 40)
BEGAN_MS = 1_700_000_000_000


class Away(KeyedSink):
    """A sink that cannot be reached up to some time, and counts who tried."""

    def __init__(self, until_s: float, bad: tuple[Place, ...] = ()) -> None:
        super().__init__(bad)
        self.until_s = until_s
        self.now_s: Callable[[], float] = lambda: 0.0
        self.tried: list[tuple[float, str]] = []

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.tried.append((self.now_s(), batch.key))
        if self.now_s() < self.until_s:
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        super().__call__(df, batch)


class Gate:
    """A gate's batches in a ledger, and a clock that sleeping moves."""

    def __init__(self, ledger: Ledger, policy: OnFailure) -> None:
        self.ledger = ledger
        self.policy = policy
        self.now_s = 0.0
        self.stops_at_s = float("inf")
        self.owner = new_owner()
        self.asks_at_s = float("inf")

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s
        if self.now_s >= self.asks_at_s:
            self.asks_at_s = float("inf")
            assert self.ledger.repairs.retry_sink("orders", "ada", "it is back")

    def starts(self, handler: Handler) -> BatchRunner:
        context = RunContext(
            ledger=self.ledger,
            handler=handler,
            owner=self.owner,
            policy=self.policy,
            reader=READER,
            stopped=lambda: self.now_s >= self.stops_at_s,
            sleep=self.sleep,
        )
        return BatchRunner(context)

    def run(
        self, executor: BatchRunner, offsets: OffsetRange = WHOLE, gone: str | None = None
    ) -> BatchRecord:
        key = self.ledger.batches.begin(planned("orders", offsets)).batch_key
        attached = self.ledger.batches.attach(
            key, 7, owner=self.owner, lease_ms=LEASE_MS, gone=gone
        )
        assert attached is not None
        executor.run_live(READER.frame([offsets]), attached, 7)
        return stored(self.ledger, key)


def policy(on_failure: str = "isolate", on_outage: str = "hold", **times: int) -> OnFailure:
    settings = replace(OutageSettings(), **times)  # type: ignore[arg-type]
    return with_outages(parse_on_failure(on_failure), on_outage, settings)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gates: list[Gate] = []
    url = f"sqlite:///{tmp_path}/headrace.db"
    clock = lambda: BEGAN_MS + round(gates[0].now_s * 1000) if gates else BEGAN_MS  # noqa: E731
    with new_ledger(url, database_clock=clock) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        gates.append(Gate(ledger, policy()))
        yield gates[0]


@pytest.mark.integration
@pytest.mark.parametrize("on_failure", ["isolate", "defer", "stop"])
def test_an_outage_of_half_an_hour_is_one_failed_batch_and_a_handful_of_lines(
    gate: Gate, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate.policy = policy(on_failure)
    sink = Away(until_s=1_800)
    sink.now_s = lambda: gate.now_s
    executor = gate.starts(sink)
    row = gate.run(executor)
    assert (row.status, row.attempts) == (Status.SUCCESS, 2)
    assert gate.ledger.batches.newest("orders", 100) == (row,), "it was split"
    assert sink.everything == places([WHOLE])
    assert 1_800 <= gate.now_s <= 1_860
    whole = [at_s for at_s, key in sink.tried if key == row.batch_key]
    waits = [later - earlier for earlier, later in itertools.pairwise(whole)]
    backoffs = [min(2**n, 60) for n in range(len(waits))]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, backoffs, strict=True))
    assert len(sink.tried) - len(whole) <= 3 * 4, "parts were tried more often"
    assert len(caplog.messages) <= 2 + 30
    assert "127.0.0.1:5432 refused" in caplog.messages[0]
    assert "continues after waiting for 0:3" in caplog.messages[-1]
    assert gate.ledger.sink_outages.get("orders") is None
    gate.run(executor, OffsetRange("orders-topic", 0, 40, 50))
    assert len(sink.tried) == len(whole) + (on_failure != "stop") * 12 + 1


def test_what_is_known_of_an_outage_is_in_the_ledger_while_it_lasts(gate: Gate) -> None:
    sink = Away(until_s=10)
    sink.now_s = lambda: gate.now_s
    seen: list[SinkOutage] = []

    def sleep(wait_s: float) -> None:
        outage = gate.ledger.sink_outages.get("orders")
        assert outage is not None
        seen.append(outage)
        gate.now_s += wait_s

    gate.sleep = sleep  # type: ignore[method-assign]
    row = gate.run(gate.starts(sink))
    runs = [each.runs for each in seen]
    assert (runs, runs[0]) == (sorted(runs), 1)
    last = seen[-1]
    assert (last.batch, last.since_ms) == (row.batch_key, BEGAN_MS)
    assert last.error == "ConnectionRefusedError: 127.0.0.1:5432 refused"
    assert last.next_ms == BEGAN_MS + round(gate.now_s * 1000)


def test_a_restart_waits_on_with_the_same_batch_and_the_same_backoff(gate: Gate) -> None:
    sink = Away(until_s=100)
    sink.now_s = lambda: gate.now_s
    gate.stops_at_s = 40
    with pytest.raises(ConnectionRefusedError):
        gate.run(gate.starts(sink))
    before = gate.ledger.sink_outages.get("orders")
    assert before is not None
    row = stored(gate.ledger, before.batch)
    assert (row.interrupted, row.outcome_unknown) == (True, False)
    tried, gate.stops_at_s = len(sink.tried), float("inf")
    row = gate.run(gate.starts(sink))
    assert row.status is Status.SUCCESS
    assert sink.tried[tried][0] * 1000 + BEGAN_MS >= before.next_ms
    whole = [at_s for at_s, key in sink.tried[tried:] if key == row.batch_key]
    waits = [later - earlier for earlier, later in itertools.pairwise(whole)]
    assert min(waits) >= 16, "the backoff began anew"


def test_a_driver_that_was_killed_while_its_batch_waited_goes_on_waiting(gate: Gate) -> None:
    sink = Away(until_s=30)
    sink.now_s = lambda: gate.now_s

    def die(wait_s: float) -> None:
        gate.now_s += wait_s
        if gate.now_s > 12:
            raise Killed

    sleep, gate.sleep = gate.sleep, die  # type: ignore[method-assign]
    with suppress(Killed):
        gate.run(gate.starts(sink))
    gone, gate.owner, gate.sleep = gate.owner, new_owner(), sleep  # type: ignore[method-assign]
    tried = len(sink.tried)
    row = gate.run(gate.starts(sink), gone=gone)
    assert row.status is Status.SUCCESS
    assert gate.ledger.batches.newest("orders", 100) == (row,)
    assert sink.tried[tried][0] > 12
    assert sink.everything == places([WHOLE])


@pytest.mark.parametrize("on_failure", ["isolate", "defer"])
def test_a_driver_that_was_killed_while_parts_were_tried_waits_on_with_them(
    gate: Gate, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: the parts were deferred, and the next batch was admitted before them."""
    gate.policy = policy(on_failure)
    sink, kills = Away(until_s=60), [True]
    sink.now_s = lambda: gate.now_s

    def handler(df: DataFrame, batch: Batch) -> None:
        if sum(each.count for each in batch.ranges) < WHOLE.count and kills.pop(0):
            kills.append(False)
            raise Killed
        kills[:] = kills or [False]
        sink(df, batch)

    with suppress(Killed):
        gate.run(gate.starts(handler))
    assert gate.ledger.batches.failed("orders") == ()
    gone, gate.owner = gate.owner, new_owner()
    row = gate.run(gate.starts(handler), gone=gone)
    assert row.status is Status.SUCCESS
    assert sink.everything == places([WHOLE])
    assert gate.ledger.batches.failed("orders") == ()
    assert 60 <= gate.now_s <= 125
    assert sum("continues after waiting" in each for each in caplog.messages) == 1


def test_a_gate_that_defers_isolates_nothing_after_a_crash_among_parts() -> None:
    """Seen: what was asked of a few parts went on as an isolation, and made a dead letter."""
    log = MemoryLog()
    log.append("0", Crash("after keep_progress"), *map(str, range(1, 64)))

    def handler(df: Any, _batch: Batch) -> None:
        values = [int(row.value) for row in df.collect()]
        if len(values) > 32:
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        if 61 in values:
            raise Poisoned("no 61")

    with StreamHarness(handler, log, on_failure="defer") as stream:
        stream.run()
        (row,) = stream.ledger.batches.newest("tested", 10)
        assert row.status is Status.FAILED
        assert stream.ledger.dead_letters.oldest() == ()


def test_another_batch_than_the_one_that_waited_begins_an_outage_of_its_own(gate: Gate) -> None:
    sink = Away(until_s=100)
    sink.now_s = lambda: gate.now_s
    gate.stops_at_s = 40
    with pytest.raises(ConnectionRefusedError):
        gate.run(gate.starts(sink))
    sink.until_s, gate.stops_at_s = 0, float("inf")
    gate.run(gate.starts(sink), OffsetRange("orders-topic", 1, 0, 10))
    assert gate.ledger.sink_outages.get("orders") is None


def test_somebody_can_have_it_run_at_once(gate: Gate) -> None:
    assert not gate.ledger.repairs.retry_sink("orders", "ada", "nothing waits")
    sink = Away(until_s=500)
    sink.now_s = lambda: gate.now_s
    gate.asks_at_s = 505
    gate.run(gate.starts(sink))
    assert 500 <= sink.tried[-1][0] <= 508


def test_the_rate_goes_on_at_half_of_what_was_learnt(gate: Gate) -> None:
    sink = Away(until_s=3)
    sink.now_s = lambda: gate.now_s
    with gate.ledger._database.writing() as connection:
        connection.exec_driver_sql("UPDATE gate SET rate_per_s = 900")
    executor = gate.starts(sink)
    gate.run(executor)
    assert gate.ledger.rates.current("orders") == 450
    sink.until_s = gate.now_s + 3
    gate.run(executor, OffsetRange("orders-topic", 0, 100, 110))
    assert gate.ledger.rates.current("orders") == 450, "once, until a batch goes through at once"
    gate.run(executor, OffsetRange("orders-topic", 0, 110, 120))
    sink.until_s = gate.now_s + 3
    gate.run(executor, OffsetRange("orders-topic", 0, 120, 130))
    assert gate.ledger.rates.current("orders") == 225


def test_a_handler_s_own_error_that_holds_a_batch_takes_nothing_from_the_rate(gate: Gate) -> None:
    def broken(df: DataFrame, batch: Batch) -> None:
        if gate.now_s < 3:
            raise KeyError("amount")

    with gate.ledger._database.writing() as connection:
        connection.exec_driver_sql("UPDATE gate SET rate_per_s = 900")
    row = gate.run(gate.starts(broken))
    assert (row.status, gate.now_s >= 3) == (Status.SUCCESS, True)
    assert gate.ledger.rates.current("orders") == 900


class PartAway(KeyedSink):
    """A sink of which the part that some records go to is away."""

    def refuse(self, bad: Place) -> None:
        raise ConnectionRefusedError(f"the shard of {bad} refused")


@pytest.mark.parametrize("on_failure", ["isolate", "defer"])
def test_an_outage_of_a_part_of_the_sink_ends_in_parts_of_which_the_others_pass(
    gate: Gate, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate.policy = policy(on_failure)
    sink = PartAway({(0, 33)})
    row = gate.run(gate.starts(sink))
    assert gate.now_s <= 10
    assert row.status is Status.FAILED
    left = row.records_left
    assert 0 < left < 40
    assert len(sink.everything) == 40 - left
    assert f"a backfill will run its remaining {left} records" in caplog.text
    assert gate.ledger.dead_letters.oldest("orders") == ()


class LosesACommit(OnceSink):
    """A sink that is away, and of whose first part only the answer to the commit is lost."""

    parts: int = 0

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        is_part = sum(each.count for each in batch.ranges) < WHOLE.count
        self.parts += is_part
        if self.calls < 3 and not (is_part and self.parts == 1):
            self.calls += not is_part and self.parts > 0
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        with self.database.begin() as connection:
            if batch.once(connection):
                self.kept[batch.key] = places(batch.ranges)
        if self.parts == 1:
            raise ConnectionResetError("the server closed the connection")


def test_a_part_whose_commit_was_lost_is_in_the_sink_once(gate: Gate) -> None:
    sink = LosesACommit()
    row = gate.run(gate.starts(sink))
    assert row.status is Status.SUCCESS
    assert sink.everything == places([WHOLE])
    assert len(sink.kept) > 1, "it was not run in parts"
    assert gate.ledger.batches.failed("orders") == ()


class Broken(KeyedSink):
    """A sink that refuses everything, and does not say why."""

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.calls += 1
        raise ValueError("a schema that nobody expects")


def test_a_batch_that_is_bad_as_a_whole_does_not_hold_its_gate_for_ever(gate: Gate) -> None:
    sink = Broken()
    executor = gate.starts(sink)
    row = gate.run(executor)
    assert (row.status, row.progress) == (Status.FAILED, None)
    assert gate.now_s <= 64
    before_s = gate.now_s
    later = gate.run(executor, OffsetRange("orders-topic", 0, 40, 80))
    assert later.status is Status.FAILED
    assert gate.now_s <= before_s + 64
    assert gate.ledger.dead_letters.oldest("orders") == ()
    assert gate.ledger.sink_outages.get("orders") is None


def test_one_record_that_says_that_the_sink_is_away_does_not_hold_its_gate_for_ever(
    gate: Gate,
) -> None:
    sink = PartAway({(0, 3)})
    row = gate.run(gate.starts(sink), OffsetRange("orders-topic", 0, 3, 4))
    assert row.status is Status.FAILED
    assert gate.now_s <= 15 * 60


def test_a_bad_record_is_isolated_when_the_sink_is_back(gate: Gate) -> None:
    sink = Away(until_s=5, bad=((0, 33),))
    sink.now_s = lambda: gate.now_s
    row = gate.run(gate.starts(sink))
    assert row.status is Status.SUCCESS
    assert [each.letter.offset for each in gate.ledger.dead_letters.oldest("orders")] == [33]
    assert sink.everything == [place for place in places([WHOLE]) if place != (0, 33)]
    assert gate.ledger.sink_outages.get("orders") is None


def test_a_hold_that_is_to_end_is_left_to_on_failure(gate: Gate) -> None:
    gate.policy = policy("stop", max_hold_ms=60_000)
    sink = Away(until_s=1e9)
    sink.now_s = lambda: gate.now_s
    with pytest.raises(ConnectionRefusedError):
        gate.run(gate.starts(sink))
    assert 60 <= gate.now_s <= 120
    (row,) = gate.ledger.batches.newest("orders")
    assert row.status is Status.FAILED
    assert gate.ledger.sink_outages.get("orders") is None


def test_an_outage_stops_the_query_or_is_deferred_where_that_is_asked(gate: Gate) -> None:
    sink = Away(until_s=1e9)
    gate.policy = policy("isolate", "stop")
    with pytest.raises(ConnectionRefusedError):
        gate.run(gate.starts(sink))
    gate.policy = policy("defer", "defer")
    row = gate.run(gate.starts(sink), OffsetRange("orders-topic", 1, 0, 10))
    assert (row.status, gate.now_s) == (Status.FAILED, 0)


@pytest.mark.parametrize(
    ("on_failure", "on_outage", "sentence"),
    [
        ("defer", "wait", "on_outage is 'wait'; it must be one of 'hold', 'defer', 'stop'"),
        ("stop", "defer", "on_outage is 'defer', but on_failure is 'stop'"),
    ],
)
def test_what_is_no_answer_to_an_outage_is_refused(
    on_failure: str, on_outage: str, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        policy(on_failure, on_outage)


def test_one_record_that_times_out_holds_its_gate_once_and_no_other_record(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: 86 s of standstill for each batch with such a record, the second as long as the first;
    and nearly half of its records deferred."""
    gate.policy = policy("isolate")
    bad = [33, 73, 113, 153]
    sink = TimesOut({(0, at) for at in bad})
    executor, held_s = gate.starts(sink), []
    for start in range(0, 160, 40):
        began_s = gate.now_s
        row = gate.run(executor, OffsetRange("orders-topic", 0, start, start + 40))
        assert (row.status, row.records_left) == (Status.FAILED, 1)
        held_s.append(gate.now_s - began_s)
    assert held_s[0] > 1
    assert max(held_s[1:]) == 0
    assert sorted(place for _, place in sink.everything) == sorted({*range(160)} - {*bad})
    assert gate.ledger.dead_letters.oldest("orders") == ()


class TimesOut(KeyedSink):
    """A sink that takes too long for some records."""

    def refuse(self, bad: Place) -> None:
        raise TimeoutError(f"{bad} took more than 5 s")


def test_the_law_decides_the_rate_after_an_outage(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = replace(LAWS[DEFAULT_LAW], name="third", after_outage=lambda rate_in_force: 700.0)
    monkeypatch.setitem(cast("dict[str, Law]", LAWS), third.name, third)
    law = EstimatorSettings("third").to_text()
    gate.ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=law)
    with gate.ledger._database.writing() as connection:
        connection.exec_driver_sql("UPDATE gate SET rate_per_s = 900")
    sink = Away(until_s=3)
    sink.now_s = lambda: gate.now_s
    executor = gate.starts(sink)
    gate.run(executor)
    assert gate.ledger.rates.current("orders") == executor.rate_after_outage == 700.0
