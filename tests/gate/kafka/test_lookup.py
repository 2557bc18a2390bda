import gc
import logging
import re
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    Uuid,
)
from confluent_kafka import (
    TopicPartition as Position,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.gate.kafka.reads import Transactions, client
from tests.services.kafka import Topic, TopicFactory, Topics
from tests.services.waiting import wait_until

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka.lookup import Lookup
from headrace.operate.local import KafkaBroker
from headrace.operate.local.servers import free_ports


def look(broker: KafkaBroker, **settings: str | bool) -> Lookup:
    return Lookup(client(broker.bootstrap_servers, **settings), retries=3, retry_interval_ms=10)


def look_with_client(broker: KafkaBroker, **settings: str | bool) -> tuple[Lookup, AdminClient]:
    """A lookup, and the client that it asks with."""
    made: list[AdminClient] = []

    def make_admin(settings: dict[str, Any], logger: logging.Logger) -> AdminClient:
        made.append(AdminClient(settings, logger=logger))
        return made[0]

    config = client(broker.bootstrap_servers, **settings)
    return Lookup(config, 3, 10, make_admin=make_admin), made[0]


@pytest.fixture
def lookup(broker: KafkaBroker) -> Lookup:
    return look(broker)


@pytest.fixture(scope="module")
def numbers(topic: TopicFactory, admin: AdminClient) -> Topic:
    """Partition 0 holds [4, 10), partition 1 [0, 3), partition 2 nothing."""
    made = topic(3, {"retention.ms": "-1"}, prefix="lookup")
    for offset in range(10):
        made.produce(b"x", timestamp_ms=1_600_000_000_000 + 1000 * offset)
    made.produce(*[b"x"] * 3, partition=1, timestamp_ms=1_700_000_000_000)
    for done in admin.delete_records([Position(made.name, 0, 4)]).values():
        done.result(30)
    return made


def partitions(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]


def offsets(topic: Topic, *values: int | None) -> dict[TopicPartition, int | None]:
    return dict(zip(partitions(topic), values, strict=False))


def test_topics_are_those_that_exist_with_their_partitions_and_ids(
    lookup: Lookup, numbers: Topic
) -> None:
    found = lookup.topics([numbers.name, "no-such-topic", numbers.name])
    assert found.keys() == {numbers.name}
    assert found[numbers.name].partitions == (0, 1, 2)
    assert re.fullmatch(r"[\w+/-]{22}", found[numbers.name].topic_id or "")
    assert lookup.topics(["no-such-topic"]) == {}
    assert lookup.topics([]) == {}


def test_a_topic_made_again_has_another_id(broker: KafkaBroker, lookup: Lookup) -> None:
    topics = Topics(broker.bootstrap_servers)
    name = topics.create(1, prefix="again").name
    before = lookup.topics([name])[name]
    topics.admin.delete_topics([name])[name].result(30)
    wait_until(lambda: lookup.topics([name]) == {})
    Topics(broker.bootstrap_servers).create(2, prefix="again")
    after = lookup.topics([name])[name]
    assert (before.partitions, after.partitions) == ((0,), (0, 1))
    assert before.topic_id != after.topic_id


def test_a_pattern_finds_its_topics(lookup: Lookup, topic: TopicFactory) -> None:
    first, second = topic(1, prefix="pattern-first"), topic(2, prefix="pattern-second")
    found = lookup.matching(re.compile(r"^pattern-.*-\d+$"))
    assert {name: len(each.partitions) for name, each in found.items()} == {
        first.name: 1,
        second.name: 2,
    }
    assert lookup.matching(re.compile("no-such-topic")) == {}


def test_logs_begin_where_retention_has_come_and_end_at_the_next_offset(
    lookup: Lookup, numbers: Topic
) -> None:
    assert lookup.earliest(partitions(numbers)) == offsets(numbers, 4, 0, 0)
    assert lookup.latest(partitions(numbers)) == offsets(numbers, 10, 3, 0)
    assert lookup.bounds(partitions(numbers)) == (
        offsets(numbers, 4, 0, 0),
        offsets(numbers, 10, 3, 0),
    )


def test_nothing_asked_is_nothing_answered_without_a_broker() -> None:
    nowhere = Lookup(client("127.0.0.1:1"), retries=0, retry_interval_ms=0)
    assert nowhere.bounds([]) == ({}, {})
    assert nowhere.latest([]) == {}
    assert nowhere.at_timestamps({}) == {}


@pytest.mark.parametrize(
    ("seconds", "offset"), [(-5, 4), (4, 4), (4.5, 5), (9, 9), (9.001, None), (10**7, None)]
)
def test_a_time_is_the_first_offset_at_or_after_it(
    lookup: Lookup, numbers: Topic, seconds: float, offset: int | None
) -> None:
    asked = {partitions(numbers)[0]: 1_600_000_000_000 + int(1000 * seconds)}
    assert lookup.at_timestamps(asked) == offsets(numbers, offset)


def test_each_partition_has_its_own_time(lookup: Lookup, numbers: Topic) -> None:
    asked = dict(zip(partitions(numbers), (1_600_000_007_000, 0, 0), strict=True))
    assert lookup.at_timestamps(asked) == offsets(numbers, 7, 0, None)


def test_read_committed_ends_where_the_first_open_transaction_begins(
    broker: KafkaBroker, topic: TopicFactory
) -> None:
    made = topic(1)
    made.produce(b"x")
    transactions = Transactions(made)
    committed = look(broker, isolation_level="read_committed")
    uncommitted = look(broker, isolation_level="read_uncommitted")
    transactions.begin(2)
    assert committed.latest(partitions(made)) == offsets(made, 1)
    assert uncommitted.latest(partitions(made)) == offsets(made, 3)
    transactions.end(commit=False)
    assert committed.latest(partitions(made)) == offsets(made, 4)


def test_a_topic_made_this_moment_is_looked_up(broker: KafkaBroker, lookup: Lookup) -> None:
    topics = Topics(broker.bootstrap_servers)
    for _ in range(3):
        made = topics.create(40, prefix="moment")
        found = lookup.topics([made.name])
        assert len(found[made.name].partitions) == 40
        assert set(lookup.bounds(partitions(made))[1].values()) == {0}
        topics.admin.delete_topics([made.name])[made.name].result(30)


def test_all_partitions_of_a_broker_are_asked_for_in_one_request(
    broker: KafkaBroker, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    made = topic(60)
    lookup, admin = look_with_client(broker, debug="protocol")
    lookup.bounds(partitions(made))
    with caplog.at_level(logging.DEBUG, "headrace.kafka"):
        admin.poll(0)  # what has been logged so far
        caplog.clear()
        lookup.latest(partitions(made))
        wait_until(lambda: admin.poll(0) or "Received ListOffsetsResponse" in caplog.text)
    assert caplog.text.count("Sent ListOffsetsRequest") == 1


def test_settings_of_consumers_are_no_reason_to_warn(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    lookup, admin = look_with_client(broker, check_crcs=True)
    assert lookup.topics(["no-such-topic"]) == {}
    admin.poll(0)  # delivers what the client has logged
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class SlowMachinesAdmin(AdminClient):
    """Its thread, which finds why there is no broker, may be late: a poll waits for the reason."""

    def __init__(self, config: dict[str, Any], logger: logging.Logger) -> None:
        self.reasons: list[KafkaError] = []

        def on_error(error: KafkaError) -> None:
            self.reasons.append(error)
            config["error_cb"](error)

        settings: dict[str, Any] = {**config, "error_cb": on_error}
        super().__init__(settings, logger=logger)

    def poll(self, *_: Any) -> int:
        wait_until(lambda: super(SlowMachinesAdmin, self).poll(0.02) >= 0 and self.reasons)
        return 0


@pytest.mark.integration
def test_an_address_that_cannot_be_reached_is_named_with_the_reason() -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    questions: list[Callable[[Lookup], object]] = [
        lambda lookup: lookup.topics(["orders"]),
        lambda lookup: lookup.matching(re.compile("orders")),
        lambda lookup: lookup.latest([TopicPartition("orders", 0)]),
    ]
    for question in questions:
        lookup = Lookup(client(servers), 3, 10, first_contact_s=0.5, make_admin=SlowMachinesAdmin)
        with pytest.raises(
            BrokerError,
            match=rf"Kafka at {servers} \(kafka.bootstrap.servers\).*Connection refused",
        ):
            question(lookup)


class ScriptedAdmin:
    """Describes one topic: an error is raised, a number is its count of partitions."""

    def __init__(self, *answers: int | KafkaError) -> None:
        self.answers = list(answers)

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        future: Future[Any] = Future()
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            future.set_exception(KafkaException(answer))
        else:
            found = [SimpleNamespace(id=number) for number in range(answer)]
            described = SimpleNamespace(partitions=found, topic_id=Uuid(0, 0))
            future.set_result(described)
        return {"orders": future}

    def list_offsets(
        self, asked: dict[Position, OffsetSpec], isolation_level: object, request_timeout: float
    ) -> dict[Position, Future[Any]]:
        """A number is the offset of every partition."""
        assert isolation_level == IsolationLevel.READ_UNCOMMITTED
        assert request_timeout > 0
        answer = self.answers.pop(0)
        futures: dict[Position, Future[Any]] = {position: Future() for position in asked}
        for future in futures.values():
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer))
        return futures

    def poll(self, _timeout: float) -> int:
        return 0


def scripted(*answers: int | KafkaError) -> Lookup:
    admin = cast("AdminClient", ScriptedAdmin(*answers))
    return Lookup(client("127.0.0.1:1"), 2, 0, poll_s=0.001, make_admin=lambda *_, **__: admin)


UNKNOWN_TOPIC = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
ELECTING = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("answers", "partitions"),
    [
        ([0, 0, 0, 0, 2], 2),  # a busy broker answers without partitions
        ([UNKNOWN_TOPIC, UNKNOWN_TOPIC, 1], 1),  # not every broker knows a new topic at once
        ([*[ELECTING] * 20, 1], 1),  # an election is waited for, however few tries there are
    ],
)
def test_what_passes_is_asked_again(answers: list[int | KafkaError], partitions: int) -> None:
    (found,) = scripted(*answers).topics(["orders"]).values()
    assert found.partitions == tuple(range(partitions))


def test_a_topic_is_missing_when_no_try_finds_it() -> None:
    assert scripted(*[UNKNOWN_TOPIC] * 3, 1).topics(["orders"]) == {}


def test_a_broker_without_topic_ids_gives_none() -> None:
    assert scripted(1).topics(["orders"])["orders"].topic_id is None


@pytest.mark.parametrize(
    "failure",
    [
        -1001,  # librdkafka's answer, without an error, for partitions of a broker that is down
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError(KafkaError._TIMED_OUT),
    ],
)
def test_a_partition_whose_leader_is_gone_is_asked_of_the_next_leader(
    failure: int | KafkaError,
) -> None:
    described = 1  # the client hears who leads by describing the topic
    lookup = scripted(7, failure, described, failure, described, 12)
    partition = TopicPartition("orders", 0)
    assert lookup.latest([partition]) == {partition: 7}
    assert lookup.latest([partition]) == {partition: 12}


@pytest.mark.parametrize(
    ("code", "tries"), [(KafkaError.UNKNOWN, 3), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)]
)
def test_other_errors_are_tried_as_often_as_the_user_says_and_refusals_once(
    code: int, tries: int
) -> None:
    error = KafkaError(code, "not for you")
    lookup = scripted(1, *[error] * (tries - 1), 1, *[error] * tries, 1)
    for _ in range(2):
        assert lookup.topics(["orders"]).keys() == {"orders"}
    with pytest.raises(BrokerError, match="not for you"):
        lookup.topics(["orders"])


def test_a_client_ends_with_the_lookup_that_has_it() -> None:
    """And does not go on to look for a broker that is away, with a line in the log each time."""
    made: list[weakref.ref[AdminClient]] = []

    def make_admin(settings: dict[str, Any], logger: logging.Logger) -> AdminClient:
        admin = AdminClient(settings, logger=logger)
        made.append(weakref.ref(admin))
        return admin

    servers = f"127.0.0.1:{free_ports(1)[0]}"
    lookup = Lookup({"bootstrap.servers": servers}, 0, 10, make_admin=make_admin)
    gc.disable()
    try:
        del lookup
        assert made[0]() is None
    finally:
        gc.enable()
