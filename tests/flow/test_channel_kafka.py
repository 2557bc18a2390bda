"""Stages linked by topics: what one writes, the next one has once."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import finish
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError, LedgerError, OptionError, SourceError
from headrace.flow.kafka_channel import KafkaChannel, kafka
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.kafka.attempts import HEADER
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, part_key

Read = Callable[[], list[str]]


def frame(spark: SparkSession, values: Sequence[str], tasks: int = 2) -> DataFrame:
    rows = [(value,) for value in values]
    return spark.createDataFrame(rows, "value string").repartition(tasks)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def to(topic: TopicFactory) -> Topic:
    return topic(2)


@pytest.fixture
def channel(to: Topic) -> KafkaChannel:
    return kafka(to.name, to.bootstrap_servers)


@pytest.fixture
def read(spark: SparkSession, channel: KafkaChannel, url: str, tmp_path: Path) -> Read:
    """Return a function: a stage reads the channel to its end; its values up to now, sorted."""
    found: list[str] = []
    gate = Gate("sink", interval="1 second", ledger=url)

    def handler(df: DataFrame, _batch: Batch) -> None:
        found.extend(row.value.decode() for row in df.collect())

    def read() -> list[str]:
        with Ledger.open(url) as books:
            options = {"startingOffsets": "earliest"} | channel.read_options(books.url)
        df = gate.read(spark, "kafka").options(**options).load()
        writer = gate.write(df, handler).option("checkpointLocation", str(tmp_path / "sink"))
        finish(writer.trigger(availableNow=True).start())
        return sorted(found)

    return read


def planned(ledger: Ledger, number: int) -> str:
    """A batch of a stage that runs now."""
    ledger.gates.declare("stage", interval_ms=1_000, source="kafka", estimator="pid")
    offsets = OffsetRange("raw", 0, number * 10, number * 10 + 10)
    batch = PlannedBatch("stage", "run", (PlannedRange(offsets),), "rate", "localhost:9092")
    return ledger.batches.begin(batch).batch_key


def test_what_crashed_or_failed_is_left_out(
    spark: SparkSession, channel: KafkaChannel, to: Topic, read: Read, url: str
) -> None:
    with Ledger.open(url) as books:
        first, second = planned(books, 0), planned(books, 1)
        channel.write(frame(spark, ["a", "b"]), first, books)
        to.produce(b"of another")
        # An attempt that crashed when half of its records were there.
        topic_id = _topic_id(channel)
        books.outputs.begin(topic_id, second, "crashed", {0: 0, 1: 0})
        to.produce(b"half", partition=1, headers=[(HEADER, f"{second}/crashed".encode())])
        assert read() == []  # not before it is decided what that is
        channel.write(frame(spark, ["c", "d"]), second, books)
        channel.write(frame(spark, ["again"]), second, books)
        to.produce(b"late", headers=[(HEADER, f"{second}/crashed".encode())])
        failing = spark.range(4).selectExpr(
            "if(id < 3, string(id), raise_error('it is not true')) as value"
        )
        with pytest.raises(PySparkException, match="it is not true"):
            channel.write(failing, planned(books, 2), books)
        assert read() == ["a", "b", "c", "d", "of another"]


def test_a_part_of_a_batch_that_is_there_is_there(
    spark: SparkSession, channel: KafkaChannel, read: Read, url: str
) -> None:
    with Ledger.open(url) as books:
        batch = planned(books, 0)
        channel.write(frame(spark, ["a", "b"]), batch, books)
        channel.write(frame(spark, ["a"]), part_key(batch, "0"), books)
        assert read() == ["a", "b"]


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
def test_other_columns_are_refused_before_anything_is_asked_for(
    spark: SparkSession, url: str, select: str, what: str
) -> None:
    with (
        Ledger.open(url) as books,
        pytest.raises(OptionError, match="does not have a channel's columns") as error,
    ):
        kafka("orders", "nowhere:9092").write(spark.sql(f"select {select}"), "k", books)
    assert what in str(error.value)


def test_why_a_broker_refuses_is_told_and_nothing_is_tried_again(
    spark: SparkSession, topic: TopicFactory, url: str
) -> None:
    small = topic(1, {"max.message.bytes": "200"})
    channel = kafka(small.name, small.bootstrap_servers)
    with Ledger.open(url) as books:
        batch = planned(books, 0)
        with pytest.raises(BrokerError, match=r"did not take .* too large"):
            channel.write(frame(spark, [secrets.token_hex(1_000)]), batch, books)
        ((key, _, _),) = books.outputs.aborted(_topic_id(channel))
        assert key == batch


def test_a_bounded_read_ends_where_it_is_not_known_yet_what_is_to_be_read(
    spark: SparkSession, channel: KafkaChannel, to: Topic, url: str
) -> None:
    def read(**options: str) -> list[str]:
        reader = spark.read.format("headrace-kafka").options(
            **channel.read_options(books.url), **options
        )
        return sorted(row.value.decode() for row in reader.load().collect())

    with Ledger.open(url) as books:
        to.produce(b"before", partition=0)
        running = planned(books, 0)
        topic_id = _topic_id(channel)
        assert books.outputs.begin(topic_id, running, "runs", {0: 1, 1: 0})
        to.produce(b"running", partition=0, headers=[(HEADER, f"{running}/runs".encode())])
        assert read() == ["before"]
        assert read(endingOffsets=f'{{"{to.name}": {{"0": -1, "1": -1}}}}') == ["before"]
        named = f'{{"{to.name}": {{"0": 2, "1": 0}}}}'
        assert read(endingOffsets=named) == ["before", "running"]
        after = f'{{"{to.name}": {{"0": 2, "1": 0}}}}'
        assert read(startingOffsets=after) == []
        assert books.outputs.finish(topic_id, running, "runs")
        assert read() == ["before", "running"]


def test_nobody_reads_past_where_a_stage_is_writing(
    spark: SparkSession, channel: KafkaChannel, to: Topic, read: Read, url: str
) -> None:
    with Ledger.open(url) as books:
        to.produce(b"before")
        running = planned(books, 0)
        topic_id = _topic_id(channel)
        assert books.outputs.begin(topic_id, running, "runs", {0: 1, 1: 0})
        to.produce(b"running", headers=[(HEADER, f"{running}/runs".encode())])
        to.produce(b"after")
        assert read() == ["before"]
        waiting = channel.queue("sink", books).measure()
        assert (waiting.waiting_bytes, waiting.left_bytes) == (0, 0)
        assert books.outputs.finish(topic_id, running, "runs")
        assert read() == ["after", "before", "running"]


def test_a_batch_that_was_taken_over_is_told(
    spark: SparkSession,
    channel: KafkaChannel,
    read: Read,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ledger.open(url) as books:
        batch = planned(books, 0)
        begin = books.outputs.begin

        def begun_twice(topic_id: str, key: str, attempt: str, starts: dict[int, int]) -> bool:
            answer = begin(topic_id, key, attempt, starts)
            assert begin(topic_id, key, "other", starts)
            return answer

        monkeypatch.setattr(books.outputs, "begin", begun_twice)
        with pytest.raises(LedgerError, match="was taken over by another process"):
            channel.write(frame(spark, ["a"]), batch, books)
        books.outputs.abort(_topic_id(channel), "other")
        assert read() == []


def test_keys_and_headers_arrive_as_they_are(spark: SparkSession, to: Topic, url: str) -> None:
    channel = kafka(to.name, to.bootstrap_servers, includeHeaders=True)
    made = spark.createDataFrame(
        [("k", b"v", [("h", b"x"), (HEADER, b"upstream")]), (None, None, None)],
        "key string, value binary, headers array<struct<key:string,value:binary>>",
    )
    with Ledger.open(url) as books:
        channel.write(made, planned(books, 0), books)
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", to.bootstrap_servers)
    rows = read.option("subscribe", to.name).option("includeHeaders", True).load().collect()
    found = {row.key and bytes(row.key): row for row in rows}
    assert bytes(found[b"k"].value) == b"v"
    assert found[None].value is None
    names = [header.key for header in found[b"k"].headers]
    assert names == [HEADER, "h"]


def test_a_topic_that_is_not_there_is_told(spark: SparkSession, to: Topic, url: str) -> None:
    channel = kafka("nowhere", to.bootstrap_servers)
    with (
        Ledger.open(url) as books,
        pytest.raises(SourceError, match="the topic does not exist; create it"),
    ):
        channel.write(frame(spark, ["a"]), "k", books)


def test_a_channel_is_a_value_that_shows_no_secret() -> None:
    secret = {"kafka.ssl.key.password": "hunter2", "kafka.security.protocol": "PLAINTEXT"}
    channel = kafka("orders", "localhost:9092", **secret)
    assert "hunter2" not in repr(channel)
    assert channel == kafka("orders", "localhost:9092", **secret)
    assert channel.location == "the topic orders at localhost:9092"
    with pytest.raises(OptionError, match="is not an address"):
        kafka("orders", "nonsense")


def test_the_queue_is_lag_times_size(
    channel: KafkaChannel, to: Topic, read: Read, url: str
) -> None:
    with Ledger.open(url) as books:
        books.gates.declare("sink", interval_ms=1_000, source="kafka", estimator="pid")
        queue = channel.queue("sink", books)
        look = queue.measure()
        assert (look.waiting_bytes, look.left_bytes, look.arrived_bytes) == (0, 0, 0)
        to.produce(*[b"x" * 100] * 10)
        look = queue.measure()
        assert (look.waiting_bytes, look.left_bytes, look.arrived_bytes) == (1000, 1000, 1000)
        read()
        to.produce(*[b"x" * 100] * 3)
        look = queue.measure()
        assert (look.waiting_bytes, look.left_bytes, look.arrived_bytes) == (300, 0, 1300)
        queue.close()


def test_stages_that_crash_hand_on_each_record_once(
    spark: SparkSession,
    topic: TopicFactory,
    channel: KafkaChannel,
    read: Read,
    url: str,
    *,
    tmp_path: Path,
) -> None:
    """The first stage's handler fails after it has written, and its batch is run again."""
    raw = topic(1)
    raw.produce(*(b"%d" % number for number in range(50)))
    runs: list[str] = []
    with Ledger.open(url) as books:
        first = Gate("first", interval="1 second", ledger=url)

        def write(df: DataFrame, batch: Batch) -> None:
            runs.append(batch.key)
            channel.write(
                df.selectExpr(f"concat('{len(runs)} ', string(value)) as value"), batch.key, books
            )
            if len(runs) == 1:
                raise ValueError("after it was written")

        def start() -> None:
            options = kafka(raw.name, raw.bootstrap_servers).read_options(books.url)
            df = first.read(spark, "kafka").options(startingOffsets="earliest", **options).load()
            writer = first.write(df, write).option("checkpointLocation", str(tmp_path / "first"))
            finish(writer.trigger(availableNow=True).start())

        with pytest.raises(Exception, match="after it was written"):
            start()
        start()
        assert len(runs) == 2 and len(set(runs)) == 1
        assert read() == sorted(f"1 {number}" for number in range(50))
        queue = channel.queue("sink", books)
        wait_until(lambda: queue.measure().waiting_bytes == 0)
        queue.close()


def _topic_id(channel: KafkaChannel) -> str:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": channel.servers, "log_level": 0})
    described = admin.describe_topics(TopicCollection([channel.topic]))
    return str(described[channel.topic].result(10).topic_id)
