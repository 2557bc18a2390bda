"""A gate's construction, and what its reader and writer refuse before a query starts."""

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from tests.services.kafka import Topic, TopicFactory

import headrace
from headrace.errors import BrokerError, HeadraceError, LedgerError, OptionError, SourceError
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.stream_writer import GatedStreamWriter
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local.servers import free_ports

PASSWORD = "hunter2"  # noqa: S105  (nobody's)


@pytest.fixture
def orders(topic: TopicFactory) -> Topic:
    return topic()


@pytest.fixture
def reader(spark: SparkSession, orders: Topic, ledger_url: str) -> DataStreamReader:
    """A reader that would load."""
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    return options_of(orders, gate.read(spark, "kafka"))


def options_of(topic: Topic, reader: DataStreamReader) -> DataStreamReader:
    return reader.option("kafka.bootstrap.servers", topic.bootstrap_servers).option(
        "subscribe", topic.name
    )


def ignore(_df: DataFrame, _batch: headrace.Batch) -> None:
    """A handler."""


def rows(spark: SparkSession) -> DataFrame:
    """Any stream, without a broker."""
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize("name", ["orders", "Orders_2.eu-west", "ä", "x" * 200])
def test_a_name_has_letters_digits_underscores_dots_and_hyphens(name: str, ledger_url: str) -> None:
    assert Gate(name, interval="1 second", ledger=ledger_url).name == name


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "orders\n", "x" * 201, "@orders"])
def test_any_other_name_is_refused(name: str, ledger_url: str) -> None:
    with pytest.raises(OptionError, match=r"The gate's name is .*letters, digits"):
        Gate(name, interval="1 second", ledger=ledger_url)


@pytest.mark.parametrize(
    ("interval", "expected_ms"),
    [
        ("1 second", 1_000),
        ("500 ms", 500),
        ("2s", 2_000),
        ("1 minute 30 seconds", 90_000),
        (timedelta(seconds=2.5), 2_500),
        (timedelta(minutes=1), 60_000),
    ],
)
def test_an_interval_is_written_as_spark_does_or_is_a_timedelta(
    interval: str | timedelta, expected_ms: int, ledger_url: str
) -> None:
    assert Gate("orders", interval=interval, ledger=ledger_url).interval_ms == expected_ms


@pytest.mark.parametrize(
    "interval",
    [
        *("", "soon", "1 fortnight", "-1 second", "1.5 seconds", "0", "0 seconds"),
        *(1, 1.5, True, None, b"1 second", ["1 second"]),
        *(timedelta.max, "9" * 5_000, "366 d"),
        *("1", " 500 "),  # seconds to one who reads it, milliseconds to Spark
        *(timedelta(0), timedelta(seconds=-1), timedelta.resolution),
    ],
)
def test_any_other_interval_is_refused_from_a_millisecond_to_a_year(
    interval: Any, ledger_url: str
) -> None:
    with pytest.raises(OptionError, match=r"^The gate's interval is .*(must be|above 0)"):
        Gate("orders", interval=interval, ledger=ledger_url)


@pytest.mark.parametrize(
    ("arguments", "expected_ms"),
    [
        ({"interval": "auto"}, 1_000),
        ({"interval": " AUTO ", "max_delay": "500 ms"}, 250),
        ({"interval": "auto", "max_delay": timedelta(minutes=1), "work_ratio": 0.5}, 1_000),
    ],
)
def test_an_auto_interval_begins_with_a_second_or_half_of_its_longest_delay(
    arguments: dict[str, Any], expected_ms: int, ledger_url: str
) -> None:
    assert Gate("orders", ledger=ledger_url, **arguments).interval_ms == expected_ms


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"interval": "1 second", "max_delay": "5 seconds"},
            "has an effect only if headrace.interval is auto",
        ),
        (
            {"interval": "1 second", "work_ratio": 0.5},
            "has an effect only if headrace.interval is auto",
        ),
        ({"interval": "auto", "max_delay": "150 ms"}, "headrace.maxDelay is 150"),
        ({"interval": "auto", "max_delay": 5}, "The gate's max_delay is 5; it must be a duration"),
        ({"interval": "auto", "work_ratio": 1.5}, "headrace.workRatio is 1.5"),
        (
            {"interval": "auto", "work_ratio": "most"},
            "headrace.workRatio is 'most'; it must be a number",
        ),
    ],
)
def test_what_an_auto_interval_cannot_hold_is_refused(
    arguments: dict[str, Any], message: str, ledger_url: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Gate("orders", ledger=ledger_url, **arguments)


@given(
    st.text(max_size=5)
    | st.from_regex(r"[\w.\-]{0,201}", fullmatch=True)
    | st.none()
    | st.integers()
)
def test_the_option_takes_the_names_that_a_gate_takes(name: Any) -> None:
    url = "sqlite:////tmp/headrace.db"
    options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    options |= {"headrace.ledger": url, "headrace.gate": name}
    refused = []
    for make in (
        lambda: Gate(name, interval="1 second", ledger=url),
        lambda: parse_options(options, streaming=True),
    ):
        try:
            make()
        except OptionError as error:
            refused.append(str(error).partition(" is ")[2])
    assert len(set(refused)) <= 1
    assert len(refused) in {0, 2}


@pytest.mark.parametrize(
    "url",
    [
        "headrace.db",
        f"mysql://app:{PASSWORD}@host/db",
        f"postgresql://app:{PASSWORD}@x@host/db",
        "sqlite://",
    ],
)
def test_what_is_no_ledgers_url_is_refused_and_its_password_not_shown(url: str) -> None:
    with pytest.raises(LedgerError) as raised:
        Gate("orders", interval="1 second", ledger=url)
    assert PASSWORD not in str(raised.value)


def test_a_gate_shows_its_name_and_interval_and_nothing_of_its_ledger() -> None:
    gate = Gate("orders", interval="1 second", ledger=f"postgresql://app:{PASSWORD}@host/db")
    assert repr(gate) == "Gate('orders', interval='1 second')"
    gate = Gate("orders", interval=timedelta(seconds=1), ledger="sqlite:///headrace.db")
    assert repr(gate) == "Gate('orders', interval=datetime.timedelta(seconds=1))"


def test_a_relative_ledger_stays_where_it_was_when_the_gate_was_made(
    spark: SparkSession, orders: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    monkeypatch.chdir(before)
    gate = Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    monkeypatch.chdir(after)
    options_of(orders, gate.read(spark, "kafka")).load()
    assert (before / "headrace.db").exists()
    assert list(after.iterdir()) == []


def test_a_gate_reads_from_the_sources_there_are(spark: SparkSession, ledger_url: str) -> None:
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    with pytest.raises(OptionError, match="'kinesis'; a gate reads from journal, kafka"):
        gate.read(spark, "kinesis")


def test_a_failure_policy_is_one_of_those_there_are(spark: SparkSession, ledger_url: str) -> None:
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    with pytest.raises(OptionError, match="on_failure is 'pray'; it must be one of 'stop'"):
        gate.write(rows(spark), ignore, on_failure="pray")  # type: ignore[arg-type]


def test_a_stream_loads_with_the_native_sources_columns(reader: DataStreamReader) -> None:
    assert reader.load().columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("subscribe_to", "orders", "There is no option subscribe_to"),
        ("startingOffsets", "yesterday", "startingOffsets is 'yesterday'"),
        ("endingOffsets", "latest", "endingOffsets is for a bounded read"),
        ("maxOffsetsPerTrigger", 0, "maxOffsetsPerTrigger is '0'"),
        ("includeHeaders", "perhaps", "includeHeaders is 'perhaps'"),
        ("backpressure.pid.minRate", 0, "backpressure.pid.minRate is '0'"),
        ("subscribePattern", "orders.*", "subscribePattern"),
        ("kafka.enable.auto.commit", True, "kafka.enable.auto.commit"),
    ],
)
def test_an_option_that_is_wrong_or_contradicts_another_is_reported_when_the_stream_loads(
    reader: DataStreamReader, option: str, value: str | int | bool, told: str
) -> None:
    with pytest.raises(OptionError) as raised:
        reader.option(option, value).load()
    assert told in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_options_given_to_load_itself_are_checked_too(reader: DataStreamReader) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        reader.load(startingOffsets="yesterday")


def test_of_an_option_set_twice_in_different_cases_the_last_counts(
    reader: DataStreamReader,
) -> None:
    reader.option("includeHeaders", "perhaps").option("INCLUDEHEADERS", "perhaps")
    assert "headers" in reader.option("includeheaders", True).load().columns


def test_an_option_set_to_none_is_not_set(reader: DataStreamReader) -> None:
    assert reader.option("maxOffsetsPerTrigger", None).load().isStreaming


@pytest.mark.parametrize("option", ["headrace.gate", "headrace.ledger", "Headrace.Interval"])
def test_what_the_gate_sets_cannot_be_set_against_it(reader: DataStreamReader, option: str) -> None:
    with pytest.raises(OptionError, match=f"{option} is set by the gate"):
        reader.options(**{option: "1 second"})


def test_another_format_is_refused_for_it_would_not_heed_the_gate(reader: DataStreamReader) -> None:
    for load in (lambda: reader.format("kafka"), lambda: reader.load(format="kafka")):
        with pytest.raises(OptionError, match="format is 'kafka', but the gate 'orders'"):
            load()
    assert reader.format("headrace-kafka") is reader


def test_a_broker_that_is_not_there_is_reported_when_the_stream_loads(
    reader: DataStreamReader,
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(BrokerError, match=address):
        reader.option("kafka.bootstrap.servers", address).load()


def test_a_topic_that_is_not_there_is_reported_when_the_stream_loads(
    reader: DataStreamReader,
) -> None:
    with pytest.raises(SourceError, match="no-such-topic"):
        reader.option("subscribe", "no-such-topic").load()


def test_a_ledger_that_cannot_be_made_is_reported_when_the_stream_loads_or_is_written(
    spark: SparkSession, orders: Topic, tmp_path: Path
) -> None:
    missing = tmp_path / "no-such-folder"
    gate = Gate("orders", interval="1 second", ledger=f"sqlite:///{missing}/headrace.db")
    for use in (
        lambda: options_of(orders, gate.read(spark, "kafka")).load(),
        lambda: gate.write(rows(spark), ignore),
    ):
        with pytest.raises(LedgerError, match="no-such-folder"):
            use()
    assert not missing.exists()


def test_no_secret_is_seen_whatever_is_wrong(
    spark: SparkSession, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="app" password="{PASSWORD}";'
    )
    secrets = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": jaas,
    }
    port = free_ports(1)[0]
    # An option that there is not is raised at once; a server that is away would be waited for.
    url = f"postgresql://app:{PASSWORD}@127.0.0.1/db?sslpassword={PASSWORD}&sslmoed=require"
    gate = Gate("orders", interval="1 second", ledger=url)

    def reader() -> DataStreamReader:
        return options_of(orders, gate.read(spark, "kafka"))

    wrong: list[Callable[[], object]] = [
        lambda: reader().load(),
        lambda: gate.write(rows(spark), ignore),
        lambda: reader().options(**secrets).option("startingOffsets", "soon").load(),
        lambda: reader().options(**secrets).option("kafka.sasl.mechanism", "MAGIC").load(),
        lambda: reader().options(**secrets).option("kafka.sasl.jaas.config", PASSWORD).load(),
        lambda: (
            reader()
            .options(**secrets)
            .option("kafka.bootstrap.servers", f"127.0.0.1:{port}")
            .load()
        ),
    ]
    for action in wrong:
        with pytest.raises(HeadraceError) as raised:
            action()
        assert PASSWORD not in "".join(format_exception(raised.value))
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(gate) + repr(reader())


def test_a_writer_is_one_of_sparks_with_the_gates_name_and_interval(
    spark: SparkSession, orders: Topic, ledger_url: str, tmp_path: Path
) -> None:
    gate = Gate("orders", interval="1 hour", ledger=ledger_url)
    writer = gate.write(options_of(orders, gate.read(spark, "kafka")).load(), ignore)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.name == "orders"
    query.stop()
    with Ledger.open(ledger_url) as ledger:
        assert ledger.batches.newest("orders") == ()


@pytest.mark.parametrize("name", ["password-resets", "token.refresh", "secrets_2"])
def test_a_gate_may_have_a_name_that_spark_takes_for_a_secret(
    spark: SparkSession, orders: Topic, ledger_url: str, name: str
) -> None:
    gate = Gate(name, interval="1 hour", ledger=ledger_url)
    gate.write(options_of(orders, gate.read(spark, "kafka")).load(), ignore)


@pytest.mark.parametrize(
    ("interval_ms", "trigger", "is_noticed"),
    [
        (1_000, {"processingTime": "10 seconds"}, True),
        (1_000, {"processingTime": "1000 milliseconds"}, False),
        (1_000, {"processingTime": "an hour of Spark's own"}, False),
        (1_000, {"availableNow": True}, False),
        (None, {"processingTime": "10 seconds"}, False),
    ],
)
def test_a_trigger_that_is_longer_than_the_interval_is_said_at_the_start(
    interval_ms: int | None,
    trigger: dict[str, Any],
    is_noticed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = GatedStreamWriter(MagicMock(), lambda _where, _name: "", lambda *_: None)
    writer.interval_ms = interval_ms
    with caplog.at_level(logging.WARNING, "headrace.execution"):
        writer.trigger(**trigger).queryName("orders").start()
    assert caplog.messages == (
        [
            "Query 'orders': The trigger starts a batch every 10 s, and the gate's interval is 1 s,"
            " so a batch has at most the records of 1 s and the query pauses after it; give the"
            " gate an interval of 10 s, or leave the trigger out."
        ]
        if is_noticed
        else []
    )
