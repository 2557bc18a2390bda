"""Consumers are kept, lent to one reader at a time, and closed after errors."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Position
from tests.gate.kafka.reads import client
from tests.services.kafka import TopicFactory

from headrace.gate.kafka.consumers import (
    KEEP_AT_MOST,
    REFUSALS,
    ClientConfig,
    WarmConsumer,
    close_idle_consumers,
    warm_consumer,
)

NOWHERE = client("127.0.0.1:1")


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    close_idle_consumers()
    yield
    close_idle_consumers()


def numbered(number: int) -> ClientConfig:
    return {**NOWHERE, "group.id": f"group-{number}"}


def is_closed(consumer: WarmConsumer) -> bool:
    try:
        consumer.kafka.assignment()
    except RuntimeError:
        return True
    return False


def test_the_same_configuration_gets_the_same_consumer_again() -> None:
    with warm_consumer(NOWHERE) as first:
        pass
    with warm_consumer(dict(reversed([*NOWHERE.items()]))) as second:
        assert second is first
    with warm_consumer(numbered(1)) as other:
        assert other is not first


def test_a_consumer_in_use_is_lent_to_nobody_else_and_one_is_kept() -> None:
    with warm_consumer(NOWHERE) as first, warm_consumer(NOWHERE) as second:
        assert first is not second
    assert is_closed(second)
    with warm_consumer(NOWHERE) as third:
        assert third is first


def test_a_consumer_is_closed_after_an_error_and_the_error_goes_on() -> None:
    with pytest.raises(ValueError, match="mine"), warm_consumer(NOWHERE) as consumer:
        raise ValueError("mine")
    assert is_closed(consumer)
    with warm_consumer(NOWHERE) as next_one:
        assert next_one is not consumer


def test_a_consumer_that_comes_back_fetches_no_further(topic: TopicFactory) -> None:
    made = topic(1)
    made.produce(b"x")
    with warm_consumer(client(made.bootstrap_servers)) as consumer:
        consumer.kafka.assign([Position(made.name, 0, 0)])
        (message,) = consumer.kafka.consume(1, 20)
        assert message.value() == b"x"
    assert consumer.kafka.assignment() == []


def test_only_so_many_idle_consumers_are_kept() -> None:
    lent = []
    for number in range(KEEP_AT_MOST + 2):
        with warm_consumer(numbered(number)) as consumer:
            lent.append(consumer)
    assert [is_closed(consumer) for consumer in lent] == [True] * 2 + [False] * (len(lent) - 2)
    close_idle_consumers()
    assert all(map(is_closed, lent))


def test_what_the_reader_relies_on_cannot_be_set_away(topic: TopicFactory) -> None:
    made = topic(1)
    stubborn = client(
        made.bootstrap_servers, auto_offset_reset="earliest", enable_partition_eof=False
    )
    with warm_consumer(stubborn) as consumer:
        consumer.kafka.assign([Position(made.name, 0, 0)])
        (event,) = consumer.kafka.consume(1, 20)
        error = event.error()
        assert error is not None
        assert error.code() == KafkaError._PARTITION_EOF
        consumer.kafka.assign([Position(made.name, 0, 5)])
        (event,) = consumer.kafka.consume(1, 20)
        error = event.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET


def test_the_reason_is_kept_rather_than_that_all_brokers_are_down() -> None:
    consumer = WarmConsumer(NOWHERE)
    down, refused = KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TRANSPORT)
    for error in (down, refused, down):
        consumer.on_error(error)
    assert consumer.last_error is refused
    assert consumer.refusal is None
    consumer.kafka.close()


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_refusal_is_remembered_until_the_next_borrower(code: int) -> None:
    with warm_consumer(NOWHERE) as consumer:
        consumer.on_error(KafkaError(code))
        assert consumer.refusal is not None
    with warm_consumer(NOWHERE) as again:
        assert again is consumer
        assert again.refusal is None
        assert again.last_error is None
