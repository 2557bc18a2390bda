"""``headrace backfill``: what it runs, what it tells, and how it ends."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from tests.gate.execution.queries import finish, read
from tests.operate.cli.commands import interrupted, run
from tests.operate.cli.outcomes import add_failed, invoke
from tests.services.kafka import Topic, TopicFactory

import headrace
from headrace.core.ranges import OffsetRange
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.policy import STOP, OnFailure
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.backfill_run import (
    Job,
    ManualBackfill,
    Outcome,
    ProgressBar,
    ProgressJson,
    ProgressLines,
    summary,
)
from headrace.operate.status.sources import SourceAccess

HANDLER = ["--handler", "operator:is_"]
BAD = "poison"


@dataclass
class Sink:
    """Keeps the values of each batch under its key; it does not take poison."""

    during: Callable[[Batch], None] = lambda _batch: None
    batches: list[Batch] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        self.during(batch)
        values = [bytes(row.value).decode() for row in df.select("value").collect()]
        if BAD in values:
            raise ValueError("this cannot\nbe kept")
        self.kept[batch.key] = values

    @property
    def values(self) -> list[str]:
        return sorted(value for values in self.kept.values() for value in values)


@dataclass
class Scene:
    """A gate whose batches have failed: ten records each."""

    spark: SparkSession
    url: str
    ledger: Ledger
    orders: Topic
    batches: list[BatchRecord]

    def work(
        self,
        sink: Sink,
        view: ProgressLines | None = None,
        *,
        policy: OnFailure = STOP,
        unlimited: bool = True,
        max_backfills: int = 10,
    ) -> ManualBackfill:
        headrace.register(self.spark)
        way = SourceAccess(KAFKA, {"kafka.bootstrap.servers": self.orders.bootstrap_servers})
        ways = {batch.batch_key: way for batch in self.batches}
        job = Job(sink, ways, policy, unlimited, max_backfills)
        return ManualBackfill(self.ledger, self.spark, job, view or ProgressLines(), self.batches)

    @property
    def now(self) -> list[BatchRecord]:
        """The batches as they are by now."""
        found = [self.ledger.batches.get(batch.batch_key) for batch in self.batches]
        return [batch for batch in found if batch is not None]

    @property
    def statuses(self) -> list[Status]:
        return [batch.status for batch in self.now]


@pytest.fixture
def scene(spark: SparkSession, topic: TopicFactory, tmp_path: Path) -> Iterator[Scene]:
    """Three batches, of which the second has poison at its fifth record."""
    orders = topic()
    values = [BAD if n == 11 else f"{n:04}" for n in range(30)]
    orders.produce(*[value.encode() for value in values])
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ranges = [OffsetRange(orders.name, 0, start, start + 10) for start in (0, 10, 20)]
        batches = [add_failed(ledger, "orders", r, orders.bootstrap_servers) for r in ranges]
        yield Scene(spark, url, ledger, orders, batches)


GOOD = [f"{n:04}" for n in range(30) if n != 11]


@pytest.mark.integration
def test_each_batch_is_run_once_earliest_first_and_counted(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink()
    work = scene.work(sink, ProgressJson())
    work.run()
    ProgressJson().end(work.tally)
    assert [batch.key for batch in sink.batches] == [b.batch_key for b in scene.batches]
    assert {(batch.kind, batch.attempt) for batch in sink.batches} == {("backfill", 2)}
    assert scene.statuses == [Status.SUCCESS, Status.FAILED, Status.SUCCESS]
    assert not work.tally.is_good
    *events, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [event["event"] for event in events] == [
        *("claimed", "done", "claimed", "failed", "claimed", "done")
    ]
    assert events[3]["batch"]["batch_key"] == scene.batches[1].batch_key
    assert events[3]["error"]["message"] == "this cannot\nbe kept"
    nothing = {"skipped": 0, "dead": 0, "not_run": 0}
    assert last == {
        "event": "summary",
        "batches": {**nothing, "done": 2, "failed": 1},
        "records": {**nothing, "done": 20, "failed": 10},
    }


@pytest.mark.integration
def test_what_is_isolated_is_dead_and_the_rest_done(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink()
    work = scene.work(sink, policy=headrace.isolate())
    work.run()
    assert sink.values == GOOD
    (letter,) = scene.ledger.dead_letters.oldest("orders")
    assert letter.letter.offset == 11
    assert summary(work.tally) == "3 batches: 2 done, 1 dead; 30 records: 29 done, 1 dead."
    assert not work.tally.is_good
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert "was processed in" in lines[1]


@pytest.mark.integration
def test_beside_the_live_stream_large_batches_are_run_in_parts(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic()
    values = [f"{n:04}" for n in range(110)]
    orders.produce(*[value.encode() for value in values])
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        whole = OffsetRange(orders.name, 0, 0, 110)
        batch = add_failed(ledger, "orders", whole, orders.bootstrap_servers)
        sink = Sink()
        work = Scene(spark, url, ledger, orders, [batch]).work(sink, unlimited=False)
        work.run()
        assert len(sink.batches) > 1
        assert batch.batch_key not in sink.kept
        assert sink.values == values
        assert summary(work.tally) == "1 batch: 1 done; 110 records: 110 done."
        assert work.tally.is_good


@pytest.mark.integration
def test_what_somebody_else_has_meanwhile_is_skipped(scene: Scene) -> None:
    first, second, third = (batch.batch_key for batch in scene.batches)
    work = scene.work(Sink())
    scene.ledger.batches.claim(first, "somebody", 60_000)
    scene.ledger.batches.claim(third, "somebody", 60_000)
    scene.ledger.batches.backfilled(third, "somebody")
    scene.ledger.batches.claim(second, "somebody", 60_000)
    scene.ledger.batches.mark_dead(second, "somebody", ValueError("no"))
    work.run()
    assert work.tally.batches == {
        **dict.fromkeys(Outcome, 0),
        **dict.fromkeys((Outcome.DONE, Outcome.SKIPPED, Outcome.DEAD), 1),
    }


@pytest.mark.integration
def test_stopping_finishes_the_batch_in_hand_and_leaves_the_rest(scene: Scene) -> None:
    sink = Sink(during=lambda _batch: work.stop())
    work = scene.work(sink)
    work.run()
    assert scene.statuses == [Status.SUCCESS, Status.FAILED, Status.FAILED]
    assert summary(work.tally) == ("3 batches: 1 done, 2 not run; 30 records: 10 done, 20 not run.")
    assert not work.tally.is_good


@pytest.mark.integration
def test_an_end_at_once_gives_the_batch_in_hand_back_and_makes_nothing_dead(scene: Scene) -> None:
    def end(_batch: Batch) -> None:
        raise KeyboardInterrupt

    work = scene.work(Sink(during=end), max_backfills=2)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            work.run()
    first = scene.now[0]
    assert (first.status, first.attempts, first.owner) == (Status.FAILED, 4, None)
    assert first.error is not None
    assert first.error.error_class == "Interrupted"
    assert work.tally.batches[Outcome.NOT_RUN] == 3


@pytest.mark.integration
def test_sys_exit_in_a_handler_fails_its_batch_and_does_not_end_the_command_as_if_all_were_done(
    scene: Scene,
) -> None:
    def leave(_batch: Batch) -> None:
        raise SystemExit(0)

    work = scene.work(Sink(during=leave))
    work.run()
    assert scene.statuses == [Status.FAILED] * 3
    error = scene.now[0].error
    assert error is not None
    assert "SystemExit: 0" in error.message
    assert not work.tally.is_good


@pytest.mark.nightly
def test_ctrl_c_twice_ends_the_command_and_all_that_it_started(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "long_jobs.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "def sleep(parts):\n"
        "    time.sleep(600)\n"
        "    yield from parts\n"
        "def handle(df, batch):\n"
        "    Path('runs').touch()\n"
        "    df.mapInArrow(sleep, df.schema).count()\n"
    )
    arguments = ["backfill", "--handler", "long_jobs:handle", "--all", "--ledger", scene.url]
    ended = interrupted(arguments, tmp_path, once_there_is=tmp_path / "runs")
    assert ended.returncode == 130
    assert "a second Ctrl-C" in ended.stderr
    # Spark's own workers, which get the signal too, may show where it found them.
    assert "headrace/operate/cli/" not in ended.stderr
    assert ended.stdout.endswith("3 batches: 3 not run; 30 records: 30 not run.\n")
    assert (scene.now[0].status, scene.now[0].attempts) == (Status.FAILED, 2)


@pytest.mark.integration
def test_a_terminal_has_a_bar_and_is_told_what_fails(scene: Scene) -> None:
    output = StringIO()
    console = Console(file=output, width=100, force_terminal=True, color_system=None)
    view = ProgressBar(30, console)
    work = scene.work(Sink(), view)
    with view:
        work.run()
    text = output.getvalue()
    assert "30/30" in text
    assert "failed again: ValueError: this cannot" in " ".join(text.split())
    assert "was processed" not in text


def test_what_a_dry_run_would_run_is_shown_with_what_has_left_kafka(scene: Scene) -> None:
    gone = OffsetRange(scene.orders.name, 7, 0, 10)
    add_failed(scene.ledger, "orders", gone, scene.orders.bootstrap_servers)
    arguments = ["backfill", *HANDLER, "--all", "--dry-run"]
    table = invoke(scene.url, *arguments).stdout.splitlines()
    rows = [line.split() for line in table[1:5]]
    assert [row[0] for row in rows[:3]] == [b.batch_key[:8] for b in scene.batches]
    assert [row[5] for row in rows] == ["all", "all", "all", "nothing"]
    assert rows[0][3:5] == ["orders", "10"]
    assert table[-1] == "4 batches with 40 records would be run; nothing was claimed."
    *_, last = invoke(scene.url, *arguments, "--json").stdout.splitlines()
    told: dict[str, Any] = json.loads(last)
    assert (told["gate"], told["records"], told["attempts"]) == ("orders", 10, 1)
    assert told["gone"] == [{"topic": gone.topic, "partition": 7, "start": 0, "until": 10}]
    assert told["error"]["error_class"] == "ValueError"
    assert set(scene.statuses) == {Status.FAILED}


@pytest.mark.integration
def test_what_a_stream_deferred_is_backfilled_by_the_command(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic()
    values = [f"{n:04}" for n in range(25)]
    orders.produce(*[value.encode() for value in values])
    url = f"sqlite:///{tmp_path}/headrace.db"
    gate = Gate("orders", interval="1 second", ledger=url)

    def fail(_df: DataFrame, _batch: Batch) -> None:
        raise ValueError("it was down")

    writer = gate.write(read(gate, spark, orders), fail, on_failure="defer", backfill="manual")
    checkpoint = str(tmp_path / "checkpoint")
    finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    (tmp_path / "shop_jobs.py").write_text(
        "from pathlib import Path\n"
        "def upper(df):\n"
        "    return df.selectExpr('upper(cast(value as string)) AS text')\n"
        "def handle(df, batch):\n"
        "    texts = [row.text for row in df.collect()]\n"
        "    Path(f'{batch.key}.out').write_text(' '.join(texts))\n"
    )
    named = ["--handler", "shop_jobs:handle", "--transform", "shop_jobs:upper"]
    arguments = ["backfill", *named, "--all", "--json", "--ledger", url]
    ended = run(*arguments, folder=tmp_path, timeout_s=150)
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events] == ["claimed", "done", "summary"]
    with Ledger.open(url) as ledger:
        (batch,) = ledger.batches.newest("orders")
    assert batch.status is Status.SUCCESS
    (written,) = tmp_path.glob("*.out")
    assert written.name == f"{batch.batch_key}.out"
    assert sorted(written.read_text().split()) == values
