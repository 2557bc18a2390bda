"""A sink that takes less gets less: a gate's ceiling, from the failed batch to the next plan."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace import Batch, retry
from headrace.gate.control.size_ceiling import SizeCeiling, known_ceiling
from headrace.gate.ledger.records import BatchRecord, part_of
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryLog, StreamHarness
from headrace.testing.memory_reader import TESTED_GATE

MANY = {"backpressure.initialRate": 564}


@dataclass
class Bulk:
    """A handler that takes so many records at once, and 50 ms and 1 ms for each of them."""

    log: MemoryLog
    takes: int = 300
    bad: frozenset[str] = frozenset()
    runs: list[tuple[int, bool]] = field(default_factory=list)
    error: Callable[[str], Exception] = ValueError
    in_parts: set[str] = field(default_factory=set)

    def __call__(self, df: Any, batch: Batch) -> None:
        values = [row.value.decode() for row in df.collect()]
        fails = len(values) > self.takes or not self.bad.isdisjoint(values)
        self.runs.append((len(values), not fails))
        self.note(batch)
        if fails:
            raise self.error("413 Payload Too Large")
        self.log.clock.sleep(0.05 + len(values) / 1000)

    def note(self, batch: Batch) -> None:
        key, part = part_of(batch.key)
        self.in_parts |= {key} if part else set()


def a_log(records: int) -> MemoryLog:
    return MemoryLog(*(str(number) for number in range(records)))


def batches(stream: StreamHarness) -> list[BatchRecord]:
    """The batches of the stream, oldest first."""
    newest = stream.ledger.batches.newest(TESTED_GATE, 1_000)
    return list(reversed(newest))


def ceiling_of(stream: StreamHarness) -> SizeCeiling | None:
    return known_ceiling(stream.ledger.gates.ceiling(TESTED_GATE))


def failed_at_first(stream: StreamHarness, in_parts: Collection[str] | None = None) -> list[int]:
    """The places of the batches that were run in parts."""
    if in_parts is None:
        assert isinstance(stream.handler, Bulk)
        in_parts = stream.handler.in_parts
    return [place for place, each in enumerate(batches(stream)) if each.batch_key in in_parts]


def run(stream: StreamHarness, triggers: int) -> None:
    for _ in range(triggers):
        assert stream.run_batch()


@pytest.mark.nightly
def test_few_batches_of_a_minute_fail_and_it_processes_as_much_as_with_the_limit_set() -> None:
    capped, log = a_log(60_000), a_log(60_000)
    with (
        StreamHarness(Bulk(capped), capped, options=MANY | {"maxOffsetsPerTrigger": 300}) as known,
        StreamHarness(Bulk(log), log, on_failure="isolate", options=MANY) as stream,
    ):
        run(known, 60)
        run(stream, 60)
        assert len(failed_at_first(stream)) <= 6
        assert set(stream.statuses().values()) == {Status.SUCCESS}
        processed = [sum(each.planned_records for each in batches(one)) for one in (stream, known)]
        assert processed[0] >= 0.6 * processed[1]
        assert batches(stream)[1].reason == "ceiling: 564 records at once failed, 282 passed"


@pytest.mark.integration
def test_a_batch_that_fails_as_a_whole_and_not_in_its_parts_says_so_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As an upsert whose statement has one key twice (PostgreSQL's 21000)."""
    log = a_log(8)

    def upsert(df: Any, _batch: Batch) -> None:
        values = {row.value.decode() for row in df.collect()}
        if {"0", "7"} <= values:
            raise ValueError("a row is affected a second time")

    with StreamHarness(upsert, log, on_failure="isolate", options=MANY) as stream:
        run(stream, 1)
        (batch,) = batches(stream)
    assert batch.status is Status.SUCCESS
    assert batch.error is not None
    sentence = "fails as a whole, but all of its parts pass"
    assert batch.error.message == f"The batch {sentence}: a row is affected a second time"
    (said,) = [each for each in caplog.messages if sentence in each]
    assert said.endswith("ValueError: a row is affected a second time")


def test_a_ceiling_survives_a_restart() -> None:
    log = a_log(60_000)
    with StreamHarness(Bulk(log), log, on_failure="isolate", options=MANY) as stream:
        run(stream, 5)
        before = ceiling_of(stream)
        assert before is not None
        stream.stop()
        run(stream, 1)
        assert batches(stream)[-1].planned_records == before.records


@pytest.mark.integration
def test_a_batch_that_the_ceiling_made_small_does_not_lower_the_rate() -> None:
    log = a_log(60_000)
    bulk = Bulk(log, takes=20)
    options = MANY | {"backpressure.rateEstimator": "pid", "backpressure.initialRate": 100}
    with StreamHarness(bulk, log, on_failure="isolate", options=options) as stream:
        run(stream, 32)
        assert batches(stream)[-1].reason.startswith("ceiling")
        # A batch of 20 takes 70 ms, most of which is its fixed cost: by that, 286 records/s.
        assert stream.rate_per_s is None


@pytest.mark.integration
def test_one_bad_record_teaches_no_ceiling() -> None:
    log = a_log(5_000)
    bulk = Bulk(log, takes=10_000, bad=frozenset({"700"}))
    with StreamHarness(bulk, log, on_failure="isolate", options=MANY) as stream:
        run(stream, 4)
        assert failed_at_first(stream) == [1]
        assert ceiling_of(stream) is None


def test_what_a_part_rejects_by_name_teaches_no_ceiling() -> None:
    log = a_log(1_000)
    bulk = Bulk(log)

    def handler(df: Any, batch: Batch) -> None:
        bulk.note(batch)
        rows = df.collect()
        if len(rows) > 300:
            raise ValueError("too many to reject")
        batch.reject([row for row in rows if row.value == b"17"], "not this one")

    with StreamHarness(handler, log, on_failure="isolate", options=MANY) as stream:
        run(stream, 1)
        assert failed_at_first(stream, bulk.in_parts) == [0]
        assert ceiling_of(stream) is None


@pytest.mark.nightly
def test_a_backfill_teaches_no_ceiling() -> None:
    log = a_log(564)
    bulk = Bulk(log, takes=0)
    with StreamHarness(bulk, log, on_failure="isolate", options=MANY) as stream:
        run(stream, 1)
        bulk.takes = 300
        stream.backfill()
        assert set(stream.statuses().values()) == {Status.SUCCESS}
        assert ceiling_of(stream) is None


def test_an_operator_lifts_it_and_the_next_batch_is_as_large_as_any() -> None:
    log = a_log(10_000)
    bulk = Bulk(log)
    with StreamHarness(bulk, log, on_failure="isolate", options=MANY) as stream:
        run(stream, 5)
        bulk.takes = 10_000
        stream.ledger.operator_limits.lift_ceiling(TESTED_GATE, "ada", "the sink takes more")
        run(stream, 2)
        assert all(records > 500 and passed for records, passed in bulk.runs[-2:])
        assert ceiling_of(stream) is None


@pytest.mark.parametrize(("retries_of", "runs"), [("413", 3), ("ExecutorLostFailure", 1)])
def test_a_batch_that_lost_its_executors_is_not_retried_whole(retries_of: str, runs: int) -> None:
    log = a_log(564)
    bulk = Bulk(log, error=lambda text: PySparkException(f"{retries_of}: {text}"))
    policy = retry(2, "1 second", then="isolate")
    with StreamHarness(bulk, log, on_failure=policy, options=MANY) as stream:
        run(stream, 1)
        assert [records for records, _ in bulk.runs].count(564) == runs
        assert ceiling_of(stream) is not None
