"""What a user of the bare format is told, and what is found before a query starts."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.services.kafka import TopicFactory
from tests.services.queries import available_now, sentence, stream_of

from headrace.errors import BrokerError, OptionError, SourceError
from headrace.kafka.kafka_connector import KAFKA
from headrace.local.server import free_ports


def test_with_the_bare_format_spark_shows_the_sentence(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic()
    for options, told in (
        (
            {"maxOffsetPerTrigger": 3},
            "OptionError: There is no option maxoffsetpertrigger for headrace-kafka; did you mean"
            " maxOffsetsPerTrigger?",
        ),
        (
            {"subscribe": "no-such-topic", "fetchOffset.numRetries": 0},
            "SourceError: Kafka has no 'no-such-topic' (subscribe); make it, or correct the name.",
        ),
    ):
        with pytest.raises(StreamingQueryException) as raised:
            available_now(stream_of(spark, orders, options), tmp_path / "checkpoint")
        assert sentence(raised.value) == told


def test_a_check_finds_a_wrong_option_a_missing_topic_and_an_unreachable_broker(
    topic: TopicFactory,
) -> None:
    orders = topic()
    right = {
        "kafka.bootstrap.servers": orders.bootstrap_servers,
        "subscribe": orders.name,
        "fetchOffset.numRetries": "0",
    }
    KAFKA.check(right)
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern and assign"):
        KAFKA.check({**right, "assign": '{"orders": [0]}'})
    with pytest.raises(SourceError) as missing:
        KAFKA.check({**right, "subscribe": f"{orders.name},no-such-topic"})
    assert str(missing.value) == (
        "Kafka has no 'no-such-topic' (subscribe); make it, or correct the name."
    )
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(BrokerError) as unreachable:
        KAFKA.check({**right, "kafka.bootstrap.servers": nobody})
    told = str(unreachable.value)
    assert told.startswith(f"Kafka at {nobody} (kafka.bootstrap.servers) did not answer: ")
    assert "Connection refused" in told
