"""Batches that are isolated, with a real ledger, and with crashes."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame
from tests.gate.execution.events import planned
from tests.gate.execution.readers import (
    AWAY,
    READER,
    KeyedSink,
    Killed,
    OnceSink,
    OrdersLog,
    Place,
    Poisoned,
    places,
)
from tests.gate.ledger.samples import stored
from tests.services.examples import examples
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.core.system import new_owner
from headrace.core.timing import LEASE_MS
from headrace.errors import BrokerError, MachineryError, NotProcessedError
from headrace.gate.control.dead import MAX_BACKFILLS, BackfillLimits
from headrace.gate.control.hold import OutageSettings
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution.batch import Batch, Handler
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.health import HandlerHealth
from headrace.gate.execution.policy import (
    OnFailure,
    isolate,
    parse_on_failure,
    retry,
    with_outages,
)
from headrace.gate.execution.world import BatchRunner
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, DeadLetterStatus, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryReader

LIMITS = BackfillLimits()
WHOLE = (OffsetRange("orders-topic", 0, 0, 8), OffsetRange("orders-topic", 1, 100, 105))
EVERYTHING = places(WHOLE)
DEFER = parse_on_failure("defer")


def as_before(policy: OnFailure) -> OnFailure:
    """The policy of a sink that is many sinks."""
    return with_outages(policy, "defer", OutageSettings())


class Scene:
    """A gate's batches in a ledger, and how they are run."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now_s = 0.0
        self.health = HandlerHealth(clock=lambda: self.now_s)
        self.dice = random.Random(0)

    def executor(
        self,
        owner: str,
        handler: Handler,
        *,
        policy: OnFailure | None = None,
        reader: MemoryReader = READER,
        limits: BackfillLimits = LIMITS,
        control_wait_s: float = 0,
        **options: Any,
    ) -> BatchRunner:
        context = RunContext(
            ledger=self.ledger,
            handler=handler,
            owner=owner,
            policy=replace(policy or isolate(max_runs=1_000), backfills=limits),
            reader=reader,
            health=self.health,
            dice=self.dice,
            **options,
        )
        return BatchRunner(context, control_wait_s=control_wait_s)

    def run_live(
        self,
        handler: Handler,
        *,
        ranges: Sequence[OffsetRange] = WHOLE,
        owner: str = "me",
        gone: str | None = None,
        **options: Any,
    ) -> str:
        """Begin the batch, or take it up again, and run it if that is to be done; its key."""
        key = self.ledger.batches.begin(planned("orders", *ranges)).batch_key
        attached = self.ledger.batches.attach(key, 7, owner=owner, lease_ms=LEASE_MS, gone=gone)
        if attached is not None:
            options.setdefault("sleep", lambda _s: None)
            df = options.get("reader", READER).frame(ranges)
            self.executor(owner, handler, **options).run_live(df, attached, 7)
        return key

    def pass_something(self, _wait_s: float) -> None:
        """The stream goes on beside a backfill: another batch passes."""
        self.health.note(READER.frame([OffsetRange("orders-topic", 0, 150, 151)]), is_single=True)

    def backfill(
        self, key: str, handler: Handler, *, max_backfills: int = MAX_BACKFILLS, **options: Any
    ) -> Exception | ErrorReport | None:
        """Run a failed batch again, beside a stream that goes on; why it failed."""
        options.setdefault("control_wait_s", 1)
        options.setdefault("sleep", self.pass_something)
        claimed = self.ledger.batches.claim(key, "a backfill", LEASE_MS)
        assert claimed is not None
        limits = BackfillLimits(max_backfills)
        executor = self.executor("a backfill", handler, limits=limits, **options)
        error = executor.run(claimed)
        if error is None:
            self.ledger.batches.backfilled(key, "a backfill")
        else:
            is_dead = claimed.backfills + 1 >= max_backfills
            self.ledger.batches.release(key, "a backfill", error, is_dead=is_dead)
        return error

    def backfill_all(self, handler: Handler) -> None:
        """Run what has failed until nothing has."""
        while failed := self.ledger.batches.failed("orders"):
            self.pass_something(0)
            self.backfill(failed[0].batch_key, handler)

    def row(self, key: str) -> BatchRecord:
        return stored(self.ledger, key)

    def places(self, status: Status) -> list[Place]:
        """The records that have come to this: parts that are done are successes."""
        found: dict[Place, Status] = {}
        for row in self.ledger.batches.newest("orders", limit=10_000):
            planned = self.ledger.batches.ranges(row.batch_key)
            found |= dict.fromkeys(places([one.offsets for one in planned]), Status.SUCCESS)
            if row.status is not Status.SUCCESS:
                still_open = [one.offsets for one in row.open_ranges(planned)]
                found |= dict.fromkeys(places(still_open), row.status)
        found |= dict.fromkeys(self.dead_letters, Status.DEAD)
        return sorted(place for place, now in found.items() if now is status)

    @property
    def dead_letters(self) -> list[Place]:
        found = self.ledger.dead_letters.oldest("orders", limit=1_000)
        return sorted((each.letter.partition, each.letter.offset) for each in found)


@contextmanager
def a_scene(folder: Path) -> Iterator[Scene]:
    with new_ledger(f"sqlite:///{folder}/headrace.db") as ledger:
        ledger.gates.declare(
            "orders", interval_ms=1_000, source="kafka", estimator=EstimatorSettings().to_text()
        )
        yield Scene(ledger)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with a_scene(tmp_path) as scene:
        yield scene


def owner_that_is_gone() -> str:
    """An owner of this machine, whose process has ended."""
    machine, _process, rest = new_owner().split(":", 2)
    return f"{machine}:{2**31}:{rest}"


bad_records = st.sets(st.sampled_from(EVERYTHING), min_size=1, max_size=6)


def run_as_one_again(sink: KeyedSink) -> list[str]:
    """Parts that ran once something was done, though a part of theirs had failed before."""
    done, failed, found = False, list[str](), list[str]()
    for batch in sink.batches:
        if "." not in batch.key:  # nothing of it was done, and it begins anew
            failed.clear()
        found += [key for key in failed if done and key[:-1].startswith(batch.key)]
        if sink.bad and not {*places(batch.ranges)}.isdisjoint(sink.bad):
            failed.append(batch.key)
        else:
            done = True
    return found


@given(bad_records)
@examples(12)
def test_what_cannot_be_processed_is_kept_and_all_else_is_processed_once(bad: set[Place]) -> None:
    with TemporaryDirectory() as folder, a_scene(Path(folder)) as scene:
        sink = KeyedSink(bad)
        scene.run_live(sink)
        assert set(scene.dead_letters) <= bad
        scene.backfill_all(sink)
        assert sink.everything == sorted(set(EVERYTHING) - bad)
        assert scene.dead_letters == sorted(bad) == scene.places(Status.DEAD)
        assert scene.places(Status.SUCCESS) == sink.everything
        rows = scene.ledger.batches.newest("orders", limit=10_000)
        assert any("." in batch.key for batch in sink.batches), "nothing was run in parts"
        assert run_as_one_again(sink) == []
        assert {row.owner for row in rows} == {None}


@pytest.mark.integration
@pytest.mark.parametrize("kind", [KeyedSink, OnceSink])
@given(bad_records, st.lists(st.integers(1, 8), min_size=1, max_size=4), st.data())
@examples(20)
def test_a_crash_at_any_call_leaves_nothing_out_and_doubles_nothing(
    kind: type[KeyedSink], bad: set[Place], kills: list[int], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, a_scene(Path(folder)) as scene:
        sink = kind()
        crashed: str | None = None
        for kill_at in [*kills, None]:
            owner = owner_that_is_gone()
            sink.bad, sink.kill_at, sink.calls = bad, kill_at, 0
            with suppress(Killed):
                scene.run_live(sink, owner=owner, gone=crashed)
            crashed = owner
            # Some of it can be processed in the next life.
            bad = {place for place in bad if data.draw(st.booleans())}
        sink.bad = bad
        scene.backfill_all(sink)
        assert sorted(sink.everything + scene.dead_letters) == EVERYTHING
        assert scene.places(Status.SUCCESS) == sink.everything
        assert scene.places(Status.DEAD) == scene.dead_letters


def test_a_batch_whose_outcome_a_crash_left_unknown_is_run_whole_for_a_passing_reason(
    scene: Scene,
) -> None:
    sink, first = KeyedSink(kill_at=1), owner_that_is_gone()
    with suppress(Killed):
        scene.run_live(sink, owner=first)
    sink.bad = {(0, 3)}  # for a moment
    key = scene.run_live(sink, gone=first)
    assert scene.row(key).status is Status.FAILED
    sink.bad = ()
    scene.backfill_all(sink)
    assert sink.everything == EVERYTHING
    assert scene.row(key).status is Status.SUCCESS


@pytest.mark.integration
@pytest.mark.parametrize(
    "live",
    [[DEFER], [parse_on_failure("stop"), DEFER], [retry(2, "1 ms", then="defer")]],
)
def test_what_has_only_raised_is_isolated_by_the_first_backfill_that_is_to_do_so(
    scene: Scene, live: list[OnFailure]
) -> None:
    bad = {(0, 3), (1, 104)}
    sink, key = KeyedSink(bad), planned("orders", *WHOLE).batch_key
    for policy in live:
        with suppress(Poisoned):
            scene.run_live(sink, policy=policy)
        assert scene.row(key).status is Status.FAILED
    assert scene.backfill(key, sink, policy=DEFER) is not None
    assert scene.backfill(key, sink) is None
    assert scene.dead_letters == sorted(bad)
    assert sink.everything == sorted(set(EVERYTHING) - bad)


def test_what_has_an_unknown_outcome_is_isolated_by_the_last_backfill_that_there_may_be(
    scene: Scene,
) -> None:
    key = scene.ledger.batches.begin(planned("orders", *WHOLE)).batch_key
    scene.ledger.batches.begin(planned("orders", *WHOLE))
    scene.ledger.batches.fail(key, ValueError("no"))
    assert scene.row(key).outcome_unknown
    sink = KeyedSink({(0, 3)})
    assert scene.backfill(key, sink, max_backfills=2) is not None
    assert scene.backfill(key, sink, max_backfills=2) is None
    assert scene.dead_letters == [(0, 3)]


@pytest.mark.parametrize(
    ("sink", "isolates"), [(OnceSink({(0, 3)}), True), (KeyedSink({(0, 3)}), False)]
)
def test_what_has_an_unknown_outcome_is_isolated_at_once_if_its_sink_can_be_asked(
    scene: Scene, sink: KeyedSink, isolates: bool
) -> None:
    key = scene.ledger.batches.begin(planned("orders", *WHOLE)).batch_key
    scene.ledger.batches.begin(planned("orders", *WHOLE))
    scene.ledger.batches.fail(key, ValueError("no"))
    assert scene.row(key).outcome_unknown
    assert (scene.backfill(key, sink) is None) is isolates
    assert scene.dead_letters == [(0, 3)] * isolates


@pytest.mark.parametrize("path", ["0", "01"])
def test_a_part_whose_run_was_interrupted_is_isolated_once_it_has_failed_often_enough(
    scene: Scene, path: str
) -> None:
    """Its good records would be nowhere: they do not fail, and the part never passes as one."""
    first, bad, killed = owner_that_is_gone(), {(0, 3)}, list[str]()

    def handle(df: DataFrame, batch: Batch) -> None:
        if batch.key.endswith(f".{path}") and not killed:
            killed.append(batch.key)
            raise Killed  # nothing of it is in the sink, which only this test knows
        sink(df, batch)

    sink = KeyedSink(bad)
    with suppress(Killed):
        scene.run_live(handle, owner=first)
    key = scene.run_live(sink, gone=first)
    assert path in scene.row(key).parts.unknown | {scene.row(key).parts.running}
    for _ in range(12):
        if scene.row(key).status is Status.FAILED:
            scene.backfill(key, sink)
    assert scene.dead_letters == sorted(bad)
    assert sink.everything == sorted(set(EVERYTHING) - bad)


def test_a_part_knows_what_it_is_within(scene: Scene) -> None:
    sink = KeyedSink({(0, 3)})
    key = scene.run_live(sink)
    parts = [batch for batch in sink.batches if batch.key != key]
    assert parts
    assert {batch.parent_keys[-1] for batch in parts} == {key}
    assert sink.batches[0].parent_keys == ()


def test_a_backfill_isolates_nothing_while_its_query_is_stopped(scene: Scene) -> None:
    key = scene.ledger.batches.begin(planned("orders", *WHOLE)).batch_key
    scene.ledger.batches.fail(key, ValueError("no"))
    claimed = scene.ledger.batches.claim(key, "me", LEASE_MS)
    assert claimed is not None
    sink = KeyedSink({(0, 3)})
    stopped = scene.executor("me", sink, stopped=lambda: True)
    assert isinstance(stopped.run(claimed), Poisoned)
    assert scene.row(key).progress is None
    between = scene.executor("me", sink, stopped=lambda: sink.calls > 3)
    assert isinstance(between.run(claimed), Poisoned)
    assert scene.dead_letters == []
    assert scene.row(key).status is Status.BACKFILLING


@pytest.mark.integration
@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8])
def test_what_the_budget_leaves_is_failed_and_can_be_backfilled(scene: Scene, runs: int) -> None:
    bad = {(0, 5), (1, 103)}
    sink = KeyedSink(bad)
    scene.run_live(sink, policy=isolate(max_runs=runs))
    assert sink.calls <= 1 + runs
    left = scene.places(Status.FAILED)
    assert left != []
    assert sorted(sink.everything + left + scene.dead_letters) == EVERYTHING
    for failed in scene.ledger.batches.failed("orders"):
        assert failed.error is not None
        scene.backfill(failed.batch_key, sink)
    assert scene.places(Status.FAILED) == []
    assert scene.dead_letters == sorted(bad)
    assert sink.everything == sorted(set(EVERYTHING) - bad)
    assert {batch.kind for batch in sink.batches} == {"live", "backfill"}


def test_a_backfill_waits_for_no_stream_that_has_stood_still_for_that_long(scene: Scene) -> None:
    sink, waits = KeyedSink({(0, 5)}), list[float]()
    key = scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 5, 6)], policy=DEFER)
    scene.now_s = 60
    assert scene.backfill(key, sink, sleep=waits.append) is not None
    assert waits == []
    assert scene.dead_letters == []


class PartByPart(MemoryReader):
    """Reads each part by itself, as of a batch that is too large to be kept."""

    @contextmanager
    def persisted(self, ranges: Sequence[PlannedRange]) -> Iterator[MemoryReader]:
        yield self


def test_a_source_that_is_away_while_a_record_stands_alone_makes_no_dead_letter(
    scene: Scene,
) -> None:
    tried: list[list[Place]] = []

    def is_away(wanted: list[Place]) -> bool:
        if len(wanted) == 1:
            tried.append(wanted)
        return len(wanted) == 1

    sink = KeyedSink({(0, 3)})
    scene.run_live(sink, reader=PartByPart(OrdersLog(is_away)))
    assert scene.dead_letters == []
    assert len(tried) == 1, "nothing more is asked of a source that is away"
    assert sorted(sink.everything + scene.places(Status.FAILED)) == EVERYTHING
    failed = scene.ledger.batches.failed("orders")
    reasons = {row.error.error_class for row in failed if row.error}
    assert reasons == {"headrace.errors.BrokerError"}
    for row in failed:  # it is back
        assert scene.backfill(row.batch_key, sink) is None
    assert scene.dead_letters == [(0, 3)]
    assert sink.everything == sorted(set(EVERYTHING) - {(0, 3)})


class Refused(MemoryReader):
    """Spark does not start what would read a part again."""

    def run(self, ranges: Sequence[PlannedRange], use: Callable[[DataFrame], None]) -> None:
        if sum(each.offsets.count for each in ranges) <= 4:
            raise StreamingQueryException("the checkpoint is not one of this version")
        super().run(ranges, use)


def test_a_replay_that_spark_refuses_makes_no_dead_letter_and_no_batch_dead(scene: Scene) -> None:
    """Seen: eleven good records became dead letters, for none of them could be read again."""
    sink = KeyedSink({(0, 3)})
    scene.run_live(sink, reader=Refused(OrdersLog()))
    assert scene.dead_letters == []
    failed = scene.ledger.batches.failed("orders")
    assert {row.error.error_class for row in failed if row.error} == {
        "headrace.errors.MachineryError"
    }
    assert sorted(sink.everything + scene.places(Status.FAILED)) == EVERYTHING
    again = None
    while again is None:
        again = scene.backfill(failed[0].batch_key, sink, reader=Refused(OrdersLog()))
    assert isinstance(again, MachineryError)
    assert "checkpoint is not one of this version" in str(again)


class Unkept(MemoryReader):
    """Reads records of which none can be kept."""

    def dead_letter(self, offset: PlannedRange, error: BaseException | ErrorReport) -> None:
        raise ValueError(f"{offset.offsets} cannot be read")


def test_a_record_whose_dead_letter_cannot_be_kept_counts_as_deferred(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    sink = KeyedSink({(0, 3), (1, 101)})
    scene.run_live(sink, reader=Unkept(OrdersLog()))
    assert scene.dead_letters == []
    assert scene.places(Status.FAILED) == [(0, 3), (1, 101)]
    (summary,) = [text for text in caplog.messages if "ran in parts" in text]
    assert summary.endswith("runs, 0 records isolated, 2 records deferred.")


def test_a_batch_whose_own_read_fails_since_its_source_is_away_waits_or_is_deferred_whole(
    scene: Scene,
) -> None:
    calls = []

    def handle(_df: object, _batch: object) -> None:
        calls.append(1)
        if len(calls) != 3:
            raise PythonException(message=AWAY)

    key = scene.run_live(handle)
    assert (len(calls), scene.row(key).progress) == (3, None)
    assert scene.row(key).status is Status.SUCCESS
    later = [OffsetRange("orders-topic", 0, 20, 30)]
    key = scene.run_live(handle, ranges=later, policy=as_before(isolate()))
    assert (len(calls), scene.row(key).status) == (4, Status.FAILED)
    assert isinstance(scene.backfill(key, handle), BrokerError)
    assert (len(calls), scene.row(key).progress) == (5, None)


def test_a_gap_that_fails_alone_is_no_record_and_no_dead_letter(scene: Scene) -> None:
    log = OrdersLog()
    log.compact(3)
    scene.run_live(KeyedSink({(0, 3)}), reader=MemoryReader(log))
    assert scene.dead_letters == []
    assert scene.places(Status.SUCCESS) == EVERYTHING


def nothing_passes(_wait_s: float) -> None:
    """The stream has nothing to do."""


def test_a_record_alone_in_its_batch_is_kept_once_others_pass(
    scene: Scene,
) -> None:
    sink = KeyedSink({(0, 5)})
    key = scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 5, 6)])
    assert (scene.row(key).status, sink.calls) == (Status.FAILED, 1)
    assert isinstance(scene.backfill(key, sink, sleep=nothing_passes), Poisoned)
    assert (scene.row(key).status, scene.dead_letters) == (Status.FAILED, [])
    assert scene.backfill(key, sink) is None
    (row,) = scene.ledger.batches.newest("orders")
    (letter,) = scene.ledger.dead_letters.oldest("orders")
    assert row.status is Status.SUCCESS
    assert (letter.batch_key, letter.status) == (row.batch_key, DeadLetterStatus.WAITING)
    assert letter.letter.error.message == "cannot keep (0, 5)"


def test_a_record_alone_in_a_stream_of_which_others_are_bad_is_kept_within_ten_backfills(
    scene: Scene,
) -> None:
    """Seen: each backfill began its test anew, and found too few others, for four days."""
    sink, dice = KeyedSink({(0, 5)}), random.Random(1)
    key = scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 5, 6)])
    sleeps = 0

    def one_record(_wait_s: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps % 5 == 0:
            return  # it takes longer than a backfill waits
        if dice.random() < 0.2:
            scene.health.note_failed(is_single=True)
        else:
            scene.pass_something(0)

    backfills = 1
    while scene.backfill(key, sink, sleep=one_record, control_wait_s=0.01) is not None:
        backfills += 1
    assert scene.dead_letters == [(0, 5)]
    assert 1 < backfills <= 10


def test_a_sink_that_has_taken_no_single_row_convicts_nobody_for_nine_backfills(
    scene: Scene,
) -> None:
    class TakesTwo(KeyedSink):
        def __call__(self, df: DataFrame, batch: Batch) -> None:
            self.calls += 1
            raise Poisoned("one row is none")

    def two_records(_wait_s: float) -> None:
        scene.health.note(READER.frame([OffsetRange("orders-topic", 0, 150, 152)]), is_single=False)

    sink = TakesTwo()
    key = scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 5, 6)])
    for _ in range(9):
        assert scene.backfill(key, sink, sleep=two_records) is not None
    assert scene.dead_letters == []
    assert scene.backfill(key, sink, sleep=two_records) is None


def test_a_record_alone_is_kept_by_its_last_backfill_even_if_nothing_passes(scene: Scene) -> None:
    sink = KeyedSink({(0, 5)})
    key = scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 5, 6)])
    for last in (False, True):
        scene.backfill(key, sink, max_backfills=2, sleep=nothing_passes)
        assert scene.dead_letters == [(0, 5)] * last
    assert scene.row(key).status is Status.SUCCESS


def test_a_sink_that_is_down_is_no_records_fault_and_no_more_batches_are_run_in_parts(
    scene: Scene,
) -> None:
    sink = KeyedSink(EVERYTHING)
    first = scene.run_live(sink)
    assert scene.dead_letters == []
    why = scene.ledger.batches.failed("orders")[0].error
    assert why is not None
    assert why.error_class == "tests.gate.execution.readers.Poisoned"
    own, ours = why.message.splitlines()
    assert own == "cannot keep (0, 0)"
    assert "so the sink seems to be down, or the handler to be wrong" in ours
    second = [OffsetRange("orders-topic", 0, 20, 30)]
    sink.bad = [*EVERYTHING, *places(second)]
    key, calls = scene.run_live(sink, ranges=second), sink.calls
    assert scene.row(first).progress is scene.row(key).progress is None
    assert isinstance(scene.backfill(key, sink), NotProcessedError)
    assert sink.calls == calls + 1
    sink.bad = ()
    scene.backfill_all(sink)
    assert sink.everything == sorted(EVERYTHING + places(second))
    assert scene.dead_letters == []


class Misspelt(KeyedSink):
    """A handler with a mistake, which it makes whatever the records."""

    def refuse(self, _bad: Place) -> None:
        raise AttributeError("'Batch' object has no attribute 'kye'")


def test_a_handler_that_has_never_worked_stops_its_query(scene: Scene) -> None:
    sink = Misspelt(EVERYTHING)
    with pytest.raises(AttributeError, match="kye"):
        scene.run_live(sink)
    assert scene.dead_letters == []
    assert scene.places(Status.FAILED) == EVERYTHING
    sink.bad = ()
    scene.backfill_all(sink)
    assert sink.everything == EVERYTHING


@pytest.mark.parametrize("policy", [DEFER, isolate()])
def test_so_does_one_that_fails_in_three_batches_of_one_record(
    scene: Scene, policy: OnFailure
) -> None:
    sink = Misspelt(EVERYTHING)
    for at in (0, 1):
        scene.run_live(sink, policy=policy, ranges=[OffsetRange("orders-topic", 0, at, at + 1)])
    with pytest.raises(AttributeError, match="kye"):
        scene.run_live(sink, policy=policy, ranges=[OffsetRange("orders-topic", 0, 2, 3)])


def test_a_handler_that_has_worked_is_not_stopped_by_records_it_cannot_take(scene: Scene) -> None:
    sink = Misspelt(EVERYTHING)
    scene.run_live(sink, ranges=[OffsetRange("orders-topic", 0, 20, 21)])
    scene.run_live(sink)
    assert scene.places(Status.FAILED) == EVERYTHING


def test_what_is_raised_since_the_query_is_stopped_is_no_records_fault(scene: Scene) -> None:
    sink = KeyedSink({(0, 0), (0, 3)})
    with pytest.raises(Poisoned):
        scene.run_live(sink, stopped=lambda: sink.calls > 2)
    assert sink.calls == 3
    assert scene.dead_letters == []
    assert scene.places(Status.FAILED) == EVERYTHING
    sink.bad = ()
    scene.run_live(sink)
    assert sink.everything == EVERYTHING
    assert scene.places(Status.SUCCESS) == EVERYTHING


def test_how_far_an_isolation_has_come_is_in_the_ledger(scene: Scene) -> None:
    seen: list[BatchRecord | None] = []

    def handle(df: DataFrame, batch: Batch) -> None:
        seen.append(scene.ledger.moments.isolating(["orders"]).get("orders"))
        sink(df, batch)

    sink = KeyedSink({(0, 3)})
    key = scene.run_live(handle)
    assert scene.dead_letters == [(0, 3)]
    assert scene.ledger.moments.isolating(["orders"]).get("orders") is None
    assert seen[0] is None
    after = [each for each in seen[1:] if each is not None]
    assert len(after) == len(seen) - 1
    assert {(each.batch_key, each.planned_records) for each in after} == {(key, len(EVERYTHING))}
    runs = [each.parts.runs for each in after]
    left = [each.records_left for each in after]
    assert (runs, left) == (sorted(runs), sorted(left, reverse=True))
    assert (runs[0], left[0], runs[-1]) == (1, len(EVERYTHING), len(after))


class PartlyDown(KeyedSink):
    """A sink of which a part cannot be reached: no record is bad."""

    def refuse(self, bad: Place) -> None:
        raise ConnectionRefusedError(f"the shard of {bad}")


@pytest.mark.integration
def test_records_whose_part_of_the_sink_is_down_are_no_dead_letters_but_wait(scene: Scene) -> None:
    """They fail alone while others pass, as bad ones do; but the exception says why."""
    apart = {(0, 3), (1, 102)}
    sink = PartlyDown(apart)
    scene.run_live(sink)
    for _ in range(3):
        for failed in scene.ledger.batches.failed("orders"):
            scene.backfill(failed.batch_key, sink)
    assert scene.dead_letters == []
    assert scene.places(Status.FAILED) == sorted(apart)
    assert sink.everything == sorted(set(EVERYTHING) - apart)
    sink.bad = ()
    scene.backfill_all(sink)
    assert sink.everything == EVERYTHING


def test_the_last_backfill_of_one_ends_it_whatever_the_exception_says(scene: Scene) -> None:
    sink = PartlyDown({(0, 3)})
    scene.run_live(sink)
    while failed := scene.ledger.batches.failed("orders"):
        scene.backfill(failed[0].batch_key, sink, max_backfills=1)
    assert scene.dead_letters == [(0, 3)]


class Flapping(KeyedSink):
    """A sink that refuses a bad record now and then for another reason than usually."""

    refusals = 0

    def refuse(self, bad: Place) -> None:
        self.refusals += 1
        if self.refusals % 4 == 0:
            raise RuntimeError("overloaded")
        super().refuse(bad)


def test_a_dead_letter_has_the_reason_that_it_failed_with_most_often(scene: Scene) -> None:
    sink = Flapping({(0, 3)})
    scene.run_live(sink)
    scene.backfill_all(sink)
    (letter,) = scene.ledger.dead_letters.oldest("orders", limit=10)
    assert letter.letter.error.error_class.endswith("Poisoned")
