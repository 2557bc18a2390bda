import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.services.kafka import TopicFactory, Topics
from tests.services.waiting import wait_until

from headrace.errors import SetupError
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars
from headrace.operate.local.servers import free_ports

pytestmark = pytest.mark.nightly

PARENT = """
import time
from headrace.operate.local import KafkaBroker, ensure_java, kafka_server_jars
java = ensure_java()
broker = KafkaBroker(java, kafka_server_jars(java))
broker.start()
print(broker.bootstrap_servers, broker.folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def own_broker(java: Java) -> Iterator[KafkaBroker]:
    """A broker that a test may stop and kill; not started yet."""
    broker = KafkaBroker(java, kafka_server_jars(java), settings={"num.partitions": "7"})
    yield broker
    broker.close()


def first_value(bootstrap_servers: str, topic: str) -> bytes | None:
    """The first record of partition 0, or None if none comes soon."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "unused", "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(20)
        return None if message is None or message.error() else message.value()
    finally:
        consumer.close()


def setting(bootstrap_servers: str, name: str) -> str:
    """The value that the broker itself gives for one of its settings."""
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    value = admin.describe_configs([broker])[broker].result(20)[name].value
    assert isinstance(value, str)
    return value


def is_refused(bootstrap_servers: str) -> bool:
    """Whether nobody listens there."""
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def is_gone(group: int) -> bool:
    """Whether no process of this process group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_shared_broker_serves_topics(topic: TopicFactory) -> None:
    orders = topic(3)
    orders.produce(b"one", b"two", partition=0)
    assert first_value(orders.bootstrap_servers, orders.name) == b"one"


def test_data_address_and_settings_outlive_a_stop_and_a_crash(own_broker: KafkaBroker) -> None:
    own_broker.start()
    own_broker.start()  # does nothing
    address = own_broker.bootstrap_servers
    orders = Topics(address).create()
    orders.produce(b"kept")
    for end in (own_broker.stop, own_broker.kill):
        pid = own_broker.pid
        assert pid is not None
        end()
        assert own_broker.pid is None
        wait_until(partial(is_gone, pid))
        assert is_refused(address)
        own_broker.start()
        assert own_broker.bootstrap_servers == address
        assert first_value(address, orders.name) == b"kept"
        assert setting(address, "num.partitions") == "7"


def test_nothing_is_left_of_a_closed_broker(own_broker: KafkaBroker) -> None:
    own_broker.start()
    pid, folder = own_broker.pid, own_broker.folder
    assert pid is not None
    assert folder is not None
    own_broker.close()
    own_broker.close()  # does nothing
    wait_until(partial(is_gone, pid))
    assert is_refused(own_broker.bootstrap_servers)
    assert not folder.exists()


def test_nothing_is_left_of_the_broker_of_a_killed_process(java: Java) -> None:
    kafka_server_jars(java)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        address, folder = it.stdout.readline().split()
        assert not is_refused(address)
        it.kill()
    wait_until(partial(is_refused, address))
    wait_until(lambda: not Path(folder).exists())


def test_a_broker_that_does_not_start_says_why_and_leaves_nothing(java: Java) -> None:
    broker = KafkaBroker(java, kafka_server_jars(java))
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        with pytest.raises(SetupError, match="did not start; the last lines") as raised, broker:
            raise AssertionError("it started")
    assert "Address already in use" in str(raised.value)
    assert broker.pid is None
    assert broker.folder is None


def test_settings_that_kafka_refuses_are_an_error_with_its_words(java: Java) -> None:
    refused = {"log.retention.ms": "a week"}
    with (
        pytest.raises(SetupError, match=r"could not be formatted in .*\n(.*\n)*.*a week"),
        KafkaBroker(java, kafka_server_jars(java), settings=refused),
    ):
        raise AssertionError("it started")


def test_the_ports_differ_and_can_all_be_bound() -> None:
    found = free_ports(5)
    assert len(set(found)) == 5
    for port in found:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_that_somebody_listens_on_is_not_offered() -> None:
    taken, free = free_ports(2)
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1, (taken, free)) == (free,)


def test_too_few_free_ports_are_an_error_that_counts_them() -> None:
    (port,) = free_ports(1)
    with pytest.raises(
        SetupError, match=f"Only 1 of the 2 required ports .* between {port} and {port}"
    ):
        free_ports(2, (port,))
