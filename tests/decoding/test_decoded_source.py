"""Values that the source's tasks decode: rejected behind a gate, by mode without one."""

import json as json_text
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import finish, read
from tests.services.kafka import Topic, TopicFactory, Topics
from tests.services.ledgers import new_ledger
from tests.services.registry import RegistryServer, framed

import headrace
from headrace.decoding.decode_option import Mode, format_of, has_secret
from headrace.decoding.decode_task import link_tasks, open_link
from headrace.decoding.formats import Format, option_text
from headrace.errors import READ, DecodeError, HeadraceError, OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.policy import STOP, Last, OnFailure
from headrace.gate.kafka.kafka_source import KAFKA, KafkaSource
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.gate.source.decoded_values import DecodedValues
from headrace.gate.source.readers import SourceBatchReader
from headrace.journal import Journal, Records
from headrace.operate.cli.backfill_run import Job, ManualBackfill, ProgressLines
from headrace.operate.status.sources import SourceAccess

DDL = "id BIGINT NOT NULL, name STRING, at TIMESTAMP"
ORDERS = headrace.json(DDL)
BAD = b'{"id": "hunter2"}'
AVRO = json_text.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
)


def values(good: int, *bad_at: int) -> list[bytes]:
    found = [json_text.dumps({"id": n, "name": f"no {n}"}).encode() for n in range(good)]
    for place in bad_at:
        found.insert(place, BAD)
    return found


def bounded(spark: SparkSession, orders: Topic, schema: str | None = None, **options: Any) -> Any:
    headrace.register(spark)
    access = {"kafka.bootstrap.servers": orders.bootstrap_servers, "subscribe": orders.name}
    reader = spark.read.format("headrace-kafka").options(**(access | options))
    return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture(scope="module")
def orders(topics: Topics) -> Topic:
    """Four good records, a bad one as the third, and a tombstone."""
    found = topics.create()
    found.produce(*values(4, 2), None)
    return found


IDS = [0, 1, None, 2, 3, None]


def test_permissive_keeps_the_bytes_of_what_does_not_fit(
    spark: SparkSession, orders: Topic
) -> None:
    df = bounded(spark, orders, decode=ORDERS)
    assert df.columns[-1] == "_corrupt_record"
    rows = df.orderBy("offset").select("value.id", "_corrupt_record").collect()
    assert [row.id for row in rows] == IDS
    assert [row[1] for row in rows] == [None, None, bytearray(BAD), None, None, None]


def test_dropmalformed_leaves_it_out(spark: SparkSession, orders: Topic) -> None:
    df = bounded(spark, orders, decode=ORDERS, mode="dropMalformed")
    rows = df.orderBy("offset").select("offset", "value.id").collect()
    assert [(row.offset, row.id) for row in rows] == [(0, 0), (1, 1), (3, 2), (4, 3), (5, None)]
    assert "_corrupt_record" not in df.columns


def test_failfast_names_the_place_and_not_the_value(spark: SparkSession, orders: Topic) -> None:
    df = bounded(spark, orders, decode=ORDERS, mode="FAILFAST")
    with pytest.raises(Exception, match=f"{orders.name}-0 at offset 2 cannot be decoded") as raised:
        df.collect()
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        ("value STRUCT<name: STRING>", {"value": {"name": "no 0"}}),
        ("value STRUCT<name: STRING, id: BIGINT>", {"value": {"name": "no 0", "id": 0}}),
        ("offset BIGINT, _corrupt_record BINARY", {"offset": 0, "_corrupt_record": None}),
        ("offset BIGINT", {"offset": 0}),
    ],
)
def test_only_the_columns_that_are_asked_for_are_there(
    spark: SparkSession, orders: Topic, schema: str, row: dict[str, Any]
) -> None:
    first = json_text.dumps({orders.name: {"0": 1}})
    df = bounded(spark, orders, schema, decode=ORDERS, endingOffsets=first)
    assert [each.asDict(recursive=True) for each in df.collect()] == [row]


def test_what_lacks_a_field_that_is_not_asked_for_does_not_fit(
    spark: SparkSession, orders: Topic
) -> None:
    df = bounded(spark, orders, "value STRUCT<name: STRING>", decode=ORDERS, mode="DROPMALFORMED")
    assert df.count() == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decode": "json: id BIGINT"}, "option decode is not a format; pass headrace.json"),
        ({"decode": ORDERS, "mode": "lenient"}, "The option mode is 'lenient'; it must be one of"),
        ({"mode": "FAILFAST"}, "The option mode is 'FAILFAST', but values are not decoded"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(
    spark: SparkSession, orders: Topic, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        bounded(spark, orders, **options)


def test_a_stream_without_a_gate_names_the_column_that_is_not_there(
    spark: SparkSession, orders: Topic, tmp_path: Path
) -> None:
    headrace.register(spark)
    reader = spark.readStream.format("headrace-kafka").schema("nope INT")
    reader = reader.option("decode", str(ORDERS))
    reader = reader.option("kafka.bootstrap.servers", orders.bootstrap_servers)
    writer = reader.option("subscribe", orders.name).load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="The schema's column nope int is not one that"):
        finish(query)


@dataclass
class Scene:
    """A gate, whose source decodes."""

    spark: SparkSession
    gate: Gate
    ledger: Ledger
    folder: Path
    orders: Topic
    ids: list[int] = field(default_factory=list)

    def keep(self, df: DataFrame, _batch: Batch) -> None:
        self.ids += [row.id for row in df.select("value.id").collect()]

    def run(
        self,
        handler: Callable[[DataFrame, Batch], None] | None = None,
        on_failure: Last | OnFailure = "stop",
        derive: Callable[[DataFrame], DataFrame] = lambda df: df,
        **options: Any,
    ) -> None:
        df = derive(read(self.gate, self.spark, self.orders, **({"decode": ORDERS} | options)))
        writer = self.gate.write(df, handler or self.keep, on_failure=on_failure)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    def letters(self) -> list[tuple[int, bytes | None]]:
        found = self.ledger.dead_letters.oldest("orders", limit=100)
        return sorted((each.letter.offset, each.letter.value) for each in found)


@pytest.fixture
def scene(spark: SparkSession, topic: TopicFactory, tmp_path: Path) -> Iterator[Scene]:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with new_ledger(url) as ledger:
        gate = Gate("orders", interval="1 second", ledger=url)
        yield Scene(spark, gate, ledger, tmp_path, topic())


def test_behind_a_gate_what_does_not_fit_is_rejected(scene: Scene) -> None:
    scene.orders.produce(*values(20, 3, 17))
    scene.run()
    assert sorted(scene.ids) == list(range(20))
    assert scene.letters() == [(3, BAD), (17, BAD)]
    assert scene.ledger.proofs.verify("orders").verdict is Verdict.PROVEN


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("derive", "options"),
    [
        (lambda df: df, {}),
        (lambda df: df, {"schema": "value STRUCT<id: BIGINT>"}),
        (lambda df: df.where("value.id >= 0").withColumn("shop", df.partition), {}),
    ],
    ids=["read again", "with chosen columns", "derived"],
)
def test_in_an_isolation_it_is_rejected_and_what_cannot_be_processed_stands_alone(
    scene: Scene, derive: Callable[[DataFrame], DataFrame], options: dict[str, Any]
) -> None:
    scene.orders.produce(*values(200, 3))
    columns: set[tuple[str, ...]] = set()

    def handler(df: DataFrame, batch: Batch) -> None:
        columns.add((*df.columns, *df.schema["value"].dataType.simpleString()))
        ids = [row.id for row in df.select("value.id").collect()]
        if 111 in ids:
            raise ValueError("no 111 is wanted")
        scene.ids += ids

    scene.run(handler, headrace.isolate(), derive, **options)
    assert sorted(scene.ids) == [n for n in range(200) if n != 111]
    assert scene.letters() == [(3, BAD), (112, values(112)[111])]
    assert len(columns) == 1
    assert scene.ledger.proofs.verify("orders").verdict is Verdict.PROVEN


def test_a_schema_with_a_typo_ends_the_query_and_the_corrected_one_loses_nothing(
    scene: Scene,
) -> None:
    scene.orders.produce(*values(6))
    typo = headrace.json("nosuch BIGINT NOT NULL")

    def handler(df: DataFrame, _batch: Batch) -> None:
        df.collect()

    with pytest.raises(Exception, match=r"6 of 6 in batch .* required field `nosuch`") as raised:
        scene.run(handler, decode=typo)
    assert "no 0" not in str(raised.value)
    assert scene.letters() == []
    scene.run()
    assert sorted(scene.ids) == list(range(6))


def test_a_stream_that_no_gate_writes_fails_and_loses_nothing(scene: Scene) -> None:
    scene.orders.produce(*values(4, 2))
    df = read(scene.gate, scene.spark, scene.orders, decode=ORDERS)
    writer = df.writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(Exception, match="no handler of a gate runs"):
        finish(writer.option("checkpointLocation", str(scene.folder / "checkpoint")).start())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "FAILFAST"}, "a gate rejects what does not fit; leave it out"),
        ({"schema": "value STRUCT<price: DOUBLE>"}, "The schema's column value struct<price:doubl"),
        ({"schema": "value BINARY"}, "The schema's column value binary is not one that"),
        ({"schema": "price DOUBLE"}, "The schema's column price double is not one that"),
        ({"schema": "offset BIGINT, offset BIGINT"}, "has the column offset twice; name it once"),
        ({"schema": "offset BIGINT NOT NULL"}, "The schema's column offset is NOT NULL"),
        ({"schema": "value STRUCT<id: BIGINT NOT NULL>"}, "schema's field value.id is NOT NULL"),
    ],
)
def test_a_gate_refuses_a_wrong_choice_before_the_query_starts(
    scene: Scene, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        read(scene.gate, scene.spark, scene.orders, **({"decode": ORDERS} | options))


def test_a_format_that_is_given_twice_is_refused(scene: Scene) -> None:
    reader = scene.gate.read(scene.spark, "kafka", decode=ORDERS)
    with pytest.raises(OptionError, match="The option Decode is set, and Gate"):
        reader.option("Decode", str(headrace.json("z INT")))


def test_a_backfill_by_command_decodes_with_the_same_option(scene: Scene) -> None:
    scene.orders.produce(*values(10, 3))

    def fail(df: DataFrame, _batch: Batch) -> None:
        df.count()
        raise ValueError("not today")

    df = read(scene.gate, scene.spark, scene.orders, decode=ORDERS)
    writer = scene.gate.write(df, fail, on_failure="defer", backfill="manual")
    writer = writer.option("checkpointLocation", str(scene.folder / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())
    batches = list(scene.ledger.batches.newest("orders", limit=10))
    given = {"kafka.bootstrap.servers": scene.orders.bootstrap_servers, "decode": str(ORDERS)}
    way = SourceAccess(KAFKA, KAFKA.located(given, None))
    job = Job(scene.keep, {each.batch_key: way for each in batches}, STOP, True, 10)
    ManualBackfill(scene.ledger, scene.spark, job, ProgressLines(), batches).run()
    assert (sorted(scene.ids), scene.letters()) == (list(range(10)), [(3, BAD)])


def test_a_journal_s_values_are_decoded_too(scene: Scene) -> None:
    folder = scene.folder / "journal"
    with Journal.open(str(folder), create=True).writer(lane=0) as lane:
        lane.append(Records.of(values(10, 4), timestamp_ms=0))
    df = scene.gate.read(scene.spark, "journal", decode=ORDERS).load(str(folder))
    writer = scene.gate.write(df, scene.keep)
    writer = writer.option("checkpointLocation", str(scene.folder / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())
    assert (sorted(scene.ids), scene.letters()) == (list(range(10)), [(4, BAD)])


def test_a_registry_s_secret_is_in_no_plan(scene: Scene, registry: RegistryServer) -> None:
    secret = secrets.token_hex(8)
    registry.require("reader", secret)
    found = headrace.SchemaRegistry(registry.url, user="reader", password=secret)
    number = registry.register("orders-value", AVRO)
    scene.orders.produce(framed(number, b"\x02"), framed(number, b"\x04"), b"no record")
    form = headrace.avro(AVRO, registry=found)
    with pytest.raises(OptionError, match="has a secret, which Spark would show"):
        str(form)
    plans: list[str] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        plans.append(df._jdf.queryExecution().toString())
        scene.keep(df, batch)

    reader = scene.gate.read(scene.spark, "kafka", decode=form)
    options = {
        "kafka.bootstrap.servers": scene.orders.bootstrap_servers,
        "subscribe": scene.orders.name,
        "startingOffsets": "earliest",
    }
    writer = scene.gate.write(reader.options(**options).load(), handler)
    writer = writer.option("checkpointLocation", str(scene.folder / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())
    assert (sorted(scene.ids), scene.letters()) == ([1, 2], [(2, b"no record")])
    assert secret not in "".join(plans)


@pytest.mark.parametrize(
    "form",
    [
        ORDERS,
        headrace.avro(AVRO),
        headrace.avro(AVRO, registry=headrace.SchemaRegistry("http://a")),
    ],
)
def test_the_text_of_a_format_makes_it_again(spark: SparkSession, form: Format) -> None:
    text = option_text(form, spark)
    again = format_of(text)
    assert again.columns(None) == form.columns(spark)
    assert option_text(again) == text
    assert not has_secret(text)


def test_a_schema_that_no_session_has_parsed_has_no_text() -> None:
    with pytest.raises(
        OptionError, match="needs a Spark session to parse it, and no session is active"
    ):
        ORDERS.option(None)


def test_what_tasks_show_to_the_handler_is_in_no_property(spark: SparkSession) -> None:
    """Spark writes a job's properties to its event log, whatever their names are."""
    property_ = "spark.headrace.reports"
    link_tasks(spark)
    try:
        address = open_link(spark)
        assert json_text.loads(spark.conf.get(property_) or "") == [address.host, address.port]
    finally:
        spark.conf.unset(property_)
    assert address.token not in repr(address)


def test_a_value_that_fails_a_task_is_no_source_that_cannot_be_read(spark: SparkSession) -> None:
    """With that note a batch is never isolated: it waits for the source, or the query stops."""
    place = {"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [7]}
    raw = pa.RecordBatch.from_pydict({"value": pa.array([BAD]), **place})
    reading: Any = SimpleNamespace(read=lambda _task: iter([raw]))
    values = DecodedValues(ORDERS, ORDERS.columns(spark), Mode.FAILFAST)
    task = values.task(values.schema(KafkaSource({}).schema()), None)
    whole: Any = SimpleNamespace()
    with pytest.raises(DecodeError, match="t-0 at offset 7 cannot be decoded") as raised:
        list(SourceBatchReader(reading, task).read(whole))
    assert READ not in getattr(raised.value, "__notes__", ())


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"json": 1}', '{"avro": {}}', '{"xml": {}}'])
def test_other_text_is_no_format(text: str) -> None:
    with pytest.raises(HeadraceError):
        format_of(text).columns(None)
