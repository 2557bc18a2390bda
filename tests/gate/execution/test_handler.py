"""The wrapped handler, called as Spark's foreachBatch calls it, with a real ledger."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.events import planned
from tests.gate.execution.readers import READER
from tests.gate.ledger.samples import stored

from headrace.core.ranges import OffsetRange
from headrace.core.timing import LEASE_MS
from headrace.gate.control.law import BatchProgress
from headrace.gate.execution.batch import Batch, Handler
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.gate_state import shared_ledger, state_of
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.execution.policy import retry
from headrace.gate.execution.world import BatchRunner
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status

FIRST = OffsetRange("orders-topic", 0, 0, 100)
SECOND = OffsetRange("orders-topic", 0, 100, 200)
ELSEWHERE = "elsewhere:1:1/run"


class FullError(Exception):
    """An exception that a sink raises."""


class Scene:
    """A gate's ledger, and a sink that keeps what it is given, and raises its ``error``."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.batches: list[Batch] = []
        self.error: Exception | None = None

    def __call__(self, _df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        if self.error is not None:
            raise self.error

    def gated(
        self, handler: Handler | None = None, gate: str = "orders", **options: Any
    ) -> GatedHandler:
        """The handler of a query that has just been started."""
        ledger = shared_ledger(self.ledger.url)
        own = {name: options.pop(name) for name in ("read", "has_state") if name in options}
        context = RunContext(ledger=ledger, handler=handler or self, **options)
        return GatedHandler(gate, context, **own)

    def begin(self, *ranges: OffsetRange, run: str = "run") -> str:
        return self.ledger.batches.begin(planned("orders", *ranges, checkpoint_id=run)).batch_key

    def row(self, batch: str) -> BatchRecord:
        return stored(self.ledger, batch)

    @property
    def keys(self) -> list[str]:
        return [batch.key for batch in self.batches]

    @property
    def ranges(self) -> list[tuple[OffsetRange, ...]]:
        return [batch.ranges for batch in self.batches]


def frame_of(query: str, *, is_empty: bool = False) -> DataFrame:
    """A data frame of a query, as far as a handler asks for that."""
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.get)
    session = SimpleNamespace(sparkContext=context)
    return cast(DataFrame, SimpleNamespace(sparkSession=session, isEmpty=lambda: is_empty))


DF = frame_of("a query")
STOPPED = cast(
    StreamingQuery, SimpleNamespace(isActive=False, runId="a run", exception=lambda: None)
)


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene(ledger)


def test_a_handler_receives_its_batchs_key_ranges_attempt_and_kind(scene: Scene) -> None:
    other = OffsetRange("orders-topic", 1, 5, 6)
    handler, key = scene.gated(), scene.begin(other, FIRST)
    handler(DF, 0)
    assert scene.batches == [Batch(key, 0, (FIRST, other), 1, "live", 1)]


def test_a_batch_is_in_progress_while_it_is_handled_and_a_success_after_transition_d(
    scene: Scene,
) -> None:
    seen: list[BatchRecord] = []
    handler = scene.gated(lambda _df, batch: seen.append(scene.row(batch.key)))
    key = scene.begin(FIRST)
    handler(DF, 7)
    assert [(each.status, each.query_batch_id) for each in seen] == [(Status.IN_PROGRESS, 7)]
    assert seen[0].start_time_ms is not None
    assert scene.row(key).status is Status.SUCCESS


def test_an_exception_fails_the_batch_and_reaches_spark_transition_e(scene: Scene) -> None:
    scene.error, handler = FullError("no space left"), scene.gated()
    key = scene.begin(FIRST)
    with pytest.raises(FullError):
        handler(DF, 0)
    failed = scene.row(key)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.error_class.endswith("FullError")
    assert failed.error.message == "no space left"
    assert "raise self.error" in failed.error.trace


def test_a_batch_that_failed_is_run_again_with_the_same_key_transition_c(scene: Scene) -> None:
    scene.error, handler = FullError(), scene.gated()
    key = scene.begin(FIRST)
    with pytest.raises(FullError):
        handler(DF, 0)
    scene.error, restarted = None, scene.gated()
    scene.begin(FIRST)
    restarted(DF, 0)
    assert scene.batches == [Batch(key, 0, (FIRST,), call, "live", call) for call in (1, 2)]
    assert (scene.row(key).status, scene.row(key).error) == (Status.SUCCESS, None)


def test_a_batch_that_a_crash_interrupted_is_run_again_with_the_same_key_transition_b(
    scene: Scene,
) -> None:
    key = scene.begin(FIRST)
    scene.ledger.batches.attach(key, 0)
    restarted = scene.gated()
    scene.begin(FIRST)
    restarted(DF, 0)
    assert scene.batches == [Batch(key, 0, (FIRST,), 2, "live", 2)]


def test_a_batch_that_succeeded_just_before_a_crash_is_not_handed_out_again(scene: Scene) -> None:
    handler = scene.gated()
    scene.begin(FIRST)
    handler(DF, 0)
    restarted = scene.gated()
    scene.begin(FIRST)
    restarted(DF, 0)
    assert len(scene.batches) == 1
    scene.begin(SECOND)
    restarted(DF, 1)
    assert scene.ranges == [(FIRST,), (SECOND,)]


@pytest.mark.parametrize("has_state", [True, False])
def test_of_a_query_with_state_such_a_batch_is_computed(scene: Scene, has_state: bool) -> None:
    handler = scene.gated()
    scene.begin(FIRST)
    handler(DF, 0)
    restarted, frame = scene.gated(has_state=has_state), mock.MagicMock()
    scene.begin(FIRST)
    restarted(frame, 0)
    assert len(scene.batches) == 1
    saved = frame.write.format("noop").mode("append").save
    assert saved.called == has_state


def test_a_batch_in_which_the_gate_has_nothing_is_handed_out_without_ranges(scene: Scene) -> None:
    handler = scene.gated()
    handler(DF, 0)
    key = scene.begin(FIRST)
    handler(DF, 1)
    handler(DF, 2)
    nothing, batch, nothing_again = scene.batches
    assert (nothing.id, nothing.ranges, nothing.attempt, nothing.kind) == (0, (), 1, "live")
    assert batch.key == key
    assert (nothing_again.id, nothing_again.ranges) == (2, ())
    assert len(set(scene.keys)) == 3
    assert [each.batch_key for each in scene.ledger.batches.newest("orders")] == [key]


def test_the_key_of_a_batch_without_ranges_is_its_querys_own_and_stays_the_same(
    scene: Scene,
) -> None:
    handler, query, fresh_checkpoint = scene.gated(), frame_of("one"), frame_of("another")
    handler(query, 3)
    scene.gated()(query, 3)
    handler(fresh_checkpoint, 3)
    scene.gated(gate="payments")(query, 3)
    first, again, *others = scene.keys
    assert first == again
    assert len({first, *others}) == 3


def test_what_another_checkpoint_left_in_progress_is_not_taken_for_an_empty_batch(
    scene: Scene,
) -> None:
    # A crash; then the checkpoint is deleted, and the query begins anew at the latest offsets.
    left = scene.begin(FIRST, run="the run that crashed")
    scene.ledger.batches.attach(left, 0)
    restarted = scene.gated()
    restarted(DF, 0)
    assert scene.batches[0].ranges == ()
    assert scene.row(left).status is Status.IN_PROGRESS
    key = scene.begin(SECOND, run="a new run")
    restarted(DF, 1)
    assert scene.batches[1] == Batch(key, 1, (SECOND,), 1, "live", 3)


def test_a_success_of_another_checkpoint_is_not_taken_for_the_batch_of_its_number(
    scene: Scene,
) -> None:
    handler = scene.gated()
    scene.begin(FIRST, run="the first checkpoint")
    handler(DF, 0)
    # The checkpoint is deleted, and in batch 0 only another gate of the query has something.
    scene.gated()(DF, 0)
    assert scene.ranges == [(FIRST,), ()]


def test_the_empty_first_batch_of_a_new_checkpoint_is_nobodys(scene: Scene) -> None:
    """Spark runs one; the query only goes on where its ledger stands."""
    scene.begin(FIRST, run="the first checkpoint")
    scene.gated()(frame_of("a query", is_empty=True), 0)
    assert scene.batches == []


def test_a_batch_of_an_older_checkpoint_is_known_though_it_is_not_the_newest(scene: Scene) -> None:
    left = scene.begin(FIRST, run="a checkpoint of which a copy was kept")
    scene.begin(SECOND, run="another")
    restarted = scene.gated()
    scene.begin(FIRST, run="a checkpoint of which a copy was kept")
    restarted(DF, 0)
    assert scene.batches == [Batch(left, 0, (FIRST,), 2, "live", 1)]


def test_what_an_empty_batch_raises_reaches_spark_too(scene: Scene) -> None:
    handler, key = scene.gated(), scene.begin(FIRST)
    handler(DF, 0)
    scene.error = FullError()
    with pytest.raises(FullError):
        handler(DF, 1)
    assert scene.row(key).status is Status.SUCCESS


def test_a_stopped_query_does_not_wait_for_another_process(scene: Scene) -> None:
    handler, key = scene.gated(), scene.begin(FIRST)
    scene.ledger.batches.attach(key, 0, owner="another machine", lease_ms=60_000)
    handler.follow(STOPPED, None)
    with pytest.raises(InterruptedError):
        handler(DF, 0)
    assert scene.batches == []
    assert scene.row(key).owner == "another machine"


def test_a_stopped_query_does_not_wait_for_its_next_retry(scene: Scene) -> None:
    waits: list[float] = []

    def stop_in_the_third(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 3:
            retrying.follow(STOPPED, None)

    retrying = scene.gated(policy=retry(5, "1 hour", then="defer"), sleep=stop_in_the_third)
    scene.error = FullError("no space left")
    key = scene.begin(FIRST)
    with pytest.raises(InterruptedError):
        retrying(DF, 0)
    assert (len(waits), len(scene.batches)) == (3, 1)
    assert scene.row(key).status is Status.FAILED


def test_a_row_that_somebody_else_has_resolved_stays_as_they_left_it(scene: Scene) -> None:
    def resolved_meanwhile(_df: DataFrame, batch: Batch) -> None:
        assert scene.ledger.batches.fail(
            batch.key, ErrorReport("Lost", "its owner was thought dead", "")
        )

    handler, key = scene.gated(resolved_meanwhile), scene.begin(FIRST)
    handler(DF, 0)
    assert scene.row(key).status is Status.FAILED


def test_a_batch_that_waited_for_another_process_teaches_nothing(scene: Scene) -> None:
    def it_lets_go(_seconds: float) -> None:
        assert scene.ledger.batches.attach(key, 7, owner=ELSEWHERE, lease_ms=0)

    handler, key = scene.gated(sleep=it_lets_go), scene.begin(FIRST)
    assert scene.ledger.batches.attach(key, 7, owner=ELSEWHERE, lease_ms=30_000)
    handler(DF, 7)
    assert len(scene.batches) == 1
    state = state_of(scene.ledger.url, "orders")
    assert not state.batch_ended(key, BatchProgress(0, 1, 0, 0)).went_through
    at_once = scene.begin(SECOND)
    handler(DF, 8)
    assert state.batch_ended(at_once, BatchProgress(0, 1, 0, 0)).went_through


def test_a_run_has_a_number_above_that_of_one_that_ended_since_it_was_counted(
    scene: Scene,
) -> None:
    handler = scene.gated(reader=READER)
    failed, live = scene.begin(FIRST), scene.begin(SECOND)
    scene.ledger.batches.fail(failed, FullError())
    attached = scene.ledger.batches.attach(live, 0, owner="me", lease_ms=LEASE_MS)
    claimed = scene.ledger.batches.claim(failed, "a backfill", LEASE_MS)
    assert attached is not None
    assert claimed is not None
    assert handler.runner("a backfill").run(claimed) is None
    handler.runner("me").run_live(DF, attached, 0)
    backfilled, last = scene.batches
    assert (backfilled.key, last.key) == (failed, live)
    assert backfilled.sequence < last.sequence


@pytest.mark.parametrize("was_free", [True, False, None])
def test_a_run_that_may_have_waited_for_its_turn_is_counted_when_it_comes(
    scene: Scene, was_free: bool | None
) -> None:
    elsewhere: list[int] = []

    @contextmanager
    def turn() -> Iterator[bool | None]:
        if not was_free:
            elsewhere.append(scene.ledger.gates.next_sequence("orders"))
        yield was_free

    key = scene.begin(FIRST)
    attached = scene.ledger.batches.attach(key, 0, owner="me", lease_ms=LEASE_MS)
    assert attached is not None
    context = RunContext(ledger=scene.ledger, handler=scene, owner="me", turn=turn())
    executor = BatchRunner(context)
    executor.run_live(DF, attached, 0)
    (batch,) = scene.batches
    assert batch.sequence == 1 if was_free else batch.sequence > elsewhere[0]
