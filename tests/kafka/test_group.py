"""Offsets in a consumer group, for those who watch lag there."""

import pytest
from confluent_kafka import Consumer
from tests.services.groups import committed
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

from headrace.control import TopicPartition
from headrace.kafka import group as group_module
from headrace.kafka.group import GroupOffsets


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy broker may be slower than a query would wait for."""
    monkeypatch.setattr(group_module, "_PATIENCE_S", 60)


def test_positions_are_committed_when_commit_returns(topic: TopicFactory) -> None:
    orders = topic(2)
    group = GroupOffsets({"bootstrap.servers": orders.bootstrap_servers}, f"of-{orders.name}")
    near, far = TopicPartition(orders.name, 0), TopicPartition(orders.name, 1)
    for positions, expected in (
        ({near: 3}, [3, -1001]),
        ({near: 3, far: 0}, [3, 0]),
        ({near: 5, far: 0}, [5, 0]),
    ):
        group.commit(positions)
        assert committed(orders, f"of-{orders.name}") == expected
    group.close()


def test_a_group_whose_members_commit_themselves_is_left_alone_with_a_warning(
    topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic()
    config = {"bootstrap.servers": orders.bootstrap_servers, "group.id": f"of-{orders.name}"}
    member = Consumer(config)
    member.subscribe([orders.name])
    wait_until(lambda: member.poll(0.1) or member.assignment())
    group = GroupOffsets({"bootstrap.servers": orders.bootstrap_servers}, config["group.id"])
    place = TopicPartition(orders.name, 0)
    group.commit({place: 7})
    assert committed(orders, config["group.id"]) == [-1001]
    warning = (
        f"The offsets of processed batches were not committed to the group {config['group.id']}: "
    )
    assert [message.startswith(warning) for message in caplog.messages].count(True) == 1
    member.close()
    group.commit({place: 7})
    assert committed(orders, config["group.id"]) == [7], "what failed is tried again"
    group.close()
