"""Dead letters as messages, and how the brokers take them."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.services.kafka import Topic, TopicFactory, records_in
from tests.services.waiting import wait_until

from headrace.errors import BrokerError, OptionError
from headrace.gate.kafka.dead_letter_producer import (
    DeadLetterProducer,
    DeadLetterTopic,
    dead_letter_record,
    resent_record,
)
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.records import DeadLetter

LETTER = DeadLetter(
    topic="orders",
    partition=3,
    offset=50,
    key=b"k\x00",
    value=b"\xff",
    headers=(("trace", b"\xfe"), ("none", None), ("trace", b"again")),
    timestamp_ms=5,
    timestamp_type=1,
    error=ErrorReport("shop.PriceError", "price is -1\nof order é", "Traceback"),
)
ORIGIN = (
    ("headrace.dead-letter.topic", b"orders"),
    ("headrace.dead-letter.partition", b"3"),
    ("headrace.dead-letter.offset", b"50"),
)
WHY = (
    ("headrace.error.class", b"shop.PriceError"),
    ("headrace.error.message", "price is -1\nof order é".encode()),
)


def options_of(topic: Topic) -> dict[str, str]:
    """Those of a stream, with what only reading has a use for."""
    return {
        "Kafka.Bootstrap.Servers": topic.bootstrap_servers,
        "subscribe": "orders",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.bytes": "100000",
    }


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages that were logged, without the client's."""
    records = [record for record in caplog.records if record.name == "headrace.kafka"]
    assert {record.levelno for record in records} <= {logging.WARNING}
    return [record.getMessage() for record in records]


def test_a_letter_goes_back_whole_to_the_partition_it_had() -> None:
    message = resent_record(LETTER)
    assert (message.topic, message.partition) == ("orders", 3)
    assert (message.key, message.value) == (LETTER.key, LETTER.value)
    assert message.headers == (*(LETTER.headers or ()), *ORIGIN)


@pytest.mark.parametrize(
    ("topic", "mend"),
    [
        ("elsewhere", lambda letter: letter),
        (None, lambda letter: replace(letter, key=b"other")),
        (None, lambda letter: replace(letter, key=None)),
    ],
)
def test_a_letter_with_another_topic_or_key_goes_where_its_key_belongs(
    topic: str | None, mend: Callable[[DeadLetter], DeadLetter]
) -> None:
    message = resent_record(LETTER, topic=topic, mended=mend(LETTER))
    assert message.topic == (topic or "orders")
    assert message.partition is None


def test_of_what_was_mended_only_the_content_counts() -> None:
    mended = replace(LETTER, topic="x", partition=9, offset=9, value=None, headers=(("a", b"b"),))
    message = resent_record(LETTER, mended=mended)
    assert (message.topic, message.partition, message.value) == ("orders", 3, None)
    assert message.headers == (("a", b"b"), *ORIGIN)


def test_a_letter_that_was_one_before_says_only_where_it_was_last() -> None:
    once = dead_letter_record(replace(LETTER, topic="older", offset=1), "dead")
    again = replace(LETTER, headers=tuple(once.headers))
    assert resent_record(again).headers == (*(LETTER.headers or ()), *ORIGIN)


def test_a_letter_without_headers_has_ours_only() -> None:
    assert resent_record(replace(LETTER, headers=None)).headers == ORIGIN


def test_a_letter_that_is_set_aside_says_why() -> None:
    message = dead_letter_record(LETTER, "dead")
    assert (message.topic, message.partition, message.key) == ("dead", None, LETTER.key)
    assert message.headers == (*(LETTER.headers or ()), *ORIGIN, *WHY)


def test_the_broker_tells_where_each_message_is(topic: TopicFactory) -> None:
    orders = topic()
    producer = DeadLetterProducer(options_of(orders))
    letters = [
        replace(LETTER, topic=orders.name, partition=0, value=b"x" * size)
        for size in (0, 3, 1_100_000)
    ]
    sent = [producer.send(resent_record(letter)) for letter in letters]
    producer.flush()
    assert [each.result(0) for each in sent[:2]] == [f"{orders.name}-0 at {n}" for n in (0, 1)]
    # Larger than its topic allows, which the broker says.
    assert "too large" in str(sent[2].exception(0))
    first, second = records_in(orders)
    assert (first.key(), first.value(), second.value()) == (LETTER.key, b"", b"xxx")
    headers = first.headers()
    assert isinstance(headers, list)
    assert headers[:3] == list(LETTER.headers or ())


def test_a_message_that_the_brokers_do_not_take_says_why(topic: TopicFactory) -> None:
    orders = topic()
    nowhere = DeadLetterProducer({"kafka.bootstrap.servers": "127.0.0.1:1"}, timeout_ms=1_000)

    def lost() -> BaseException | None:
        sent = nowhere.send(resent_record(LETTER))
        nowhere.flush()
        return sent.exception(0)

    # On a busy machine a record's time may end before the client knows the reason.
    wait_until(lambda: "Connection refused" in str(lost()))
    error = lost()
    assert isinstance(error, BrokerError)
    assert str(error).startswith("Topic 'orders' at 127.0.0.1:1 ")
    producer = DeadLetterProducer(options_of(orders))
    no_partition = producer.send(resent_record(replace(LETTER, topic=orders.name)))
    producer.flush()
    with pytest.raises(BrokerError, match=f"Topic '{orders.name}'.*[Uu]nknown partition"):
        no_partition.result(0)


def test_options_are_checked_and_no_secret_is_shown() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap.servers is missing"):
        DeadLetterProducer({})
    secrets = {
        "kafka.bootstrap.servers": "one:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "nonsense hunter2",
    }
    with pytest.raises(OptionError) as error:
        DeadLetterProducer(secrets)
    assert "hunter2" not in str(error.value)


def test_dead_letters_are_sent_to_a_topic(
    topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    dead = topic()
    letters = DeadLetterTopic(options_of(dead), dead.name)
    letters.flush()
    letters.send(LETTER)
    letters.send(replace(LETTER, offset=51))
    letters.flush()
    letters.flush()
    first, second = records_in(dead)
    assert first.value() == LETTER.value
    assert first.headers() == [*(LETTER.headers or ()), *ORIGIN, *WHY]
    assert ("headrace.dead-letter.offset", b"51") in (second.headers() or ())
    assert warnings_of(caplog) == []


def test_a_topic_that_takes_no_dead_letter_stops_nothing(
    topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    small = topic(config={"max.message.bytes": "100"})
    letters = DeadLetterTopic(options_of(small), small.name)
    letters.send(replace(LETTER, value=b"x" * 1_000))
    letters.flush()
    DeadLetterTopic({}, "dead").send(LETTER)
    DeadLetterTopic(options_of(small), "orders").send(LETTER)
    expected = ("too large", "bootstrap.servers is missing", "another topic")
    for warning, said in zip(warnings_of(caplog), expected, strict=True):
        assert said in warning
