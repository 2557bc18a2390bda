"""The demo's producer, on a real broker."""

import json

import pytest
from confluent_kafka import Consumer
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

from headrace.cli.demo.orders import OrderBook
from headrace.cli.demo.producer import OrderProducer
from headrace.cli.demo.senders import KafkaSender
from headrace.errors import BrokerError


def test_every_order_produced_is_in_the_topic_once_it_has_stopped(topic: TopicFactory) -> None:
    orders = topic(3)
    book = OrderBook("shop", 1, 3)
    with OrderProducer(KafkaSender(orders.bootstrap_servers, orders.name), book) as producer:
        producer.fill(100)
        assert producer.produced == 100
        producer.start(2_000)
        wait_until(lambda: producer.produced > 200)
        producer.check()
        producer.stop()
        produced = producer.produced

    consumer = Consumer(
        {
            "bootstrap.servers": orders.bootstrap_servers,
            "group.id": orders.name,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([orders.name])
    ids: list[int] = []

    def all_read() -> bool:
        messages = consumer.consume(1_000, 0.2)
        ids.extend(json.loads(message.value() or b"")["id"] for message in messages)
        return len(ids) >= produced

    try:
        wait_until(all_read)
    finally:
        consumer.close()
    assert sorted(ids) == list(range(produced))


def test_a_topic_that_takes_no_orders_is_told(topic: TopicFactory) -> None:
    small = topic(1, {"max.message.bytes": "10"})
    sender = KafkaSender(small.bootstrap_servers, small.name)
    with (
        OrderProducer(sender, OrderBook("shop", 1, 1)) as producer,
        pytest.raises(BrokerError, match=f"Topic {small.name} did not take an order"),
    ):
        producer.fill(1)


def test_a_stream_that_breaks_is_told_by_the_next_check(topic: TopicFactory) -> None:
    small = topic(1, {"max.message.bytes": "10"})

    def broken() -> bool:
        try:
            producer.check()
        except BrokerError:
            return True
        return False

    sender = KafkaSender(small.bootstrap_servers, small.name)
    with OrderProducer(sender, OrderBook("shop", 1, 1)) as producer:
        producer.start(1_000)
        wait_until(broken)
