"""A principal without rights on any consumer group reads: partitions are assigned, none commits."""

from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.gate.kafka.reads import offsets, reader_config, whole
from tests.services.kafka import Topics

from headrace.operate.local import Java, KafkaBroker, kafka_server_jars

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class RefusedFirst(Consumer):
    """A consumer that holds back its records until the broker has refused its group."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._held: list[Message] = []
        self.is_refused = False

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        self._held += super().consume(num_messages, timeout)
        errors = [error for message in self._held if (error := message.error()) is not None]
        self.is_refused |= any(
            error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED for error in errors
        )
        if not self.is_refused:
            return []
        messages, self._held = self._held, []
        return messages


def test_a_principal_without_rights_on_groups_reads(java: Java) -> None:
    with KafkaBroker(java, kafka_server_jars(java), settings=AUTHORIZER) as broker:
        topic = Topics(broker.bootstrap_servers).create()
        topic.produce(*(str(number).encode() for number in range(300)))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        denied = AclBinding(
            *(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"),
            *(AclOperation.ALL, AclPermissionType.DENY),
        )
        admin.create_acls([denied])[denied].result()
        config = reader_config(broker.bootstrap_servers)
        assert offsets(replace(config, make_consumer=RefusedFirst), whole(topic, 300)) == list(
            range(300)
        )
