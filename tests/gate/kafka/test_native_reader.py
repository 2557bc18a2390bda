"""The native engine's reader: when it is used, and what is raised if it fails.

Left out where `make native` has not built the engine; CI requires it. What it reads is tested with
both engines, by the fixture ``engine``.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NoReturn

import pytest
from confluent_kafka import Producer
from tests.gate.kafka.reads import offsets, reader_config, whole
from tests.services.kafka import Topic

from headrace.core.native import Engine
from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, SourceError
from headrace.gate.kafka import native_reader
from headrace.gate.kafka.consumers import close_idle_consumers, warm_consumer
from headrace.gate.kafka.native_reader import NativeConsumer, NativeRead, range_read
from headrace.gate.kafka.range_reader import RangeRead

pytestmark = pytest.mark.usefixtures("native_alone")

COUNT = 100


@pytest.fixture
def native_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tests.gate.kafka.reads.engine", Engine.NATIVE)
    close_idle_consumers()
    yield
    close_idle_consumers()


@pytest.fixture(scope="module")
def mock_topic() -> Iterator[Topic]:
    """Records in librdkafka's mock of a cluster, which lives as long as its producer."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=30).brokers.values()
    made = Topic("mocked", 1, f"{broker.host}:{broker.port}", producer)
    made.produce(*(b"%d" % number for number in range(COUNT)))
    yield made


def test_the_engine_that_is_chosen_reads() -> None:
    assert range_read(Engine.NATIVE) is NativeRead
    assert range_read(Engine.PYTHON) is RangeRead


def test_an_engine_without_a_function_of_librdkafka_is_not_used_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(_path: str) -> NoReturn:
        raise RuntimeError("undefined symbol: rd_kafka_new")

    monkeypatch.setattr(
        native_reader, "native_engine", lambda: SimpleNamespace(load_librdkafka=load)
    )
    native_reader._is_usable.cache_clear()
    with caplog.at_level(logging.WARNING, "headrace.kafka"):
        assert range_read(Engine.NATIVE) is RangeRead
        assert range_read(Engine.NATIVE) is RangeRead
    native_reader._is_usable.cache_clear()
    assert caplog.messages == [
        "Kafka is read by the Python engine: undefined symbol: rd_kafka_new."
    ]


def test_without_the_package_the_python_engine_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_reader, "native_engine", lambda: None)
    native_reader._is_usable.cache_clear()
    assert range_read(Engine.NATIVE) is RangeRead
    native_reader._is_usable.cache_clear()


@pytest.mark.integration
def test_a_library_without_the_functions_is_an_error() -> None:
    program = (
        "import headrace_native, sys\n"
        "try: headrace_native.load_librdkafka(headrace_native.headrace_native.__file__)\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "undefined symbol: rd_kafka" in done.stdout


def test_records_of_a_mocked_cluster_are_read_by_a_warm_consumer(mock_topic: Topic) -> None:
    config = reader_config(mock_topic.bootstrap_servers)
    with warm_consumer(config.client, config.read.maker(config)) as first:
        assert isinstance(first.kafka, NativeConsumer)
    assert offsets(config, whole(mock_topic, COUNT)) == list(range(COUNT))
    assert offsets(config, whole(mock_topic, 9, start=5)) == [5, 6, 7, 8]
    with warm_consumer(config.client, config.read.maker(config)) as again:
        assert type(again.kafka) is type(first.kafka)
    with warm_consumer(config.client) as python:
        assert not isinstance(python.kafka, NativeConsumer)


def test_offsets_past_the_end_of_a_mocked_log_are_a_loss(mock_topic: Topic) -> None:
    config = reader_config(mock_topic.bootstrap_servers, timeout_ms=200)
    with pytest.raises(DataLossError, match=r"mocked-0 \[100, 105\) are gone"):
        offsets(config, OffsetRange(mock_topic.name, 0, 99, 105))


def test_a_setting_that_the_client_refuses_is_named_without_its_value() -> None:
    secret = "-----BEGIN"  # noqa: S105
    config = reader_config("nowhere:1", ssl_key_pem=secret, security_protocol="SSL")
    with pytest.raises(SourceError, match="The native engine cannot read Kafka") as refused:
        offsets(config, OffsetRange("t", 0, 0, 5))
    assert secret not in str(refused.value)


def test_a_consumer_without_a_group_is_refused() -> None:
    """librdkafka gives it no queue, and would end the process at the first look into it."""
    with pytest.raises(SourceError, match=r"cannot read Kafka \(group.id is not set.\)"):
        NativeConsumer({"error_cb": print}, logging.getLogger("test"))


def test_a_column_that_kafka_does_not_have_is_a_source_error(mock_topic: Topic) -> None:
    config = reader_config(mock_topic.bootstrap_servers, columns=["velocity"])
    with pytest.raises(SourceError, match=r"There is no column velocity.*set the option"):
        offsets(config, whole(mock_topic, 5))


def test_a_closed_consumer_is_a_source_error(mock_topic: Topic) -> None:
    client = reader_config(mock_topic.bootstrap_servers).client
    consumer = NativeConsumer({**client, "error_cb": print}, logging.getLogger("test"))
    consumer.close()
    consumer.close()
    with pytest.raises(SourceError, match=r"cannot read Kafka \(The consumer is closed.\)"):
        consumer.call("take", 0)
