"""``headrace dead-letters``: the list, the export, what is dropped, and what is sent again."""

import json
import sys
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gate.ledger.samples import convict
from tests.operate.cli.outcomes import ERROR, LETTER, NOW_MS, Shop, invoke, planned, rows, told
from tests.services.kafka import Topic, TopicFactory, records_in

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, DeadLetterRecord, DeadLetterStatus
from headrace.operate.cli.dead_letters_command import PAGE

EDITS = """
from dataclasses import replace

def mend(letter):
    return replace(letter, value=letter.value + b"!", headers=())

def only_first(letter):
    return letter if letter.offset == 50 else None
"""


def add_letters(shop: Shop, number: int, gate: str = "orders") -> None:
    with Ledger.open(shop.url) as ledger:
        for offset in range(100, 100 + number):
            key = ledger.batches.begin(planned(offset, offset + 1, gate)).batch_key
            convict(ledger, key, replace(LETTER, offset=offset, key=None, headers=None))


def letter(url: str, number: int) -> DeadLetterRecord:
    with Ledger.open(url) as ledger:
        found = ledger.dead_letters.get(number)
    assert found is not None
    return found


def test_what_was_resolved_is_listed_with_its_reason_where_it_is_asked_for(shop: Shop) -> None:
    add_letters(shop, 1)
    dropped = told(shop.url, "dead-letters drop 1 --why ' a test order '")
    assert dropped == "Dead letter 1 is dropped.\n"
    assert "at 50" not in told(shop.url, "dead-letters list")
    listed = told(shop.url, "dead-letters list --status dropped --status sent")
    assert "at 50" in listed
    assert "dropped: a test order" in listed
    assert "at 100" not in listed
    nothing = told(shop.url, "dead-letters list --status sent")
    assert nothing == "There is no dead letter that is sent.\n"


def test_the_list_as_json_leaves_the_record_out(shop: Shop) -> None:
    (listed,) = rows(shop.url, "dead-letters list")
    assert listed.pop("created_ms") > NOW_MS
    assert listed == {
        "dead_letter_id": 1,
        "batch_key": shop.isolated,
        "gate": "orders",
        "topic": "orders",
        "partition": 0,
        "offset": 50,
        "timestamp_ms": LETTER.timestamp_ms,
        "timestamp_type": 1,
        "error": {name: getattr(ERROR, name) for name in ("error_class", "message", "trace")},
        "status": "waiting",
        "resolved_ms": None,
        "resolution": None,
    }


def test_a_list_that_is_cut_says_so(shop: Shop) -> None:
    add_letters(shop, 3)
    assert "oldest 2; --limit shows more" in told(shop.url, "dead-letters list --limit 2")
    assert "shows more" not in told(shop.url, "dead-letters list --limit 4")


def test_the_export_has_every_letter_whole(shop: Shop) -> None:
    add_letters(shop, PAGE + 1)
    with Ledger.open(shop.url) as ledger:
        ledger.dead_letters.resolve(3, DeadLetterStatus.SENT, "to orders-retry")
    first, *others = exported(shop, "")
    assert [each["offset"] for each in others] == [100, *range(102, 100 + PAGE + 1)]
    assert b64decode(first["key"]) == LETTER.key
    assert b64decode(first["value"]) == LETTER.value
    headers = [(name, value and b64decode(value)) for name, value in first["headers"]]
    assert tuple(headers) == LETTER.headers
    assert (others[0]["key"], others[0]["headers"]) == (None, None)
    assert first["error"]["trace"] == ERROR.trace
    (sent,) = exported(shop, "--status sent")
    assert sent["resolution"] == "to orders-retry"


def exported(shop: Shop, options: str) -> list[dict[str, Any]]:
    lines = told(shop.url, f"dead-letters export {options}").splitlines()
    return [json.loads(line) for line in lines]


def test_one_gate_of_several_is_listed_and_exported_alone(shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        ledger.gates.declare("clicks", interval_ms=1, source="kafka", estimator="pid")
    add_letters(shop, 1, gate="clicks")
    assert "clicks" in told(shop.url, "dead-letters list")
    assert "at 50" not in told(shop.url, "dead-letters list clicks")
    assert [each["gate"] for each in exported(shop, "clicks")] == ["clicks"]


def test_several_letters_are_dropped_at_once(shop: Shop) -> None:
    add_letters(shop, 1)
    told(shop.url, "dead-letters drop 1 2 --why tests")
    assert [letter(shop.url, number).status for number in (1, 2)] == [DeadLetterStatus.DROPPED] * 2


@pytest.mark.parametrize("arguments", [["drop", "1"], ["drop", "--why", "x"], ["drop", "one"]])
def test_a_drop_without_id_or_reason_is_a_usage_error(shop: Shop, arguments: list[str]) -> None:
    assert invoke(shop.url, "dead-letters", *arguments).exit_code == 2


@pytest.fixture
def orders(topic: TopicFactory) -> Topic:
    return topic(prefix="orders")


@pytest.fixture
def url(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with the letters 1 and 2, in whose folder are functions that edit them."""
    with Ledger.open(shop.url) as ledger:
        batch = ledger.batches.begin(planned(70, 71))
        second = DeadLetter("orders", 0, 70, b"other", b"2", None, 0, 0, LETTER.error)
        convict(ledger, batch.batch_key, second)
    (tmp_path / "letter_changes.py").write_text(EDITS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "letter_changes", raising=False)
    return shop.url


def send(topic: Topic, options: str) -> str:
    """The command that sends to a topic of the shared broker."""
    servers = f"kafka.bootstrap.servers={topic.bootstrap_servers}"
    return f"dead-letters send --topic {topic.name} --option {servers} {options}"


def test_all_that_wait_are_sent_with_where_they_were(url: str, orders: Topic) -> None:
    assert told(url, send(orders, "--all orders")).splitlines() == [
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
    assert (kept.status, kept.resolution) == (
        DeadLetterStatus.SENT,
        f"sent to {orders.name}-0 at 0",
    )
    assert told(url, send(orders, "--all")) == "0 dead letters sent.\n"
    assert len(records_in(orders)) == 2


def test_a_letter_is_edited_on_its_way(url: str, orders: Topic) -> None:
    told(url, send(orders, "2 --edit letter_changes:mend"))
    (sent,) = records_in(orders)
    assert sent.value() == b"2!"
    how = f"sent to {orders.name}-0 at 0, edited by letter_changes:mend"
    assert letter(url, 2).resolution == how
    assert letter(url, 2).letter.value == b"2"
    assert letter(url, 1).status is DeadLetterStatus.WAITING


def test_the_value_of_one_letter_comes_from_a_file(url: str, orders: Topic, tmp_path: Path) -> None:
    (tmp_path / "fixed.json").write_bytes(b"3\xff")
    told(url, send(orders, "2 --value fixed.json"))
    (sent,) = records_in(orders)
    assert (sent.key(), sent.value()) == (b"other", b"3\xff")
    kept = letter(url, 2)
    assert (kept.letter.value, kept.sent_value) == (b"2", b"3\xff")
    for wrong in ("1 2 --value fixed.json", "--all --value fixed.json", "1 --value none.json"):
        assert "--value " in str(invoke(url, *send(orders, wrong).split()).exception)
    assert letter(url, 1).status is DeadLetterStatus.WAITING


def test_what_an_edit_leaves_out_still_waits(url: str, orders: Topic) -> None:
    lines = told(url, send(orders, "2 1 2 --edit letter_changes:only_first")).splitlines()
    assert lines[-1] == "1 dead letter sent, 1 skipped by letter_changes:only_first."
    statuses = [letter(url, number).status for number in (1, 2)]
    assert statuses == [DeadLetterStatus.SENT, DeadLetterStatus.WAITING]


def test_what_the_brokers_have_is_sent_though_another_letter_is_refused(
    url: str, topic: TopicFactory
) -> None:
    small = topic(config={"max.message.bytes": "320"})
    long = DeadLetter("orders", 0, 71, None, b"x" * 1_000, None, 0, 0, LETTER.error)
    with Ledger.open(url) as ledger:
        convict(ledger, ledger.batches.begin(planned(71, 72)).batch_key, long)
    ended = invoke(url, *send(small, "2 3").split())
    assert ended.stdout == f"Dead letter 2 is sent to {small.name}-0 at 0.\n"
    assert "too large" in str(ended.exception)
    statuses = [letter(url, number).status for number in (2, 3)]
    assert statuses == [DeadLetterStatus.SENT, DeadLetterStatus.WAITING]
