"""A gate has one query at a time, whoever mistakes that; held against what was sent."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, finish, read, wait_until_reported
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.errors import GateInUseError, OptionError
from headrace.gate.execution.batch import Batch, Handler
from headrace.gate.execution.gate import CHECKPOINTS, Gate
from headrace.gate.ledger.ledger import Ledger


class Received:
    """A handler that keeps which values came with which batch, for itself."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.claimed: list[tuple[str, int, int]] = []
        self.truly: list[tuple[str, int, int]] = []
        self.sequences: list[int] = []

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        rows = df.collect()
        self.sequences.append(batch.sequence)
        self.values += [bytes(row.value).decode() for row in rows]
        self.truly += [(row.topic, row.partition, row.offset) for row in rows]
        for each in batch.ranges:
            self.claimed += [(each.topic, each.partition, n) for n in range(each.start, each.until)]


def send(topic: Topic, name: str, count: int = 40) -> list[str]:
    """Produce so many records that name themselves; what was sent."""
    sent = [f"{name}-{number}" for number in range(count)]
    topic.produce(*[value.encode() for value in sent])
    return sent


def start(
    gate: Gate, df: DataFrame, handler: Handler, checkpoint: Path, name: str = "orders"
) -> StreamingQuery:
    writer = gate.write(df, handler).queryName(name)
    return writer.option("checkpointLocation", str(checkpoint)).start()


@pytest.fixture
def gate(ledger_url: str) -> Gate:
    return Gate("orders", interval="1 second", ledger=ledger_url)


def test_a_second_query_of_one_gate_does_not_start_and_then_goes_on_where_it_stood(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger_url: str, tmp_path: Path
) -> None:
    blue, green = topic(), topic()
    sent_blue, sent_green = send(blue, "blue"), send(green, "green")
    by_blue, by_green = Received(), Received()
    copy = Gate("orders", interval="1 second", ledger=ledger_url)  # a copied job
    query = start(gate, read(gate, spark, blue), by_blue, tmp_path / "blue")
    try:
        with pytest.raises(GateInUseError, match="'orders' is in use by the query 'orders'"):
            start(copy, read(copy, spark, green), by_green, tmp_path / "green")
        wait_until(lambda: len(by_blue.values) == len(sent_blue), DEADLINE_S)
    finally:
        query.stop()
    assert by_green.values == []
    query = start(copy, read(copy, spark, green), by_green, tmp_path / "green")
    try:
        wait_until(lambda: len(by_green.values) == len(sent_green), DEADLINE_S)
    finally:
        query.stop()
    for received, sent in ((by_blue, sent_blue), (by_green, sent_green)):
        assert received.values == sent
        assert received.claimed == received.truly
    assert max(by_blue.sequences) < min(by_green.sequences)


def test_a_checkpoint_stays_with_its_gate(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger_url: str, tmp_path: Path
) -> None:
    """Renamed, it ran the interrupted batch again under another key, and a sink had it twice."""
    orders, checkpoint, keys = topic(), tmp_path / "checkpoint", list[str]()
    sent = send(orders, "blue")
    received, by_renamed = Received(), Received()

    def stored_and_then_failed(df: DataFrame, batch: Batch) -> None:
        received(df, batch)
        keys.append(batch.key)
        if len(keys) == 1:
            raise RuntimeError("after the write")

    query = start(gate, read(gate, spark, orders), stored_and_then_failed, checkpoint)
    with pytest.raises(StreamingQueryException, match="after the write"):
        query.awaitTermination(DEADLINE_S)
    for _ in range(2):
        renamed = Gate("renamed", interval="1 second", ledger=ledger_url)
        df = read(renamed, spark, orders)
        with pytest.raises(OptionError, match="checkpoint belongs to the gate 'orders'"):
            start(renamed, df, by_renamed, checkpoint)
        if len(keys) == 1:  # and neither once its last batch is processed
            query = start(gate, read(gate, spark, orders), stored_and_then_failed, checkpoint)
            try:
                wait_until(lambda: len(keys) == 2, DEADLINE_S)
                query.processAllAvailable()
            finally:
                query.stop()
            send(orders, "green")
    assert by_renamed.values == []
    assert received.values == 2 * sent
    assert keys[0] == keys[1]


def test_a_second_query_by_options_alone_is_refused_by_its_planner(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger_url: str, tmp_path: Path
) -> None:
    blue, green, by_blue = topic(), topic(), Received()
    sent = send(blue, "blue")
    send(green, "green")
    query = start(gate, read(gate, spark, blue), by_blue, tmp_path / "blue")
    try:
        wait_until(lambda: len(by_blue.values) == len(sent), DEADLINE_S)
        options = {
            "kafka.bootstrap.servers": green.bootstrap_servers,
            "subscribe": green.name,
            "startingOffsets": "earliest",
            "headrace.gate": "orders",
            "headrace.ledger": ledger_url,
        }
        bare = spark.readStream.format("headrace-kafka").options(**options).load()
        writer = bare.writeStream.format("noop")
        second = writer.option("checkpointLocation", str(tmp_path / "green")).start()
        with pytest.raises(StreamingQueryException) as refused:
            second.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    assert "is in use by another query, of process" in str(refused.value)
    assert str(tmp_path / "blue") in str(refused.value)
    assert by_blue.claimed == by_blue.truly
    with Ledger.open(ledger_url) as ledger:
        read_ranges = [
            r for b in ledger.batches.newest() for r in ledger.batches.ranges(b.batch_key)
        ]
    assert {each.offsets.topic for each in read_ranges} == {blue.name}


def test_what_is_written_twice_at_once_is_refused_the_second_time(
    spark: SparkSession, topic: TopicFactory, gate: Gate, tmp_path: Path
) -> None:
    orders, first, second = topic(), Received(), Received()
    sent = send(orders, "orders")
    df = read(gate, spark, orders)
    query = start(gate, df, first, tmp_path / "first")
    try:
        with pytest.raises(GateInUseError, match="a gate has one query at a time"):
            start(gate, df, second, tmp_path / "second")
        wait_until(lambda: len(first.values) == len(sent), DEADLINE_S)
    finally:
        query.stop()
    assert (first.values, second.values) == (sent, [])


def test_one_gate_as_two_sources_of_a_query_is_refused_before_it_starts(
    spark: SparkSession, topic: TopicFactory, gate: Gate
) -> None:
    one, other = (read(gate, spark, topic()) for _ in range(2))
    for twice in (one.union(other), one.union(one), one.join(other, "key")):
        with pytest.raises(OptionError, match=r"reads 2 sources through the gate .*its own gate"):
            gate.write(twice, Received())


def test_a_gate_writes_only_what_it_has_read(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger_url: str, tmp_path: Path
) -> None:
    df = read(gate, spark, topic())
    payments = Gate("payments", interval="1 second", ledger=ledger_url)
    with pytest.raises(OptionError, match=r"gate 'payments' was read through .*'orders'"):
        payments.write(df.select("value"), Received())
    with pytest.raises(OptionError, match=r"was read with no Gate\.read"):
        gate.write(spark.readStream.format("rate").load(), Received())
    elsewhere = Gate("orders", interval="1 second", ledger=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(OptionError, match="was read with another ledger"):
        elsewhere.write(df, Received())


def test_many_options_do_not_hide_which_gate_was_read(
    spark: SparkSession, topic: TopicFactory, gate: Gate
) -> None:
    numbers = {f"kafka.{name}": "1048576" for name in ("receive.buffer.bytes", "send.buffer.bytes")}
    named = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions")
    options = numbers | dict.fromkeys(named, "5") | dict.fromkeys(["failOnDataLoss"], "true")
    before = spark.conf.get("spark.sql.debug.maxToStringFields")
    spark.conf.set("spark.sql.debug.maxToStringFields", "3")
    try:
        gate.write(read(gate, spark, topic(), **options), Received())
        assert spark.conf.get("spark.sql.debug.maxToStringFields") == "3"
    finally:
        spark.conf.set("spark.sql.debug.maxToStringFields", before or "25")


def test_gates_of_one_name_in_two_ledgers_learn_each_for_itself(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = [topic(), topic()]
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("staging", "production")]
    gates = [Gate("orders", interval="1 second", ledger=url) for url in urls]
    received = [Received(), Received()]
    sent = [send(each, f"topic{number}") for number, each in enumerate(topics)]
    started = [
        start(gate, read(gate, spark, each), handler, tmp_path / f"{number}", f"{number}")
        for number, (gate, each, handler) in enumerate(zip(gates, topics, received, strict=True))
    ]
    try:
        for handler, values in zip(received, sent, strict=True):
            wait_until(lambda: len(handler.values) == len(values), DEADLINE_S)  # noqa: B023
        for url in urls:
            with Ledger.open(url, create=False) as ledger:
                wait_until_reported(ledger, "orders")
                samples = ledger.rates.history("orders")
                keys = {batch.batch_key for batch in ledger.batches.newest("orders")}
                assert {sample.batch_key for sample in samples} <= keys
    finally:
        for query in started:
            query.stop()
    assert [handler.values for handler in received] == sent


def test_children_and_backfills_have_no_number_of_sparks_and_every_run_a_higher_one_of_its_own(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, tmp_path: Path
) -> None:
    orders, told = topic(), list[Batch]()
    orders.produce(*[b"%d" % n for n in range(40)])

    def handle(df: DataFrame, batch: Batch) -> None:
        told.append(batch)
        if b"5" in [bytes(row.value) for row in df.collect()]:
            raise ValueError("this cannot be kept")

    writer = gate.write(read(gate, spark, orders), handler=handle, on_failure="isolate")
    finish(
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )
    assert [batch.sequence for batch in told] == list(range(1, len(told) + 1))
    assert told[0].id == 0
    assert len(told) > 4
    assert {batch.id for batch in told[1:]} == {None}
    assert len(ledger.dead_letters.oldest("orders")) == 1


def test_a_query_without_a_checkpoint_is_refused_unless_its_session_has_a_folder_for_it(
    spark: SparkSession,
    topic: TopicFactory,
    gate: Gate,
    ledger_url: str,
    tmp_path: Path,
) -> None:
    orders, received, stood = topic(), Received(), list[str | None]()

    def handler(df: DataFrame, batch: Batch) -> None:
        received(df, batch)
        with Ledger.open(ledger_url) as ledger:
            stood.append(ledger.gates.last_queries()["orders"][0].checkpoint)

    sent = send(orders, "blue")
    writer = gate.write(read(gate, spark, orders), handler).trigger(availableNow=True)
    with pytest.raises(OptionError, match=r"has no checkpointLocation, .* temporary folder"):
        writer.start()
    spark.conf.set(CHECKPOINTS, f"{tmp_path}/")
    try:
        query = writer.start(queryName="named")
    finally:
        spark.conf.unset(CHECKPOINTS)
    finish(query)
    assert received.values == sent
    assert (tmp_path / "named" / "offsets").is_dir()
    assert set(stood) == {f"{tmp_path}/named"}


def test_what_is_no_stream_is_not_written(spark: SparkSession, gate: Gate) -> None:
    with pytest.raises(OptionError, match="given a batch DataFrame, but a gate writes a stream"):
        gate.write(spark.range(1), Received())
