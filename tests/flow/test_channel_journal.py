"""Stages linked by journals: what one writes, the next one has once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.journal.journals import fill

from headrace.control.input_queue import InputQueue
from headrace.errors import JournalError, LaneTakenError, OptionError
from headrace.flow.channel import Channel
from headrace.flow.journal_channel import JournalChannel, journal
from headrace.journal import Journal
from headrace.ledger import Ledger, Status, part_of
from headrace.ledger.receivers import StreamRate


@dataclass
class Rows:
    """A ledger that knows what it is told."""

    statuses: dict[str, Status] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)

    def is_over(self, key: str) -> bool:
        return self.statuses.get(part_of(key)[0]) in {Status.SUCCESS, Status.DEAD}

    def get(self, key: str) -> "Rows._Row | None":
        if key not in self.statuses:
            return None
        return Rows._Row(self.statuses[key])

    def stream_rate(self, gate_name: str, journal_id: str) -> StreamRate:
        return StreamRate(None, None, (), dict(self.begun))

    @dataclass
    class _Row:
        status: Status


def ledger(rows: Rows) -> Ledger:
    return cast(Ledger, SimpleNamespace(batches=rows, receivers=rows))


def frame(spark: SparkSession, values: Sequence[str], tasks: int = 2) -> DataFrame:
    rows = [(value,) for value in values]
    return spark.createDataFrame(rows, "value string").repartition(tasks)


def values_in(path: Path) -> list[str]:
    there = Journal.open(str(path))
    found = []
    for lane, (start, until) in there.bounds().items():
        for block in there.blocks(lane):
            assert start <= block.first < until
            found += there.records(lane, block.first).batch.column("value").to_pylist()
    return sorted(value.decode() for value in found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clean"


@pytest.fixture
def channel(path: Path) -> JournalChannel:
    return journal(str(path))


def test_a_batch_that_is_run_again_is_there_once(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    rows = Rows({"k1": Status.IN_PROGRESS})
    channel.write(frame(spark, ["a", "b", "c"]), "k1", ledger(rows))
    channel.write(frame(spark, ["c", "other", "d", "e"], 1), "k1", ledger(rows))
    assert values_in(path) == ["a", "b", "c"]


def test_a_part_of_a_batch_that_is_there_is_there(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    rows = Rows({"k1": Status.IN_PROGRESS})
    channel.write(frame(spark, ["a", "b"]), "k1", ledger(rows))
    channel.write(frame(spark, ["a"]), "k1.0", ledger(rows))
    rows.statuses["k1"] = Status.SUCCESS
    channel.write(frame(spark, ["a"]), "k1.0", ledger(rows))
    assert values_in(path) == ["a", "b"]


def test_who_lost_a_batch_to_another_process_writes_nothing(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    rows = Rows({"k1": Status.IN_PROGRESS, "k2": Status.IN_PROGRESS})
    channel.write(frame(spark, ["a"]), "k1", ledger(rows))
    rows.statuses["k1"] = Status.SUCCESS
    channel.write(frame(spark, ["b"]), "k2", ledger(rows))
    assert [each.name for each in (path / ".staged-0").glob("*.manifest")] == ["k2.manifest"]
    channel.write(frame(spark, ["late"]), "k1", ledger(rows))
    assert values_in(path) == ["a", "b"]


@pytest.mark.nightly
def test_of_batches_that_are_in_no_ledger_the_latest_are_remembered(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    for number in range(13):
        channel.write(frame(spark, [str(number)], 1), f"k{number}", ledger(Rows()))
    assert len(list((path / ".staged-0").glob("*.manifest"))) == 11
    channel.write(frame(spark, ["again"], 1), "k12", ledger(Rows()))
    assert len(values_in(path)) == 13


def test_a_batch_that_makes_nothing_writes_nothing(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    channel.write(frame(spark, []), "k1", ledger(Rows()))
    assert values_in(path) == []


def test_keys_values_and_headers_arrive_as_they_are(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    made = spark.createDataFrame(
        [("k", b"v", [("h", b"x")]), (None, None, []), ("k2", b"", None)],
        "key string, value binary, headers array<struct<key:string,value:binary>>",
    ).coalesce(1)
    channel.write(made, "k1", ledger(Rows()))
    batch = Journal.open(str(path)).records(0, 0).batch
    assert batch.column("key").to_pylist() == [b"k", None, b"k2"]
    assert batch.column("value").to_pylist() == [b"v", None, b""]
    assert batch.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}], None, None]


@pytest.mark.parametrize(
    ("select", "what"),
    [
        ("'a' as key", "it has no column 'value'"),
        ("1 as value", "its column 'value' is int"),
        ("'a' as value, 'b' as topic", "its column 'topic' is string"),
        ("'a' as value, 'b' as value", "it names a column twice"),
        ("'a' as value, array('b') as headers", "its column 'headers' is array<string>"),
        (
            "'a' as value, array(named_struct('k', 'b')) as headers",
            "its column 'headers' is array<struct<k:string>>",
        ),
    ],
)
def test_other_columns_are_refused_before_anything_is_written(
    spark: SparkSession, channel: JournalChannel, path: Path, select: str, what: str
) -> None:
    with pytest.raises(OptionError, match="is not what a channel takes") as error:
        channel.write(spark.sql(f"select {select}"), "k1", ledger(Rows()))
    assert what in str(error.value)
    assert not path.exists()


def test_a_task_that_fails_leaves_nothing(
    spark: SparkSession, channel: JournalChannel, path: Path
) -> None:
    failing = "if(id < 3, string(id), raise_error('it is not true')) as value"
    with pytest.raises(PySparkException, match="it is not true"):
        channel.write(spark.range(4).selectExpr(failing), "k1", ledger(Rows()))
    assert values_in(path) == []
    channel.write(frame(spark, ["a"]), "k1", ledger(Rows()))
    assert values_in(path) == ["a"]


def test_a_lane_of_another_writer_is_waited_for(spark: SparkSession, path: Path) -> None:
    with (
        Journal.open(str(path), create=True).writer(0),
        pytest.raises(LaneTakenError, match="is being written by process"),
    ):
        JournalChannel(str(path), lane_timeout_s=0.1).write(
            frame(spark, ["a"]), "k1", ledger(Rows())
        )


def test_there_is_no_channel_in_an_object_store() -> None:
    with pytest.raises(OptionError, match="cannot be written: a batch goes into a journal"):
        journal("s3://bucket/orders")
    with pytest.raises(OptionError, match="journal's name"):
        journal("journals/or ders")
    with pytest.raises(OptionError, match="lane -1"):
        journal("journals/orders", lane=-1)
    with pytest.raises(OptionError, match="file://orders has no absolute path"):
        journal("file://orders")


def test_channels_are_values() -> None:
    here = str(Path("a/b").absolute())
    assert journal("a/b", lane=1) == JournalChannel(here, 1)
    for same in (journal("a//b/"), journal("a/b", lanes=0), journal("a/c/../b"), journal(here)):
        assert (same, hash(same)) == (journal("a/b"), hash(journal("a/b")))
    assert journal("file:///a/b/") == journal("/a/b")
    typed: Channel = journal("a/b")
    assert (typed.location, typed.has_one_writer) == (f"the journal {here}", True)


def test_the_queue_is_what_no_batch_was_given(path: Path) -> None:
    rows = Rows()
    queue = journal(str(path)).queue("sink", ledger(rows))
    assert queue.measure() == InputQueue(0, 0, 0)
    fill(path, {0: [10, 10], 3: [5]})  # each record has 3 or 4 bytes
    sizes = [30 + 10 * 4, 5 * 3]
    assert queue.measure() == InputQueue(sum(sizes), sum(sizes), sum(sizes))
    rows.begun[0] = 10
    fill(path, {0: [10]})
    left = InputQueue(40 + 40 + 15, 40 + 15, 70 + 15 + 40)
    assert queue.measure() == left
    assert queue.measure() == left
    rows.begun |= {0: 25, 3: 5}
    assert queue.measure() == InputQueue(20, 20, 125)
    rows.begun[0] = 30
    assert queue.measure() == InputQueue(0, 0, 125)
    rows.begun[0] = 0  # a fresh checkpoint reads it all again
    assert queue.measure().waiting_bytes == 110


def test_the_queue_finds_new_lanes_and_goes_on_after_a_pruning(path: Path) -> None:
    rows = Rows({}, {0: 20})
    filled = fill(path, {0: [10, 10, 10]})
    queue = journal(str(path)).queue("sink", ledger(rows))
    assert queue.measure() == InputQueue(40, 40, 40)
    filled.remove_before(0, 30)
    rows.begun[0] = 30
    fill(path, {5: [10]})
    looks = [queue.measure() for _ in range(8)]
    assert looks[0] == InputQueue(0, 0, 40)
    assert looks[-1] == InputQueue(30, 0, 70)


def test_a_damaged_block_is_told_by_the_queue(path: Path) -> None:
    fill(path, {0: [10]})
    (path / "0" / f"{0:020d}.block").write_bytes(b"x" * 200)
    with pytest.raises(JournalError, match="is damaged"):
        journal(str(path)).queue("sink", ledger(Rows())).measure()
