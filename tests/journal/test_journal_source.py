"""A journal as a source of Spark's, and how its tasks are made."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import Handled, finish
from tests.journal.journals import TIME_MS, fill, values_of
from tests.services.queries import sentence

import headrace
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError, SourceError
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.gate.source.readers import RECORDS_WORTH_A_TASK
from headrace.journal import Journal, Records
from headrace.journal.journal_source import cut_at_blocks

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """``read(journal, option=value)``: a bounded read."""
    headrace.register(spark)

    def read(journal: Path, **options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("headrace-journal").options(**given).load(str(journal))

    return read


def values(df: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in df.orderBy("partition", "offset").collect()]


def test_a_bounded_read_has_everything_or_what_it_was_asked_for(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    fill(path, {0: [10, 20, 30], 3: [5]})
    assert values(read(path)) == [*values_of(0, 0, 60), *values_of(3, 0, 5)]
    assert values(read(path, lanes="3")) == values_of(3, 0, 5)
    some = {
        "startingOffsets": json.dumps({"orders": {"0": 7, "3": -2}}),
        "endingOffsets": json.dumps({"orders": {"0": 31, "3": 0}}),
    }
    assert values(read(path, **some)) == values_of(0, 7, 31)
    later = read(path, startingTimestamp=TIME_MS + 1_000, lanes="0")
    assert values(later) == values_of(0, 10, 60)
    row = read(path, lanes="3", includeHeaders="true").orderBy("offset").first()
    assert row is not None
    assert (row.topic, row.partition, row.offset, row.timestampType) == ("orders", 3, 0, 0)
    assert (row.timestamp.timestamp() * 1000, row.key, row.headers) == (TIME_MS, None, None)


def test_what_is_wrong_is_told_in_one_sentence(read: Read, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as raised:
        read(tmp_path / "orders").collect()
    assert sentence(raised.value).startswith("SourceError: There is no journal at ")
    fill(tmp_path / "orders", {1: [1]})
    with pytest.raises(PySparkException) as raised:
        read(tmp_path / "orders", lanes="0").collect()
    assert "has no lane 0 (option lanes); its lanes: 1." in sentence(raised.value)


def test_a_gate_refuses_what_is_wrong_before_a_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    gate = Gate("orders", interval="1 second", ledger=f"sqlite:///{tmp_path}/headrace.db")
    with pytest.raises(SourceError, match="There is no journal at"):
        gate.read(spark, "journal").load(str(tmp_path / "orders"))
    with pytest.raises(OptionError, match="The option path is missing or empty"):
        gate.read(spark, "journal").load()


def test_a_gated_query_reads_each_record_once_over_restarts_and_new_lanes(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, url = tmp_path / "orders", f"sqlite:///{tmp_path}/headrace.db"
    fill(path, {0: [100, 50]})
    gate, handled = Gate("orders", interval="1 second", ledger=url), Handled()

    def run() -> None:
        df = gate.read(spark, "journal").option("maxOffsetsPerTrigger", 60).load(str(path))
        writer = gate.write(df, handled).option("checkpointLocation", str(tmp_path / "ckpt"))
        finish(writer.trigger(availableNow=True).start())

    run()
    assert sorted(handled.records) == [("orders", 0, offset) for offset in range(150)]
    assert max(sum(r.count for r in batch.ranges) for batch in handled.batches) == 60
    fill(path, {0: [10], 1: [30]})
    run()
    assert sorted(handled.records[150:]) == [
        *(("orders", 0, offset) for offset in range(150, 160)),
        *(("orders", 1, offset) for offset in range(30)),
    ]
    with Ledger.open(url) as ledger:
        (declared,) = ledger.gates.all()
        assert declared.source == "journal"
        proof = ledger.proofs.verify("orders")
        assert {span.topic_id for span in proof.spans} == {Journal.open(str(path)).id}
        assert {batch.status for batch in ledger.batches.newest("orders")} == {Status.SUCCESS}
        assert sum(span.processed for span in proof.spans) == 190


def test_a_batch_that_failed_is_read_again_from_the_journal(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, url = tmp_path / "orders", f"sqlite:///{tmp_path}/headrace.db"
    journal = fill(path, {0: [20, 20]})
    with journal.writer(0) as writer:
        writer.append(Records.of([b"bad"], timestamp_ms=TIME_MS))
    gate, seen = Gate("orders", interval="1 second", ledger=url), list[bytes]()

    def handle(df: DataFrame, _batch: headrace.Batch) -> None:
        found = values(df)
        if b"bad" in found:
            raise ValueError("this cannot be processed")
        seen.extend(found)

    df = gate.read(spark, "journal").load(str(path))
    writer_ = gate.write(df, handle, on_failure="isolate", backfill="manual")
    query = writer_.option("checkpointLocation", str(tmp_path / "ckpt"))
    finish(query.trigger(availableNow=True).start())
    assert sorted(seen) == sorted(v for v in values_of(0, 0, 40) if v is not None)
    with Ledger.open(url) as ledger:
        (letter,) = ledger.dead_letters.oldest("orders")
        assert (letter.letter.value, letter.letter.offset) == (b"bad", 40)


counts = st.lists(st.integers(1, 60_000), min_size=1, max_size=30)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[OffsetRange], dict[int, list[int]]]:
    """Ranges of some lanes, and where blocks begin in these."""
    ranges, firsts = [], {}
    for lane in range(draw(st.integers(1, 4))):
        begins = [0]
        for count in draw(counts):
            begins.append(begins[-1] + count)
        end = begins.pop()
        start = draw(st.integers(0, end - 1))
        ranges.append(OffsetRange("a", lane, start, draw(st.integers(start + 1, end))))
        firsts[lane] = begins
    return ranges, firsts


@given(lanes(), st.integers(1, 16))
def test_pieces_follow_each_other_and_are_cut_where_blocks_begin_only(
    drawn: tuple[list[OffsetRange], dict[int, list[int]]], parallelism: int
) -> None:
    ranges, firsts = drawn
    pieces = cut_at_blocks(ranges, lambda r: firsts[r.partition], parallelism)
    for r in ranges:
        own = [piece for piece in pieces if piece.partition == r.partition]
        assert (own[0].start, own[-1].until) == (r.start, r.until)
        for before, after in pairwise(own):
            assert before.until == after.start
            assert after.start in firsts[r.partition]
        assert all(piece.count > 0 for piece in own)


def test_a_lane_alone_is_shared_out_to_as_many_tasks_as_it_is_worth() -> None:
    def begins(_range: OffsetRange) -> range:
        return range(0, 1_000_000, 1_000)

    whole = OffsetRange("a", 0, 0, 1_000_000)
    assert len(cut_at_blocks([whole], begins, 4)) == 4
    few = OffsetRange("a", 0, 0, RECORDS_WORTH_A_TASK)
    assert cut_at_blocks([few], begins, 4) == [few]


def test_a_block_is_read_by_one_task_however_large_it_is() -> None:
    whole = OffsetRange("a", 0, 0, 1_000_000)
    assert cut_at_blocks([whole], lambda _lane: [0], 4) == [whole]


@pytest.mark.parametrize("place", ["header", "payload"])
def test_damage_before_a_lanes_last_frame_is_not_taken_for_the_lanes_end(
    read: Read, tmp_path: Path, place: str
) -> None:
    path = tmp_path / "orders"
    fill(path, {0: [10, 20, 30]})
    (segment,) = (path / "0").glob("*.segment")
    data = bytearray(segment.read_bytes())
    at = data.find(b"HRFRAME", 8) + {"header": 27, "payload": 200}[place]
    data[at] ^= 255
    segment.write_bytes(data)
    with pytest.raises(PySparkException) as raised:
        read(path).collect()
    assert sentence(raised.value).startswith("CorruptionError: ")
    segment.write_bytes(data[: at - 20])  # the remains of an append that a crash interrupted
    assert values(read(path)) == values_of(0, 0, 10)
