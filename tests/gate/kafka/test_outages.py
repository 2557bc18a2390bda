"""Reads and looks at offsets while brokers die, restart or stay away."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.gate.kafka.reads import offsets, reader_config, rows, whole
from tests.services.kafka import Topic, Topics

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka.consumers import close_idle_consumers
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.lookup import Lookup
from headrace.gate.kafka.range_reader import read_ranges
from headrace.gate.kafka.topic_log import lookup_with
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars

pytestmark = pytest.mark.nightly

COUNT = 3000


@pytest.fixture(scope="module")
def own_broker(java: Java) -> Iterator[KafkaBroker]:
    """A broker that these tests may kill."""
    with KafkaBroker(java, kafka_server_jars(java)) as running:
        yield running
        close_idle_consumers()


@pytest.fixture(scope="module")
def big(own_broker: KafkaBroker) -> Topic:
    """30 MB in two partitions, of which little is fetched ahead and little is in a batch."""
    made = Topics(own_broker.bootstrap_servers).create(2)
    for partition in range(2):
        made.produce(*[b"x" * 5000] * COUNT, partition=partition)
    return made


@pytest.mark.usefixtures("engine")
def test_a_broker_that_dies_and_comes_back_costs_no_record_repeats_none_and_answers_the_planner(
    own_broker: KafkaBroker, big: Topic
) -> None:
    config = reader_config(
        big.bootstrap_servers,
        columns=["partition", "offset"],
        timeout_ms=60_000,
        queued_max_messages_kbytes=200,
        batch_bytes=1000,
        reconnect_backoff_max_ms=500,
    )
    lookup = Lookup(config.client, retries=0, retry_interval_ms=0)
    partitions = [TopicPartition(big.name, number) for number in range(big.partitions)]
    before = lookup.bounds(partitions)
    batches = read_ranges(config, [whole(big, COUNT, partition=p) for p in range(big.partitions)])
    found = rows(iter([next(batches)]))
    own_broker.kill()
    starting = threading.Thread(target=own_broker.start)
    starting.start()
    try:
        # With the broker comes another leader epoch, of which the client must hear first.
        assert lookup.bounds(partitions) == before
    finally:
        starting.join()
    assert len(found) < COUNT
    found += rows(batches)
    for partition in range(big.partitions):
        seen = [row["offset"] for row in found if row["partition"] == partition]
        assert seen == list(range(COUNT))


@pytest.mark.nightly
def test_a_planner_waits_for_a_broker_that_its_load_has_reached_longer_than_another(
    own_broker: KafkaBroker, big: Topic
) -> None:
    bare = {
        "kafka.bootstrap.servers": big.bootstrap_servers,
        "subscribe": big.name,
        "fetchOffset.numRetries": "0",
    }
    lookup, loaded = (
        lookup_with(parse_options(options, streaming=True))
        for options in (bare, bare | {"headrace.read": "a"})
    )
    partitions = [TopicPartition(big.name, 0)]
    own_broker.stop()
    with ThreadPoolExecutor(1) as pool:
        try:
            latest = pool.submit(loaded.latest, partitions)
            with pytest.raises(BrokerError, match="did not answer"):
                lookup.latest(partitions)
        finally:
            own_broker.start()
        assert latest.result() == {partitions[0]: COUNT}


@pytest.mark.usefixtures("engine")
def test_a_broker_that_stays_away_is_an_error_that_names_what_was_waited_for(
    own_broker: KafkaBroker, big: Topic
) -> None:
    hasty = reader_config(
        big.bootstrap_servers,
        columns=["offset"],
        timeout_ms=5_000,
        fail_on_data_loss=False,
        queued_max_messages_kbytes=200,
        batch_bytes=1000,
    )
    config = replace(hasty, request_s=0.5)
    batches = read_ranges(config, [whole(big, COUNT, start=7)])
    next(batches)
    own_broker.stop()
    try:
        with pytest.raises(
            BrokerError,
            match=rf"{big.name}-0 \[\d+, {COUNT}\) for 5000 ms \(kafkaConsumer.pollTimeoutMs\)",
        ) as failed:
            list(batches)
        assert "127.0.0.1" in str(failed.value)
        with pytest.raises(BrokerError, match=rf"{big.name}-0 \[0, 5\) for 500 ms"):
            offsets(replace(config, timeout_ms=500), whole(big, 5))
    finally:
        own_broker.start()
    patient = reader_config(big.bootstrap_servers, columns=["offset"])
    assert offsets(patient, whole(big, 5)) == [0, 1, 2, 3, 4]
