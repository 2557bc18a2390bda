import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from tests.kafka.reads import Transactions, client
from tests.services.kafka import TopicFactory

from headrace.control.ranges import TopicPartition
from headrace.kafka import logs
from headrace.kafka.consumers import warm_consumer
from headrace.kafka.logs import Log, find_log, find_missing


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy broker may be slower than a read would wait for."""
    monkeypatch.setattr(logs, "_TIMEOUT_S", 60)


@pytest.mark.usefixtures("_patient")
def test_a_log_is_what_retention_has_left_up_to_its_very_end(
    topic: TopicFactory, admin: AdminClient
) -> None:
    """Its end is not where an open transaction begins: what follows is there, not lost."""
    made = topic(2)
    made.produce(b"x", b"x", b"x")
    for done in admin.delete_records([Position(made.name, 0, 2)]).values():
        done.result(30)
    Transactions(made).begin(2)
    committed = client(made.bootstrap_servers, isolation_level="read_committed")
    assert find_log(committed, TopicPartition(made.name, 0)) == Log(2, 5)
    assert find_log(committed, TopicPartition(made.name, 1)) == Log(0, 0)


def test_of_a_partition_that_does_not_exist_nothing_is_said(topic: TopicFactory) -> None:
    made = topic(1)
    assert find_log(client(made.bootstrap_servers), TopicPartition(made.name, 7)) is None
    assert find_log(client(made.bootstrap_servers), TopicPartition("no-such-topic", 0)) is None


@pytest.mark.usefixtures("_patient")
def test_missing_partitions_are_those_that_no_topic_has(topic: TopicFactory) -> None:
    first, second = topic(1), topic(2)
    there = [TopicPartition(first.name, 0), TopicPartition(second.name, 1)]
    gone = [TopicPartition(first.name, 1), TopicPartition("no-such-topic", 0)]
    with warm_consumer(client(first.bootstrap_servers)) as consumer:
        assert find_missing(consumer.kafka, [*there, *gone]) == set(gone)
        assert find_missing(consumer.kafka, there) == set()
