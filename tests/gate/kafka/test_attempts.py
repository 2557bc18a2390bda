"""Records that stages produce, and those of them that are read."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.gate.kafka.reads import reader_config, rows, whole
from tests.services.kafka import Topic, TopicFactory

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError, SourceError
from headrace.gate.kafka.attempts import HEADER, Attempts, known_id, produce, tag
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges
from headrace.gate.kafka.topic_log import KafkaLog
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.log import HEADERS
from headrace.gate.source.log import Topic as Known

Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]


def batch(*records: Sent) -> pa.RecordBatch:
    headers = [
        None if given is None else [{"key": name, "value": value} for name, value in given]
        for _, _, given in records
    ]
    return pa.record_batch(
        {
            "key": pa.array([key for key, _, _ in records], pa.binary()),
            "value": pa.array([value for _, value, _ in records], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def values(config: ReaderConfig, *ranges: OffsetRange) -> list[bytes]:
    return [row["value"] for row in rows(read_ranges(config, ranges))]


def client(to: Topic) -> dict[str, str | int | float | bool]:
    return client_config({"bootstrap.servers": to.bootstrap_servers})


@pytest.mark.usefixtures("engine")
def test_records_are_produced_with_their_tag_and_nobody_elses(topic: TopicFactory) -> None:
    to = topic()
    sent = batch(
        (b"k", b"v", [("h", b"x"), (HEADER, b"upstream")]),
        (None, None, None),
    )
    assert produce(client(to), to.name, tag("key", "attempt"), [sent, sent]) == 4
    read = rows(read_ranges(reader_config(to.bootstrap_servers), [whole(to, 4)]))
    marked = {"key": HEADER, "value": b"key/attempt"}
    assert [(row["key"], row["value"]) for row in read[:2]] == [(b"k", b"v"), (None, None)]
    assert read[0]["headers"] == [marked, {"key": "h", "value": b"x"}]
    assert read[1]["headers"] == [marked]


def test_what_the_brokers_refuse_is_raised(topic: TopicFactory) -> None:
    to = topic(config={"max.message.bytes": "1000"})
    with pytest.raises(BrokerError, match=r"too large; its max.message.bytes is 1000,"):
        produce(client(to), to.name, "tag", [batch((None, random.Random(5).randbytes(5000), None))])


@pytest.mark.usefixtures("engine")
def test_records_of_aborted_attempts_are_skipped(topic: TopicFactory) -> None:
    to = topic()
    to.produce(b"of another")
    produce(client(to), to.name, "key/lost", [batch((None, b"lost", None))] * 3)
    produce(client(to), to.name, "key/won", [batch((None, b"won", None))])
    config = reader_config(to.bootstrap_servers, columns=["value"])
    assert values(config, whole(to, 5)) == [b"of another", *[b"lost"] * 3, b"won"]
    aborted = frozenset({b"key/lost"})
    chosen = replace(config, aborted=aborted)
    assert values(chosen, whole(to, 5)) == [b"of another", b"won"]
    assert values(chosen, whole(to, 4, start=1)) == []


def test_a_log_ends_where_an_attempt_that_is_not_decided_began(
    topic: TopicFactory, tmp_path: Path
) -> None:
    to = topic(2)
    url = f"sqlite:///{tmp_path}/ledger.db"
    to.produce(*[b"x"] * 5)
    given = {
        "kafka.bootstrap.servers": to.bootstrap_servers,
        "subscribe": to.name,
        "headrace.channel": url,
    }
    options = parse_options(given, streaming=True)
    assert url not in repr(options)
    log = KafkaLog(options)
    with Ledger.open(url) as ledger:
        topics = log.topics(must_exist=True)
        topic_id = known_id(to.name, topics[to.name])
        ends = log.latest(log.partitions(topics))
        assert log.readable_until(ends) == ends
        ledger.outputs.begin(topic_id, "key", "a", {0: 3})
        assert log.readable_until(ends) == {
            TopicPartition(to.name, 0): 3,
            TopicPartition(to.name, 1): 0,
        }
        ledger.outputs.begin(topic_id, "key", "b", {0: 4, 1: 0})
        assert log.readable_until(ends)[TopicPartition(to.name, 0)] == 4
        assert log.aborted([whole(to, 3)]) == ()
        assert log.aborted([whole(to, 4)]) == ("key/a",)
        assert ledger.outputs.finish(topic_id, "key", "b")
        assert log.readable_until(ends) == ends
    log.close()


def test_a_topic_without_an_id_can_be_no_channel() -> None:
    with pytest.raises(SourceError, match=r"'orders' .* its brokers give it no id"):
        known_id("orders", Known(None, (0,)))


def test_a_ledger_is_opened_when_it_is_asked() -> None:
    Attempts("sqlite:////nowhere/at/all.db").close()
