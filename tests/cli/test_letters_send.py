"""``headrace dead-letters send``: what is sent, what it says, and what it refuses."""

import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from tests.cli.outcomes import LETTER, Shop, invoke, planned
from tests.services.kafka import Topic, TopicFactory

from headrace.cli import main
from headrace.ledger import DeadLetter, Ledger, LetterStatus
from headrace.ledger.letters import DeadLetterRecord

EDITS = """
from dataclasses import replace

def mend(letter):
    return replace(letter, value=letter.value + b"!", headers=())

def only_first(letter):
    return letter if letter.offset == 50 else None

def fail(letter):
    raise KeyError("price")

def text(letter):
    return replace(letter, value="text")

def nothing_of_it(letter):
    return letter.value
"""


@pytest.fixture
def orders(topic: TopicFactory) -> Topic:
    return topic(prefix="orders")


@pytest.fixture
def url(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with the letters 1 and 2, in whose folder are functions that edit them."""
    with Ledger.open(shop.url) as ledger:
        batch = ledger.begin(planned(70, 71))
        second = DeadLetter("orders", 0, 70, b"other", b"2", None, 0, 0, LETTER.error)
        assert ledger.bury_record(batch.schedule_id, second)
    (tmp_path / "letter_edits.py").write_text(EDITS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "letter_edits", raising=False)
    return shop.url


def at(topic: Topic) -> list[str]:
    """The options that lead to a topic of the shared broker."""
    servers = f"kafka.bootstrap.servers={topic.bootstrap_servers}"
    return ["--topic", topic.name, "--option", servers]


def letter(url: str, number: int) -> DeadLetterRecord:
    with Ledger.open(url) as ledger:
        found = ledger.dead_letter(number)
    assert found is not None
    return found


def records_in(topic: Topic) -> list[Message]:
    """All records of a topic's partition 0."""
    consumer = Consumer(
        {"bootstrap.servers": topic.bootstrap_servers, "group.id": "t", "log_level": 0}
    )
    place = TopicPartition(topic.name, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=20)
    consumer.assign([place])
    found = [consumer.poll(20) for _ in range(end)]
    consumer.close()
    return [each for each in found if each is not None]


def test_all_that_wait_are_sent_with_where_they_were(url: str, orders: Topic) -> None:
    result = invoke(url, "dead-letters", "send", "--all", "--gate", "orders", *at(orders))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"Dead letter 1 is sent to {orders.name}-0 at 0.",
        f"Dead letter 2 is sent to {orders.name}-0 at 1.",
        "2 dead letters sent.",
    ]
    first, second = records_in(orders)
    assert (first.key(), first.value()) == (LETTER.key, LETTER.value)
    assert first.headers() == [
        *(LETTER.headers or ()),
        ("headrace.dead-letter.topic", b"orders"),
        ("headrace.dead-letter.partition", b"0"),
        ("headrace.dead-letter.offset", b"50"),
    ]
    assert second.key() == b"other"
    kept = letter(url, 1)
    assert (kept.status, kept.resolution) == (LetterStatus.SENT, f"sent to {orders.name}-0 at 0")
    again = invoke(url, "dead-letters", "send", "--all", *at(orders))
    assert again.stdout == "0 dead letters sent.\n"
    assert len(records_in(orders)) == 2


def test_a_letter_is_edited_on_its_way(url: str, orders: Topic) -> None:
    result = invoke(url, "dead-letters", "send", "2", *at(orders), "--edit", "letter_edits:mend")
    assert result.exit_code == 0, result.output
    (sent,) = records_in(orders)
    assert sent.value() == b"2!"
    assert letter(url, 2).resolution == f"sent to {orders.name}-0 at 0, edited by letter_edits:mend"
    assert letter(url, 2).letter.value == b"2"
    assert letter(url, 1).status is LetterStatus.WAITING


def test_what_an_edit_leaves_out_still_waits(url: str, orders: Topic) -> None:
    edit = ["--edit", "letter_edits:only_first"]
    result = invoke(url, "dead-letters", "send", "2", "1", "2", *at(orders), *edit)
    assert result.stdout.splitlines()[-1] == (
        "1 dead letter sent, 1 skipped by letter_edits:only_first."
    )
    assert [letter(url, number).status for number in (1, 2)] == [
        *(LetterStatus.SENT, LetterStatus.WAITING)
    ]


def test_what_the_brokers_have_is_sent_though_another_letter_is_refused(
    url: str,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = topic(config={"max.message.bytes": "320"})
    long = DeadLetter("orders", 0, 71, None, b"x" * 1_000, None, 0, 0, LETTER.error)
    with Ledger.open(url) as ledger:
        assert ledger.bury_record(ledger.begin(planned(71, 72)).schedule_id, long)
    monkeypatch.setenv("HEADRACE_LEDGER", url)
    monkeypatch.setattr("sys.argv", ["headrace", "dead-letters", "send", "2", "3", *at(small)])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert said.out == f"Dead letter 2 is sent to {small.name}-0 at 0.\n"
    assert "too large" in said.err
    assert [letter(url, number).status for number in (2, 3)] == [
        *(LetterStatus.SENT, LetterStatus.WAITING)
    ]
