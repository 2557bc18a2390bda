"""The Kafka rights in docs/kafka-client-options.md are enough, and none of them can be left out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.gate.kafka.reads import offsets, reader_config, whole
from tests.services.kafka import Topic, Topics
from tests.services.waiting import wait_until

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.dead_letter_producer import DeadLetterProducer
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.producing import ProducedRecord
from headrace.gate.kafka.topic_log import GroupOffsets, KafkaLog
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars
from headrace.operate.local.servers import HOST, free_ports

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = ("reads", "describes", "writes", "commits", "nobody")
GROUP = "lag-of-orders"


class Cluster:
    """A broker whose users have no rights but those that are granted; the test itself has all."""

    def __init__(self, java: Java) -> None:
        plain, controller, passwords = free_ports(3)
        known = " ".join(f'user_{name}="{name}"' for name in USERS)
        listeners = f"PLAINTEXT://{HOST}:{plain},PASSWORDS://{HOST}:{passwords}"
        self.servers = f"{HOST}:{passwords}"
        self.broker = KafkaBroker(
            java,
            kafka_server_jars(java),
            settings={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "PASSWORDS:SASL_PLAINTEXT",
                "listener.name.passwords.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.passwords.plain.sasl.jaas.config": f"{MODULE} {known};",
            },
        )
        self.broker.bootstrap_servers = f"{HOST}:{plain}"

    def begin(self) -> None:
        self.admin = AdminClient(
            {"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0}
        )
        self.topics = Topics(self.broker.bootstrap_servers)

    def grant(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        right = AclBinding(
            *(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*"),
            *(operation, AclPermissionType.ALLOW),
        )
        self.admin.create_acls([right])[right].result()

    def options(self, user: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{MODULE} username="{user}" password="{user}";',
        }

    def log(self, user: str, **options: str) -> KafkaLog:
        return KafkaLog(parse_options(self.options(user) | options, streaming=False))

    def client(self, user: str) -> dict[str, Any]:
        options = self.options(user)
        return client_config({name.removeprefix("kafka."): of for name, of in options.items()})


@pytest.fixture(scope="module")
def cluster(java: Java) -> Iterator[Cluster]:
    made = Cluster(java)
    with made.broker:
        made.begin()
        yield made


def read(cluster: Cluster, user: str, topic: Topic) -> list[int]:
    """Do what a query does: look the topic up, then its offsets, then read."""
    log = cluster.log(user, subscribe=topic.name)
    partitions = log.partitions(dict(log.topics()))
    assert log.earliest(partitions) == {TopicPartition(topic.name, 0): 0}
    latest = log.latest(partitions)[TopicPartition(topic.name, 0)]
    log.close()
    client = cluster.client(user) | {"group.id": f"of-{user}"}
    return offsets(replace(reader_config(cluster.servers), client=client), whole(topic, latest))


def written(cluster: Cluster, user: str, topic: Topic) -> BaseException | None:
    producer = DeadLetterProducer(cluster.options(user))
    sent = producer.send(ProducedRecord(topic.name, None, b"x", ()))
    producer.flush()
    return sent.exception()


def orders(cluster: Cluster) -> Topic:
    topic = cluster.topics.create()
    topic.produce(b"a", b"b")
    return topic


@pytest.mark.usefixtures("engine")
def test_read_on_the_topic_is_enough_to_read(cluster: Cluster) -> None:
    topic = orders(cluster)
    cluster.grant("reads", ResourceType.TOPIC, topic.name, AclOperation.READ)
    cluster.grant("describes", ResourceType.TOPIC, topic.name, AclOperation.DESCRIBE)
    assert read(cluster, "reads", topic) == [0, 1]
    with pytest.raises(BrokerError, match="Topic authorization failed"):
        read(cluster, "describes", topic)
    with pytest.raises(BrokerError, match="Topic authorization failed"):
        read(cluster, "nobody", topic)


def test_a_pattern_finds_the_topics_that_the_user_may_describe(cluster: Cluster) -> None:
    hidden, seen = orders(cluster), orders(cluster)
    cluster.grant("describes", ResourceType.TOPIC, seen.name, AclOperation.DESCRIBE)
    log = cluster.log("describes", subscribePattern="topic-.*")
    names = set(log.topics())
    log.close()
    assert seen.name in names
    assert hidden.name not in names


def test_write_on_the_topic_is_enough_to_write(cluster: Cluster) -> None:
    topic = orders(cluster)
    cluster.grant("writes", ResourceType.TOPIC, topic.name, AclOperation.WRITE)
    assert written(cluster, "writes", topic) is None
    # A user who may write to no topic at all gets no producer id, which may be said first.
    cluster.grant("nobody", ResourceType.TOPIC, orders(cluster).name, AclOperation.WRITE)
    refused = written(cluster, "nobody", topic)
    assert isinstance(refused, BrokerError)
    assert "Topic authorization failed" in str(refused)
    assert "this user may write to it" in str(refused)


def test_a_group_that_is_denied_is_one_sentence_and_is_used_once_it_is_granted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = orders(cluster)
    cluster.grant("commits", ResourceType.TOPIC, topic.name, AclOperation.READ)
    group = GroupOffsets(cluster.client("commits"), GROUP, wait_s=60)
    place = TopicPartition(topic.name, 0)
    for offset in range(3):  # none of them waits for the whole of wait_s
        group.commit({place: offset})
    (line,) = [each.getMessage() for each in caplog.records if each.name == "headrace.kafka"]
    assert line == (
        f"The offsets of processed batches are not committed to the group {GROUP}, which this user"
        " may not use: grant the user Read on the group, or leave headrace.commit.group out. This"
        " is logged once."
    )
    cluster.grant("commits", ResourceType.GROUP, GROUP, AclOperation.READ)

    def is_committed() -> bool:
        group.commit({place: 2})
        asked = [ConsumerGroupTopicPartitions(GROUP, [Position(topic.name, 0)])]
        try:
            found = cluster.admin.list_consumer_group_offsets(asked)[GROUP].result()
        except KafkaException:  # the group's coordinator is still loading
            return False
        return [each.offset for each in found.topic_partitions] == [2]

    wait_until(is_committed)
    group.close()
    assert len([each for each in caplog.records if each.name == "headrace.kafka"]) == 1


RIGHTS = {
    "reads a topic": "`Read` on the topic",
    "commits to a group (`headrace.commit.group`)": "`Read` on the group",
    "writes to a topic: a sink, dead letters, a flow's stage": "`Write` on the topic",
}


def test_the_page_has_these_rights() -> None:
    text = Path("docs/kafka-client-options.md").read_text(encoding="utf-8")
    for use, right in RIGHTS.items():
        assert f"| {use} | {right}" in text
