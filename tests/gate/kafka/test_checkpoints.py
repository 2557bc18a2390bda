"""Other uses of a query's checkpoint: the way back, and a proof from outside."""

import json
import shlex
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.services.kafka import TopicFactory
from tests.services.queries import available_now, stream_of
from tests.services.waiting import wait_until
from typer.testing import CliRunner, Result

import headrace
from headrace.errors import OptionError, SourceError
from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.app import app


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])


def export(*arguments: object) -> Result:
    return command("export", *arguments)


def contents(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def reached(checkpoint: Path, batch: int) -> int:
    """Count the records before the end of a batch, in a topic that began at 0."""
    if batch < 0:
        return 0
    offset = json.loads((checkpoint / "offsets" / str(batch)).read_text().split("\n")[2])
    topics = [ends for name, ends in offset.items() if not name.startswith("@")]
    return sum(sum(ends.values()) for ends in topics)


def values(*counts: range) -> list[bytes]:
    return [b"%d" % number for numbers in counts for number in numbers]


def test_every_record_is_processed_once_by_headrace_or_by_the_native_source_after_it(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    sent = values(range(10))
    orders.produce(*sent[:7])
    orders.produce(*sent[7:], partition=1)
    checkpoint, copy, second = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "second"
    native = stream_of(spark, orders, {"failOnDataLoss": "true"}, source="kafka")
    gate = {"headrace.gate": "orders", "headrace.ledger": f"sqlite:///{tmp_path}/headrace.db"}
    ours = stream_of(spark, orders, {"maxOffsetsPerTrigger": 4, **gate})

    seen = Counter(available_now(ours, checkpoint).values)
    with pytest.raises(StreamingQueryException):
        available_now(native, checkpoint)
    before = contents(checkpoint)
    assert export(checkpoint, "--to", copy).exit_code == 0
    assert contents(checkpoint) == before
    url = f"sqlite:///{tmp_path}/headrace.db"
    line = command("offsets", "orders", "--ledger", url).stdout.strip()
    assert json.loads(line) == {orders.name: {"0": 7, "1": 3}}

    sent += values(range(10, 14))
    orders.produce(*sent[10:], partition=1)
    seen += Counter(available_now(native, copy).values)
    assert seen == Counter(value.decode() for value in sent)
    fresh = stream_of(spark, orders, {"startingOffsets": line}, source="kafka")
    assert available_now(fresh, second).values == ["10", "11", "12", "13"]

    # And there again, from the native source's own checkpoint, with the same query.
    orders.produce(b"14")
    assert available_now(ours, copy).values == ["14"]


@pytest.mark.parametrize("crashed", [0, 1])
def test_a_batch_that_is_planned_and_not_committed_is_refused_or_run_again_just_as_it_was(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path, crashed: int
) -> None:
    orders = topic(2)
    orders.produce(*values(range(8)))
    orders.produce(*values(range(8, 10)), partition=1)

    def crash(batch: int) -> None:
        if batch == crashed:
            raise RuntimeError("crashed, with the batch planned and not yet committed")

    ours = stream_of(spark, orders, {"maxOffsetsPerTrigger": 5})
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    with pytest.raises(StreamingQueryException, match="crashed, with the batch planned"):
        available_now(ours, checkpoint, crash)
    refused = export(checkpoint, "--to", copy)
    assert isinstance(refused.exception, SourceError)
    assert f"Batch {crashed} of the checkpoint" in str(refused.exception)
    assert not copy.exists()

    assert export(checkpoint, "--to", copy, "--rerun").exit_code == 0
    native = stream_of(spark, orders, {"startingOffsets": "latest"}, source="kafka")
    collected = available_now(native, copy)
    processed, planned = reached(checkpoint, crashed - 1), reached(checkpoint, crashed)
    assert collected.sizes[0] == planned - processed, "first the batch that was planned"
    expected = sorted(value.decode() for value in values(range(10)))
    assert len(collected.values) == 10 - processed
    if crashed == 0:
        assert collected.values == expected


def test_a_ledger_or_a_checkpoint_that_is_an_older_copy_is_not_called_proven(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    ledger, older = tmp_path / "headrace.db", tmp_path / "older.db"
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    headrace.register(spark)
    gate = headrace.Gate("orders", interval="1 second", ledger=f"sqlite:///{ledger}")
    read = gate.read(spark, "kafka").option("kafka.bootstrap.servers", orders.bootstrap_servers)
    read = read.option("subscribe", orders.name).option("startingOffsets", "earliest")
    seen = Counter[int]()

    def handler(batch_df: DataFrame, _batch: headrace.Batch) -> None:
        seen.update(int(row.value) for row in batch_df.collect())

    def run(folder: Path = checkpoint) -> None:
        writer = gate.write(read.load(), handler)
        writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        assert writer.start().awaitTermination(120)
        wait_until(lambda: verify().exit_code == 0)

    def verify(*arguments: object, file: Path = ledger) -> Result:
        runner = CliRunner(env={"HEADRACE_LEDGER": f"sqlite:///{file}", "COLUMNS": "200"})
        return runner.invoke(app, ["verify", *map(str, arguments)])

    orders.produce(*values(range(6)))
    run()
    shutil.copytree(checkpoint, copy)
    with closing(sqlite3.connect(ledger)) as whole, closing(sqlite3.connect(older)) as at_that_time:
        whole.backup(at_that_time)
    orders.produce(*values(range(6, 8)), partition=1)
    run()

    outside = ("--checkpoint", checkpoint, "--source")
    healthy = verify(*outside)
    assert (healthy.exit_code, healthy.stdout.splitlines()[0]) == (0, "orders: proven")
    assert "were compared; Spark keeps no other batches" in healthy.stdout

    assert verify(file=older).exit_code == 0, "it agrees with itself"
    found = verify(*outside, file=older)
    assert found.exit_code == 4
    assert f"{orders.name}-1 [0, 2) was planned by run" in found.stdout
    assert f"Kafka has {orders.name}-1 [0, 2), which is not planned yet." in found.stdout
    found = verify("--checkpoint", copy)
    assert found.exit_code == 4
    assert f"has a batch of {orders.name}-1 [0, 2), which the checkpoint has ne" in found.stdout

    orders.produce(*values(range(8, 11)))
    with pytest.raises(StreamingQueryException, match="the checkpoint is an older copy") as refused:
        run(copy)
    adopt = shlex.split(str(refused.value).split("`headrace ")[1].split("`")[0])
    adopt[adopt.index("TEXT")] = "the volume was put back"
    result = CliRunner(env={"HEADRACE_LEDGER": f"sqlite:///{ledger}"}).invoke(app, adopt)
    assert result.exit_code == 0, result.output
    run(copy)
    orders.produce(*values(range(11, 14)))
    run(tmp_path / "new")
    assert seen == Counter(range(14)), "each record once"


def test_a_restored_ledger_names_what_it_cannot_know_and_another_one_is_refused(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(1)
    ledger, older = tmp_path / "headrace.db", tmp_path / "older.db"
    headrace.register(spark)
    seen = Counter[int]()

    def handler(batch_df: DataFrame, _batch: headrace.Batch) -> None:
        seen.update(int(row.value) for row in batch_df.collect())

    def run(file: Path) -> None:
        gate = headrace.Gate("orders", interval="1 second", ledger=f"sqlite:///{file}")
        read = gate.read(spark, "kafka").option("kafka.bootstrap.servers", orders.bootstrap_servers)
        read = read.option("subscribe", orders.name).option("startingOffsets", "earliest")
        writer = gate.write(read.load(), handler).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.start().awaitTermination(120)

    orders.produce(*values(range(6)))
    run(ledger)
    with closing(sqlite3.connect(ledger)) as whole, closing(sqlite3.connect(older)) as at_that_time:
        whole.backup(at_that_time)
    orders.produce(*values(range(6, 8)))
    run(ledger)
    orders.produce(b"8")
    run(older)
    assert seen == Counter(range(9))
    with Ledger.open(f"sqlite:///{older}") as opened:
        (dead,) = opened.batches.newest("orders", statuses=[Status.DEAD])
        assert dead.error is not None
        assert "2 records of which this ledger" in dead.error.message
        (at,) = opened.batches.ranges(dead.batch_key)
        assert (at.offsets.start, at.offsets.until) == (6, 8)
    with pytest.raises(StreamingQueryException, match="belongs to another ledger"):
        run(tmp_path / "another.db")


def test_no_backfill_runs_what_a_program_restarts_by_itself(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders, seen, is_away = topic(1), Counter[int](), [True]
    headrace.register(spark)
    url = f"sqlite:///{tmp_path}/headrace.db"

    def handler(batch_df: DataFrame, _batch: headrace.Batch) -> None:
        if is_away:
            raise ValueError("not yet")
        seen.update(int(row.value) for row in batch_df.select("value").collect())

    def run(folder: str) -> None:
        gate = headrace.Gate("orders", interval="1 second", ledger=url)
        read = gate.read(spark, "kafka").option("kafka.bootstrap.servers", orders.bootstrap_servers)
        read = read.option("subscribe", orders.name).option("startingOffsets", "earliest")
        read = read.option("headrace.newCheckpoint", "restart")
        writer = gate.write(read.load(), handler, on_failure="defer")
        writer = writer.option("checkpointLocation", str(tmp_path / folder))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    orders.produce(*values(range(3)))
    run("first")
    is_away.clear()
    run("second")
    run("second")
    assert seen == Counter(range(3))
    with Ledger.open(url) as ledger:
        (restarted,) = ledger.operator_limits.history("orders")
        assert restarted.kind is OperatorActionKind.RESTART
        assert restarted.author == "headrace: the option headrace.newCheckpoint"
        assert ledger.operator_limits.for_the_start("orders") == ()
        assert ledger.batches.unresolved("orders") == ()


def test_a_query_with_state_refuses_a_new_checkpoint_until_somebody_says_what_that_means(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(1)
    headrace.register(spark)
    url = f"sqlite:///{tmp_path}/headrace.db"

    def handler(batch_df: DataFrame, _batch: headrace.Batch) -> None:
        batch_df.collect()

    def run(folder: str, **options: str) -> None:
        gate = headrace.Gate("orders", interval="1 second", ledger=url)
        read = gate.read(spark, "kafka").option("kafka.bootstrap.servers", orders.bootstrap_servers)
        read = read.option("subscribe", orders.name).option("startingOffsets", "earliest")
        counts = read.options(**options).load().groupBy("partition").count()
        writer = gate.write(counts, handler).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / folder))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    orders.produce(*values(range(3)))
    run("first")
    run("first")
    with pytest.raises(OptionError, match=r"has a history in .*headrace\.newCheckpoint"):
        run("second")
    run("second", **{"HEADRACE.newCheckpoint": "continue"})
    with Ledger.open(url) as ledger:
        ledger.operator_limits.restart("orders", "ops", "the table is built anew")
    run("third")
