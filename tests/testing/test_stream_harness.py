"""A handler in the harness: the records and their fates are those of a real query."""

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace import Batch, retry
from headrace.errors import BrokerError, DataLossError, OptionError
from headrace.gate.backfill.monitor import Done, MarkedDead
from headrace.gate.control.bisection import IsolationBudget
from headrace.gate.execution.policy import Last, OnFailure, isolate
from headrace.gate.ledger.transitions import Status
from headrace.testing import Crash, ManualClock, MemoryLog, Record, StreamHarness
from headrace.testing.memory import STEPS

TWO_A_BATCH = {"maxOffsetsPerTrigger": 2}
POINTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]


class Sink:
    """Keeps values by the key of their batch; refuses those in ``bad`` so many times."""

    def __init__(self, **bad: int) -> None:
        self.rows: dict[str, list[str]] = {}
        self.bad = bad
        self.batches: list[Batch] = []

    def __call__(self, df: Any, batch: Batch) -> None:
        values = [row.value.decode() for row in df.collect()]
        self.batches.append(batch)
        for value in values:
            if self.bad.get(value, 0) > 0:
                self.bad[value] -= 1
                raise ValueError(f"cannot write {value}")
        self.rows[batch.key] = values

    @property
    def values(self) -> list[str]:
        return sorted(value for values in self.rows.values() for value in values)


def test_a_handler_sees_what_it_would_see_in_a_query() -> None:
    record = Record(b"a", b"k", (("trace", b"1"),), timestamp_ms=86_400_000)
    rows = []
    with StreamHarness(
        lambda df, _batch: rows.extend(df.collect()),
        MemoryLog(record, None, topic="orders"),
        options={"includeHeaders": True},
    ) as stream:
        stream.run()
    first, second = rows
    assert (first.key, first.value, first.topic, first.partition) == (b"k", b"a", "orders", 0)
    assert first.timestamp.timestamp() == 86_400
    assert [tuple(each) for each in first.headers] == [("trace", b"1")]
    assert (second.value, second.offset, second.headers) == (None, 1, None)


def test_batches_come_in_order_with_the_numbers_and_keys_of_a_query() -> None:
    sink = Sink()
    with StreamHarness(sink, MemoryLog("a", "b", "c"), options=TWO_A_BATCH) as stream:
        stream.run()
        assert [batch.id for batch in sink.batches] == [0, 1]
        keys = {row.batch_key for row in stream.ledger.batches.newest()}
        assert keys == {batch.key for batch in sink.batches}
        assert stream.statuses() == dict.fromkeys(range(3), Status.SUCCESS)


def test_an_exception_stops_the_query_and_the_next_start_repeats_the_batch() -> None:
    sink = Sink(c=1)
    with StreamHarness(sink, MemoryLog("a", "b", "c", "d"), options=TWO_A_BATCH) as stream:
        with pytest.raises(ValueError, match="cannot write c"):
            stream.run()
        assert stream.statuses()[2] is Status.FAILED
        stream.run()
    assert sink.values == ["a", "b", "c", "d"]
    assert [(batch.id, batch.attempt) for batch in sink.batches] == [(0, 1), (1, 1), (1, 2)]


def test_a_retry_waits_by_the_clock_and_runs_the_batch_in_place() -> None:
    sink, log = Sink(a=2), MemoryLog("a")
    began_ms = log.clock()
    with StreamHarness(sink, log, on_failure=retry(2, "1 minute")) as stream:
        stream.run_batch()
        assert stream.clock() - began_ms == 3 * 60_000
    assert [batch.attempt for batch in sink.batches] == [1, 2, 3]


def test_a_backfill_waits_longer_after_each_failure_and_then_is_done() -> None:
    sink, log = Sink(a=4), MemoryLog("a")
    began_ms = log.clock()
    with StreamHarness(sink, log, on_failure="defer") as stream:
        stream.run()
        events = stream.backfill()
        assert isinstance(events[-1], Done)
        assert stream.clock() - began_ms >= (1 + 2 + 4) * 60_000
    assert [batch.kind for batch in sink.batches] == ["live", *["backfill"] * 4]


def test_what_fails_too_often_is_dead() -> None:
    with StreamHarness(Sink(a=100), MemoryLog("a"), on_failure="defer") as stream:
        stream.run()
        events = stream.backfill(max_backfills=3)
        assert isinstance(events[-1], MarkedDead)
        assert stream.statuses() == {0: Status.DEAD}


def test_isolation_keeps_the_bad_record_as_it_was() -> None:
    bad = Record(b"bad", b"k", (("trace", b"1"),))
    sink = Sink(bad=100)
    log = MemoryLog("a", bad, "c")
    with StreamHarness(sink, log, on_failure="isolate") as stream:
        appended_ms = log.clock()
        stream.run()
        assert stream.ledger.dead_letters.oldest() == (), "nothing else passed after it"
        stream.backfill(max_backfills=3)
        (dead,) = stream.ledger.dead_letters.oldest()
        assert (dead.letter.key, dead.letter.headers) == (b"k", (("trace", b"1"),))
        assert dead.letter.timestamp_ms == appended_ms
    assert sink.values == ["a", "c"]


COMES_TO: dict[str, tuple[Last | OnFailure, int]] = {
    "retry": (retry(1, "1 ms"), 1),
    "fail": ("defer", 1),
    "claim": ("defer", 1),
    "backfilled": ("defer", 1),
    "release": ("defer", 2),
    "mark_dead": ("defer", 1),
    "keep_progress": ("isolate", 1),
}
"""The policy with which a batch comes to a step, and how often it fails; else it goes through."""


@pytest.mark.integration
@pytest.mark.parametrize("point", [p for p in POINTS if "put_back" not in p])
def test_a_crash_at_any_point_leaves_each_record_written_once(point: str) -> None:
    step = point.split()[1]
    policy, failures = COMES_TO.get(step, ("stop", 0))
    sink = Sink(c=failures)

    def handler(df: Any, batch: Batch) -> None:
        sink(df, batch)
        if step == "commit":
            with batch.transaction() as connection:
                connection.execute(sa.text("SELECT 1"))

    log = MemoryLog("a", "b", "c", Crash(point), "d", "e")
    with StreamHarness(handler, log, on_failure=policy, options=TWO_A_BATCH) as stream:
        stream.run()
        if step == "mark_dead":
            log.delete_before(4)
        if policy in {"defer", "isolate"}:
            stream.backfill(max_backfills=10)
        assert stream.crashes == 1, "the step was not come to"
        gone = ["c", "d"] if step == "mark_dead" else []
        assert sink.values == sorted({"a", "b", "c", "d", "e"} - set(gone))
        dead = [offset for offset, status in stream.statuses().items() if status is Status.DEAD]
        assert dead == [2, 3][: len(gone)]


@given(
    records=st.lists(st.sampled_from(["good", "bad", "once"]), min_size=1, max_size=8),
    crashes=st.lists(st.tuples(st.integers(0, 7), st.sampled_from(POINTS)), max_size=4),
)
@examples(8)
def test_whatever_fails_and_crashes_each_record_has_one_fate(
    records: Sequence[str], crashes: Sequence[tuple[int, str]]
) -> None:
    values = [f"{kind}{number}" for number, kind in enumerate(records)]
    sink = Sink(**{v: {"g": 0, "b": 10**6, "o": 1}[v[0]] for v in values})
    log = MemoryLog()
    for number, value in enumerate(values):
        log.append(value, *[Crash(point) for at, point in crashes if at == number])
    policy = OnFailure(last="isolate", budget=IsolationBudget(max_runs=1_000))
    with StreamHarness(sink, log, on_failure=policy, options={"maxOffsetsPerTrigger": 3}) as stream:
        stream.run()
        stream.backfill(max_backfills=20)
        fates = {values[offset]: status for offset, status in stream.statuses().items()}
        letters = {kept.letter.offset for kept in stream.ledger.dead_letters.oldest()}
        # A bad record is a dead letter, or in a dead batch: where too few others of its batch pass,
        # nothing proves that it is at fault, and the rest of the batch ends dead.
        assert fates == {v: Status.DEAD if v[0] == "b" else Status.SUCCESS for v in values}
        assert sorted(sink.values) == sorted(v for v in values if v[0] != "b")
        assert {values[offset][0] for offset in letters} <= {"b"}


def test_what_a_transaction_writes_is_there_if_and_only_if_the_batch_is_a_success() -> None:
    log = MemoryLog("a", Crash("before commit"), "b", Crash("after commit"), "c")
    kept = sa.Table("kept", sa.MetaData(), sa.Column("value", sa.Text))

    def handler(df: Any, batch: Batch) -> None:
        rows = [{"value": row.value.decode()} for row in df.collect()]
        with batch.transaction() as connection:
            connection.execute(kept.insert(), rows)

    with StreamHarness(handler, log, options={"maxOffsetsPerTrigger": 1}) as stream:
        engine = sa.create_engine(stream.ledger.url)
        kept.create(engine)
        stream.run()
        with engine.connect() as connection:
            assert sorted(connection.scalars(sa.select(kept.c.value))) == ["a", "b", "c"]
        engine.dispose()
        assert stream.crashes == 2


def test_an_outage_of_the_log_fails_no_record() -> None:
    sink, log = Sink(a=1), MemoryLog("a")
    with StreamHarness(sink, log, on_failure="isolate") as stream:
        log.error = BrokerError("Nobody answers.")
        with pytest.raises(BrokerError, match="Nobody answers"):
            stream.run()
        log.error = None

        def lose_the_brokers(df: Any, _batch: Batch) -> None:
            log.error = BrokerError("Away.")
            df.count()

        stream.handler = lose_the_brokers
        stream.run_batch()
        (failed,) = stream.ledger.batches.failed("tested")
        assert failed.error is not None
        assert failed.error.error_class == "headrace.errors.BrokerError"
        log.error, stream.handler = None, Sink()
        stream.backfill()
        assert stream.statuses() == {0: Status.SUCCESS}


def test_what_retention_took_stops_the_query_or_is_counted() -> None:
    log = MemoryLog("a", "b", "c", "d")
    with StreamHarness(Sink(), log, options=TWO_A_BATCH) as stream:
        stream.run_batch()
        log.delete_before(3)
        with pytest.raises(DataLossError, match=r"records-0 \[2, 3\)"):
            stream.run()
    sink, log = Sink(), MemoryLog("a", "b", "c", "d")
    options = {**TWO_A_BATCH, "failOnDataLoss": False}
    with StreamHarness(sink, log, options=options) as stream:
        stream.run_batch()
        log.delete_before(3)
        stream.run()
        (loss,) = stream.ledger.history.losses("tested")
        assert (loss.offsets.start, loss.offsets.until) == (2, 3)
    assert sink.values == ["a", "b", "d"]


def test_a_topic_that_is_recreated_is_read_from_its_start() -> None:
    sink, log = Sink(), MemoryLog("a", "b")
    with StreamHarness(sink, log, options={"failOnDataLoss": False}) as stream:
        stream.run()
        log.recreate()
        log.append("c")
        stream.run()
    assert sink.values == ["a", "b", "c"]


def test_a_gap_is_no_record() -> None:
    sink, log = Sink(), MemoryLog("a", "b", "c")
    log.compact(1)
    with StreamHarness(sink, log) as stream:
        stream.run()
        assert stream.statuses()[1] is Status.SUCCESS
    assert sink.values == ["a", "c"]


def test_a_log_is_read_from_a_time_and_by_bytes() -> None:
    sink, log = Sink(), MemoryLog("a")
    log.clock.sleep(60)
    log.append("b" * 100, "c" * 100)
    options = {"startingTimestamp": log.clock(), "maxBytesPerTrigger": 100}
    with StreamHarness(sink, log, options=options) as stream:
        stream.run()
    assert [len(values) for values in sink.rows.values()] == [1, 1]


def test_partitions_are_read_side_by_side() -> None:
    sink, log = Sink(), MemoryLog("a", partitions=2)
    log.append("b", "c", partition=1)
    with StreamHarness(sink, log) as stream:
        stream.run()
        assert stream.statuses(partition=1) == dict.fromkeys(range(2), Status.SUCCESS)
    assert sink.values == ["a", "b", "c"]


def test_what_a_stream_derives_is_what_the_handler_receives() -> None:
    seen: list[bytes] = []
    with StreamHarness(
        lambda values, _batch: seen.extend(values),
        MemoryLog("a", "b"),
        transform=lambda df: [row.value for row in df.collect()],
    ) as stream:
        stream.run()
    assert seen == [b"a", b"b"]


def test_without_time_nothing_is_learnt() -> None:
    with StreamHarness(Sink(), MemoryLog(*["a"] * 50)) as stream:
        stream.run()
        assert stream.rate_per_s is None


def test_a_batch_that_overruns_is_followed_at_once_by_one_that_fits() -> None:
    clock = ManualClock()
    log = MemoryLog(*["a"] * 1_000, clock=clock)
    times_ms: list[tuple[int, int]] = []

    def handler(df: Any, _batch: Batch) -> None:
        times_ms.append((clock(), df.count()))
        clock.sleep(df.count() / 50)

    with StreamHarness(handler, log, options={"backpressure.pid.minRate": 10}) as stream:
        for _ in range(6):
            stream.run_batch()
    (_, first), *_, (_, last) = times_ms
    assert (first, last) == (10, 50)


SKIP: Any = "skip"


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda: StreamHarness(Sink(), MemoryLog(), on_failure=SKIP),
            "on_failure is 'skip'",
        ),
        (
            lambda: StreamHarness(Sink(), MemoryLog(), on_failure=isolate(topic="dead")),
            "has no brokers|no brokers",
        ),
        (lambda: StreamHarness(lambda df: None, MemoryLog()), r"handler\(df, batch\)"),  # type: ignore[arg-type, misc]
        (lambda: StreamHarness(Sink(), MemoryLog(), options={"x": 1}).__enter__(), "no option x"),
        (lambda: Crash("during handle"), "crash at 'during handle'"),
        (lambda: Crash("after lunch"), "crash at 'after lunch'"),
        (lambda: MemoryLog(Crash()), "no record before it"),
        (lambda: MemoryLog(7), "must be text, bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_sentence(refused: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        refused()


def test_a_stream_that_stops_has_no_backfill() -> None:
    with (
        StreamHarness(Sink(), MemoryLog("a")) as stream,
        pytest.raises(OptionError, match=r"call run\(\)"),
    ):
        stream.backfill()


def test_a_frame_without_spark_says_what_to_do() -> None:
    with (
        StreamHarness(lambda df, _batch: df.select("value"), MemoryLog("a")) as stream,
        pytest.raises(AttributeError, match=r"spark=\.\.\."),
    ):
        stream.run()
