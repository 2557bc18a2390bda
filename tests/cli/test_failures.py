"""``headrace failures``: what it lists, and how it ends."""

import json
from pathlib import Path

import pytest
from tests.cli.outcomes import ERROR, GONE, NOW_MS, Shop, invoke, planned

from headrace.ledger import Ledger, LetterStatus

EARLIEST_FIRST = ("failed", "busy", "left", "dead")


def test_json_is_a_line_for_each_batch_and_letter(shop: Shop) -> None:
    result = invoke(shop.url, "failures", "--json")
    assert result.exit_code == 3
    *batches, letter = map(json.loads, result.stdout.splitlines())
    assert [each["what"] for each in batches] == ["batch"] * 4
    assert [each["schedule_id"] for each in batches] == [getattr(shop, n) for n in EARLIEST_FIRST]
    assert batches[0]["error"]["error_class"] == ERROR.error_class
    assert batches[3]["error"]["message"] == GONE.message
    assert (letter["what"], letter["offset"], letter["schedule_id"]) == (
        *("dead letter", 50, shop.bad_part),
    )
    assert "value" not in letter


def test_a_list_that_is_cut_says_so_and_still_fails(shop: Shop) -> None:
    result = invoke(shop.url, "failures", "--limit", "2")
    assert result.exit_code == 3
    assert "More than 2 batches, of which these are the first; --limit shows more:" in result.stdout
    assert shop.left[:8] not in result.stdout
    assert len(invoke(shop.url, "failures", "--limit", "2", "--json").stdout.splitlines()) == 3


def test_nothing_that_failed_is_0(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
        ledger.succeed(ledger.begin(planned(0, 10)).schedule_id)
        ledger.begin(planned(10, 20))
    result = invoke(url, "failures")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert "Nothing is unresolved" in result.stdout
    assert invoke(url, "failures", "--json").stdout == ""


def test_a_letter_alone_is_1_until_it_is_resolved(tmp_path: Path, shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        for key in (shop.failed, shop.left):
            ledger.take(key, "me", 1_000)
            ledger.backfilled(key, "me")
        ledger.backfilled(shop.busy, "a backfill")
        (letter,) = ledger.dead_letters()
        before = invoke(shop.url, "failures")
        ledger.resolve(letter.dead_letter_id, LetterStatus.DROPPED, "a test order")
        after = invoke(shop.url, "failures")
    assert "1 dead letter" in before.stdout
    assert "dead letter" not in after.stdout
    assert shop.dead[:8] in after.stdout
    assert (before.exit_code, after.exit_code) == (3, 3)


@pytest.mark.parametrize(
    ("asked", "batches", "letters"),
    [
        (["--error", "shop.PriceError"], ("failed", "busy", "left"), 1),
        (["--error", "PriceError"], ("failed", "busy", "left"), 1),
        (["--error", "DataLossError"], ("dead",), 0),
        (["--error", "LossError"], (), 0),
        (["--error", "%"], (), 0),
        (["--since", "2023-11-14T22:13:24Z"], ("left", "dead"), 1),
        (["--until", "2023-11-14T22:13:24Z"], ("failed", "busy"), 0),
        (["--since", "2023-11-14T22:13:24Z", "--error", "PriceError"], ("left",), 1),
    ],
)
def test_failures_of_a_time_or_because_of_an_exception_are_listed_alone(
    shop: Shop, asked: list[str], batches: tuple[str, ...], letters: int
) -> None:
    told = invoke(shop.url, "failures", "--json", *asked)
    found = [json.loads(line) for line in told.stdout.splitlines()]
    keys = [each["schedule_id"] for each in found if each["what"] == "batch"]
    assert keys == [getattr(shop, name) for name in batches]
    assert len(found) - len(keys) == letters
    assert told.exit_code == (3 if found else 0)
    if not found:
        assert invoke(shop.url, "failures", *asked).stdout == "There is no such failure.\n"


def test_one_gate_of_several_is_listed_alone(shop: Shop) -> None:
    with Ledger.open(shop.url, clock=lambda: NOW_MS) as ledger:
        ledger.declare_gate("clicks", interval_ms=1, source="kafka", estimator="pid")
        key = ledger.begin(planned(0, 10, gate="clicks")).schedule_id
        ledger.fail(key, ERROR)
    everything = invoke(shop.url, "failures").stdout
    assert "clicks" in everything
    assert "orders" in everything
    alone = invoke(shop.url, "failures", "--gate", "clicks").stdout
    assert key[:8] in alone
    assert shop.failed[:8] not in alone
    assert "dead letter" not in alone
