"""A handler decodes its batch: good records are typed, the others are rejected by themselves."""

import json as json_text
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import finish, read
from tests.services.kafka import Topic, TopicFactory
from tests.services.ledgers import new_ledger
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.decode_task import DecodeTask, LinkedReporter
from headrace.decoding.formats import Format
from headrace.errors import DecodeError, LedgerError, OptionError
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution import rejections
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.batch_reader import SparkBatchReader
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.gate.ledger.records import DeadLetter
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryLog, StreamHarness

DDL = "id BIGINT NOT NULL, name STRING"
ORDERS = headrace.json(DDL)

Handler = Callable[[DataFrame, Batch], None]


@dataclass
class Scene:
    """A gate with its ledger, and a topic before it."""

    spark: SparkSession
    gate: Gate
    ledger: Ledger
    folder: Path
    orders: Topic

    def produce(self, good: int, *bad_at: int) -> None:
        values = [json_text.dumps({"id": n, "name": f"no {n}"}).encode() for n in range(good)]
        for place in bad_at:
            values.insert(place, b'{"id": "hunter2"}')
        self.orders.produce(*values)

    def run(
        self,
        handler: Handler,
        on_failure: Last | OnFailure = "stop",
        derive: Callable[[DataFrame], DataFrame] = lambda df: df,
    ) -> None:
        """Process what is there."""
        df = derive(read(self.gate, self.spark, self.orders))
        writer = self.gate.write(df, handler, on_failure=on_failure)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    @property
    def reader(self) -> SparkBatchReader:
        access = {
            "kafka.bootstrap.servers": self.orders.bootstrap_servers,
            "subscribe": self.orders.name,
        }
        return SparkBatchReader(self.spark, KAFKA, access)

    def letters(self) -> list[DeadLetter]:
        return [each.letter for each in self.ledger.dead_letters.oldest("orders", limit=1_000)]

    def proven(self) -> tuple[int, int]:
        """Count the processed records and the explained ones; assert that there are no others."""
        found = self.ledger.proofs.verify("orders")
        assert found.verdict is Verdict.PROVEN
        return sum(s.processed for s in found.spans), sum(s.dead for s in found.spans)


@pytest.fixture
def scene(spark: SparkSession, topic: TopicFactory, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with new_ledger(url) as ledger:
        ledger.gates.declare(
            "orders", interval_ms=1_000, source="kafka", estimator=EstimatorSettings().to_text()
        )
        yield Scene(
            spark, Gate("orders", interval="1 second", ledger=url), ledger, tmp_path, topic()
        )


class Sink:
    """Keeps the ids that it is given."""

    def __init__(self, form: Format = ORDERS) -> None:
        self.form = form
        self.ids: list[int] = []

    def __call__(self, df: DataFrame, _batch: Batch) -> None:
        good = headrace.decode(df, self.form)
        assert good.columns == df.columns
        self.ids += [row.id for row in good.select("value.id").orderBy("id").collect()]


def test_good_records_are_typed_and_the_others_are_rejected(scene: Scene) -> None:
    scene.produce(20, 3, 17)
    sink = Sink()
    scene.run(sink)
    assert sink.ids == list(range(20))
    found = scene.letters()
    assert [(each.offset, each.value) for each in found] == [
        (3, b'{"id": "hunter2"}'),
        (17, b'{"id": "hunter2"}'),
    ]
    reasons = {each.error.message for each in found}
    assert reasons == {
        "it does not fit the JSON schema: Expected `int`, got `str` - at `$.id`",
    }
    assert scene.proven() == (20, 2)


@pytest.mark.nightly
def test_what_is_decoded_several_times_and_in_several_tasks_is_rejected_once(scene: Scene) -> None:
    scene.produce(200, *range(0, 100, 10))
    counts: list[int] = []

    def handler(df: DataFrame, _batch: Batch) -> None:
        good = headrace.decode(df, ORDERS).repartition(2)
        counts.append(good.count())
        assert good.select("value.name").distinct().count() == counts[-1]

    scene.run(handler)
    assert sum(counts) == 200
    assert len(scene.letters()) == 10
    assert scene.proven() == (200, 10)


def test_the_stream_itself_may_be_decoded_before_it_is_written(scene: Scene) -> None:
    scene.produce(20, 3)
    rows: list[int] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        rows.extend(row.id for row in df.select("value.id").collect())
        if batch.kind == "live" and len(batch.ranges) == 1 and batch.ranges[0].count > 20:
            rows.clear()
            raise ValueError("once more, in halves")

    scene.run(handler, "isolate", lambda df: headrace.decode(df, ORDERS))
    assert sorted(rows) == list(range(20))
    assert [each.offset for each in scene.letters()] == [3]
    assert scene.proven() == (20, 1)


def test_what_a_failed_run_could_not_decode_is_rejected_by_the_next_alone(scene: Scene) -> None:
    scene.produce(5, 2)
    calls: list[int] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        calls.append(headrace.decode(df, ORDERS).count())
        if batch.attempt == 1:
            raise ValueError("the sink is full")

    scene.run(handler, headrace.retry(1, "1 ms"))
    assert calls == [5, 5]
    assert [each.offset for each in scene.letters()] == [2]
    assert scene.proven() == (5, 1)


def test_a_transaction_keeps_what_was_decoded_before_its_end(scene: Scene) -> None:
    scene.produce(5, 2)

    def handler(df: DataFrame, batch: Batch) -> None:
        with batch.transaction():
            assert headrace.decode(df, ORDERS).count() == 5

    scene.run(handler)
    assert scene.proven() == (5, 1)


def test_what_is_decoded_after_the_commit_is_said_to_be_lost(scene: Scene) -> None:
    scene.produce(5, 2)
    raised: list[str] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        with batch.transaction():
            pass
        raised.append(str(headrace.decode(df, ORDERS).count()))

    scene.run(handler, "defer")
    (batch,) = scene.ledger.batches.newest("orders")
    assert batch.error is not None
    assert batch.error.error_class == f"{LedgerError.__module__}.LedgerError"
    assert "values that do not fit the schema (1) cannot be stored" in batch.error.message


@pytest.mark.nightly
def test_a_thread_of_the_handler_s_own_rejects_where_it_inherits(scene: Scene) -> None:
    scene.produce(5, 2)
    failed: list[str] = []

    def handler(df: DataFrame, _batch: Batch) -> None:
        def count() -> None:
            try:
                headrace.decode(df, ORDERS).count()
            except Exception as error:  # noqa: BLE001
                failed.append(str(error))

        for thread in (threading.Thread(target=count), InheritableThread(count)):
            thread.start()
            thread.join()

    scene.run(handler)
    (said,) = failed
    assert "start threads of the handler with pyspark.InheritableThread" in said
    assert scene.proven() == (5, 1)


def test_outside_of_a_handler_a_record_that_does_not_fit_is_an_error(scene: Scene) -> None:
    scene.produce(5, 2)
    options = {"kafka.bootstrap.servers": scene.orders.bootstrap_servers}
    reader = scene.spark.read.format("headrace-kafka").options(**options)
    df = reader.option("subscribe", scene.orders.name).load()
    with pytest.raises(Exception, match=f"{DecodeError.__name__}: .* at 2 cannot be decoded"):
        headrace.decode(df, ORDERS).count()
    good = df.where("offset <> 2")
    assert headrace.decode(good, ORDERS).count() == 5


def test_a_registry_that_is_away_is_waited_for_and_rejects_nothing(
    scene: Scene, registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    number = registry.register("orders-value", schema)
    registry.require("reader", "hunter2")
    client = registry.client(user="reader", password="hunter2")  # noqa: S106
    sink = Sink(headrace.avro(json_text.dumps(schema), registry=client))
    shown: list[str] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        registry.status = 200 if shown else 503
        with redirect_stdout(StringIO()) as text:
            headrace.decode(df, sink.form).explain(extended=True)
        shown.append(text.getvalue())
        sink(df, batch)

    scene.orders.produce(framed(number, b"\x0e"), framed(99, b"\x0e"), framed(number, b"\x10"))
    scene.run(handler, "isolate")
    (batch,) = scene.ledger.batches.newest("orders")
    assert (batch.status, batch.attempts) == (Status.SUCCESS, 2)
    assert "what it reads is away" in caplog.text
    assert "headrace.errors.RegistryError" in caplog.text
    assert "hunter2" not in caplog.text + "".join(shown)
    assert "MapInArrow" in shown[0]
    assert sink.ids == [7, 8]
    assert [each.offset for each in scene.letters()] == [1]
    reason = scene.letters()[0].error.message
    assert reason.startswith("the schema registry does not know the id 99; if its header")
    assert "set the source's option includeHeaders to true" in reason
    assert scene.proven() == (2, 1)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["value", "topic", "partition"], "The column offset of the rows to decode is missing"),
        (
            ["CAST(value AS STRING) AS value", "topic", "partition", "offset"],
            "The column value of the rows to decode is of string; keep the columns",
        ),
    ],
)
def test_rows_without_their_place_or_value_are_refused(
    spark: SparkSession, columns: list[str], sentence: str
) -> None:
    rows = [(b"{}", "orders", 0, 0)]
    df = spark.createDataFrame(rows, "value BINARY, topic STRING, partition INT, offset BIGINT")
    with pytest.raises(OptionError, match=sentence):
        headrace.decode(df.selectExpr(*columns), ORDERS)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("id BIGINT NOT NUL", "The JSON schema 'id BIGINT NOT NUL' does not parse"),
        ("id MAP<BIGINT, STRING>", "field id has the type map<bigint,string>, which has no JSON"),
    ],
)
def test_a_schema_that_does_not_parse_is_refused_in_one_sentence(
    spark: SparkSession, schema: str, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence) as raised:
        headrace.json(schema).columns(spark)
    assert "\n" not in str(raised.value)


def test_timestamps_without_a_zone_are_refused_with_the_name_of_the_others(
    spark: SparkSession,
) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        with pytest.raises(OptionError, match=r"field t has the type timestamp_ntz, .* TIMESTAMP_"):
            headrace.json("t TIMESTAMP").columns(spark)
        assert headrace.json("t TIMESTAMP_LTZ").columns(spark).names == ["t"]
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_a_schema_is_read_from_a_file(spark: SparkSession, tmp_path: Path) -> None:
    expected = headrace.json(DDL).columns(spark)
    for name, text in (("orders.ddl", f"{DDL}\n"), ("orders.json", expected.json())):
        (tmp_path / name).write_text(text)
        assert headrace.json(tmp_path / name).columns(spark) == expected
    assert [field.nullable for field in expected.fields] == [False, True]
    assert headrace.json(expected).columns(spark) == expected


@pytest.mark.parametrize("where", ["source", "handler"])
def test_the_harness_rejects_what_cannot_be_decoded(spark: SparkSession, where: str) -> None:
    log = MemoryLog('{"id": 1}', "no JSON", '{"id": 2}', None)
    sink: list[int | None] = []
    options = {"decode": ORDERS} if where == "source" else {}

    def handler(df: DataFrame, _batch: Batch) -> None:
        good = df if where == "source" else headrace.decode(df, ORDERS)
        sink.extend(row.id for row in good.selectExpr("value.id AS id").collect())

    with StreamHarness(handler, log, spark=spark, options=options) as stream:
        stream.run()
        (letter,) = stream.ledger.dead_letters.oldest()
        assert (letter.letter.offset, letter.letter.value) == (1, b"no JSON")
    assert sink == [1, 2, None]


def test_what_is_too_much_for_one_task_fails_its_job_before_the_sink_has_anything(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = DecodeTask(ORDERS, ORDERS.columns(scene.spark), LinkedReporter("a run", None))
    module = sys.modules[DecodeTask.__module__]
    monkeypatch.setattr(module, "MAX_IN_TASK", 2)
    values = [b'{"id": 1}', b"{", b"{", b"{"]
    columns = {
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * 4),
        "partition": pa.array([0] * 4, pa.int32()),
        "offset": pa.array(range(4), pa.int64()),
    }
    with pytest.raises(DecodeError, match="One task read more than 2 values of t-0 that cannot"):
        list(task([pa.RecordBatch.from_pydict(columns)]))


def test_more_than_may_be_kept_in_all_tasks_runs_the_whole_batch_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are too many is known when the sink has the others: no part may be run."""
    monkeypatch.setattr(rejections, "MAX_REPORTED", 2)
    scene.produce(20, 3, 5, 7)
    kept: dict[str, list[int]] = {}

    def handler(df: DataFrame, batch: Batch) -> None:
        rows = headrace.decode(df, ORDERS).select("value.id").collect()
        kept[batch.key] = [row.id for row in rows]

    scene.run(handler, "isolate")
    assert list(map(sorted, kept.values())) == [list(range(20))]
    (batch,) = scene.ledger.batches.failed("orders")
    assert batch.batch_key in kept
    assert batch.error is not None
    assert batch.error.error_class.endswith("RejectionError")
    assert "More than 2 records" in batch.error.message
    assert scene.letters() == []
