"""``headrace dead-letters``: the list, the export, and how one is dropped."""

import json
from base64 import b64decode
from dataclasses import replace

import pytest
from tests.cli.conftest import Complain
from tests.cli.outcomes import ERROR, LETTER, NOW_MS, Shop, invoke, planned

from headrace.cli import dead_letters
from headrace.ledger import Ledger, LetterStatus


def more_letters(shop: Shop, number: int) -> None:
    with Ledger.open(shop.url) as ledger:
        for offset in range(100, 100 + number):
            key = ledger.begin(planned(offset, offset + 1)).schedule_id
            ledger.bury_record(key, replace(LETTER, offset=offset, key=None, headers=None))


def test_what_was_resolved_is_listed_with_its_reason_where_it_is_asked_for(shop: Shop) -> None:
    more_letters(shop, 1)
    dropped = invoke(shop.url, "dead-letters", "drop", "1", "--reason", " a test order ")
    assert (dropped.exit_code, dropped.stdout) == (0, "Dead letter 1 is dropped.\n")
    assert "at 50" not in invoke(shop.url, "dead-letters", "list").stdout
    listed = invoke(
        shop.url, "dead-letters", "list", "--status", "dropped", "--status", "sent"
    ).stdout
    assert "at 50" in listed
    assert "dropped: a test order" in listed
    assert "at 100" not in listed
    nothing = invoke(shop.url, "dead-letters", "list", "--status", "sent").stdout
    assert nothing == "There is no dead letter that is sent.\n"


def test_the_list_as_json_leaves_the_record_out(shop: Shop) -> None:
    (letter,) = map(
        json.loads, invoke(shop.url, "dead-letters", "list", "--json").stdout.splitlines()
    )
    assert letter.pop("created_ms") > NOW_MS
    assert letter == {
        "dead_letter_id": 1,
        "schedule_id": shop.bad_part,
        "gate": "orders",
        "topic": "orders",
        "partition": 0,
        "offset": 50,
        "timestamp_ms": LETTER.timestamp_ms,
        "timestamp_type": 1,
        "error": {
            "error_class": ERROR.error_class,
            "message": ERROR.message,
            "trace": ERROR.trace,
        },
        "status": "waiting",
        "resolved_ms": None,
        "resolution": None,
    }


def test_a_list_that_is_cut_says_so(shop: Shop) -> None:
    more_letters(shop, 3)
    cut = invoke(shop.url, "dead-letters", "list", "--limit", "2").stdout
    assert "oldest 2; --limit shows more" in cut
    assert "shows more" not in invoke(shop.url, "dead-letters", "list", "--limit", "4").stdout


def test_the_export_has_every_letter_whole(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 2)
    more_letters(shop, 4)
    with Ledger.open(shop.url) as ledger:
        ledger.resolve(3, LetterStatus.SENT, "to orders-retry")
    result = invoke(shop.url, "dead-letters", "export")
    assert result.exit_code == 0
    first, *others = map(json.loads, result.stdout.splitlines())
    assert [each["offset"] for each in others] == [100, 102, 103]
    assert b64decode(first["key"]) == LETTER.key
    assert b64decode(first["value"]) == LETTER.value
    headers = [(name, value and b64decode(value)) for name, value in first["headers"]]
    assert tuple(headers) == LETTER.headers
    assert (others[0]["key"], others[0]["headers"]) == (None, None)
    assert first["error"]["trace"] == ERROR.trace
    (sent,) = invoke(shop.url, "dead-letters", "export", "--status", "sent").stdout.splitlines()
    assert json.loads(sent)["resolution"] == "to orders-retry"


def test_one_gate_of_several_is_listed_and_exported_alone(shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        ledger.declare_gate("clicks", interval_ms=1, source="kafka", estimator="pid")
        key = ledger.begin(planned(0, 1, gate="clicks")).schedule_id
        ledger.bury_record(key, replace(LETTER, topic="clicks", offset=0))
    assert "clicks-0 at 0" in invoke(shop.url, "dead-letters", "list").stdout
    assert "orders-0" not in invoke(shop.url, "dead-letters", "list", "--gate", "clicks").stdout
    (line,) = invoke(shop.url, "dead-letters", "export", "--gate", "clicks").stdout.splitlines()
    assert json.loads(line)["gate"] == "clicks"


def test_several_letters_are_dropped_at_once_or_none_if_one_cannot_be(
    shop: Shop,
    complain: Complain,
) -> None:
    more_letters(shop, 1)
    arguments = ["dead-letters", "drop", "1", "2", "77", "--reason", "tests"]
    assert "has no dead letter 77" in complain(shop.url, *arguments)
    with Ledger.open(shop.url) as ledger:
        assert len(ledger.dead_letters(statuses=[LetterStatus.WAITING])) == 2
        assert (
            invoke(shop.url, "dead-letters", "drop", "1", "2", "--reason", "tests").exit_code == 0
        )
        assert ledger.dead_letters(statuses=[LetterStatus.WAITING]) == ()


@pytest.mark.parametrize("arguments", [["drop", "1"], ["drop", "--reason", "x"], ["drop", "one"]])
def test_a_drop_without_id_or_reason_is_a_usage_error(shop: Shop, arguments: list[str]) -> None:
    assert invoke(shop.url, "dead-letters", *arguments).exit_code == 2
