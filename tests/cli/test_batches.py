"""``headrace batches``: what it lists, one batch in full, and how it ends."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Complain
from tests.cli.outcomes import ERROR, LETTER, NOW_MS, Shop, invoke, planned

from headrace.ledger import Kind, Ledger, Status

NEWEST_FIRST = ("open", "good_part", "bad_part", "split", "dead", "left", "busy", "failed", "good")


def listed(shop: Shop, *arguments: str) -> list[str]:
    """Which batches are listed, in which order."""
    names = {getattr(shop, name): name for name in NEWEST_FIRST}
    result = invoke(shop.url, "batches", "--json", *arguments)
    assert result.exit_code == 0
    return [names[json.loads(each)["schedule_id"]] for each in result.stdout.splitlines()]


def test_batches_are_filtered(shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        ledger.declare_gate("clicks", interval_ms=1, source="kafka", estimator="pid")
    assert listed(shop) == list(NEWEST_FIRST)
    assert listed(shop, "--status", "dead") == ["bad_part", "dead"]
    assert listed(shop, "--status", "failed", "--status", "backfilling") == [
        *("left", "busy", "failed")
    ]
    assert listed(shop, "--limit", "2") == ["open", "good_part"]
    assert listed(shop, "--gate", "clicks") == []
    assert listed(shop, "--kind", "backfill") == []
    since, until = "2023-11-14T22:13:22Z", "2023-11-14T22:13:24Z"
    assert listed(shop, "--since", since, "--until", until) == ["busy", "failed"]
    assert listed(shop, "--since", "1h") == []


def test_a_list_that_is_cut_says_so(shop: Shop) -> None:
    assert "newest 3; --limit shows more" in invoke(shop.url, "batches", "--limit", "3").stdout
    assert "shows more" not in invoke(shop.url, "batches", "--limit", "9").stdout


def test_batches_of_several_gates_name_theirs(shop: Shop) -> None:
    assert "gate" not in invoke(shop.url, "batches").stdout
    with Ledger.open(shop.url, clock=lambda: NOW_MS) as ledger:
        ledger.declare_gate("clicks", interval_ms=1, source="kafka", estimator="pid")
        ledger.begin(planned(0, 10, gate="clicks"))
    everything = invoke(shop.url, "batches", width=80).stdout.splitlines()
    assert everything[0].split()[1] == "gate"
    assert everything[-1].split()[1] == "clicks"
    assert "gate" not in invoke(shop.url, "batches", "--gate", "clicks").stdout


def test_json_is_the_row_of_each_batch(shop: Shop) -> None:
    lines = invoke(shop.url, "batches", "--json", "--status", "failed").stdout.splitlines()
    (failed,) = map(json.loads, lines)
    assert failed["schedule_id"] == shop.failed
    assert (failed["gate"], failed["status"], failed["kind"]) == ("orders", "failed", "live")
    assert failed["created_time_ms"] == NOW_MS + 2_000
    assert failed["error"] == {
        "error_class": ERROR.error_class,
        "message": ERROR.message,
        "trace": ERROR.trace,
    }


def test_one_batch_is_told_with_its_parts_and_a_part_with_its_batch(shop: Shop) -> None:
    whole = invoke(shop.url, "batches", shop.split).stdout
    assert "split into 2 children" in whole
    assert shop.bad_part[:8] in whole
    assert shop.good_part[:8] in whole
    part = invoke(shop.url, "batches", shop.bad_part).stdout
    assert f"parent      {shop.split}" in part
    full = json.loads(invoke(shop.url, "batches", shop.split, "--json").stdout)
    assert [each["schedule_id"] for each in full["children"]] == [shop.bad_part, shop.good_part]
    assert full["ranges"] == [
        {
            "topic": "orders",
            "partition": 0,
            "start": 50,
            "until": 60,
            "latest": 100,
            "reason": "share",
            "topic_id": None,
        }
    ]


@pytest.mark.parametrize(
    "trick", ["\x1b[2J", "[/red]", "[bold]", "\r", "\N{RIGHT-TO-LEFT OVERRIDE}"]
)
def test_what_a_terminal_or_its_painter_would_obey_is_shown_and_not_done(
    tmp_path: Path, trick: str
) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        for gate in (f"a{trick}", "b"):
            ledger.declare_gate(gate, interval_ms=1, source="kafka", estimator="pid")
        first = ledger.begin(planned(0, 10, f"a{trick}", run_id=trick)).schedule_id
        ledger.fail(first, ValueError(f"no {trick}"))
        second = ledger.begin(planned(10, 11, f"a{trick}", run_id=trick)).schedule_id
        ledger.bury_record(second, replace(LETTER, topic=f"t{trick}", value=trick.encode()))
    for command in (
        ["batches"],
        ["batches", first],
        ["failures"],
        ["verify"],
        ["dead-letters", "list"],
    ):
        shown = invoke(url, *command)
        assert isinstance(shown.exception, SystemExit | None)
        printable = "".join(c if c.isprintable() else " " for c in trick)
        assert printable in shown.stdout
        assert (trick in shown.stdout) == trick.isprintable()


def test_no_batch_is_said_in_words(tmp_path: Path, shop: Shop) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    Ledger.open(url).close()
    assert invoke(url, "batches").stdout == "The ledger has no batch yet.\n"
    assert invoke(shop.url, "batches", "--since", "1h").stdout == "There is no such batch.\n"
    assert invoke(shop.url, "batches", "--since", "1h", "--json").stdout == ""


def test_the_beginning_of_several_keys_is_refused(
    shop: Shop,
    complain: Complain,
) -> None:
    with Ledger.open(shop.url) as ledger:
        keys = [ledger.begin(planned(at, at + 1)).schedule_id for at in range(100, 120)]
    ((digit, _),) = Counter(key[0] for key in keys).most_common(1)  # 20 keys, 16 digits
    said = complain(shop.url, "batches", digit)
    assert f"has several batches whose key begins with '{digit}', such as" in said
    assert "give more digits" in said


@pytest.mark.parametrize("limit", ["0", "-1", "99999999999999999999", "many"])
def test_a_limit_that_is_none_is_a_usage_error(shop: Shop, limit: str) -> None:
    assert invoke(shop.url, "batches", "--limit", limit).exit_code == 2


def test_a_status_or_kind_that_does_not_exist_is_a_usage_error(shop: Shop) -> None:
    refused = invoke(shop.url, "batches", "--status", "lost")
    assert refused.exit_code == 2
    assert all(status in refused.output for status in Status)
    assert invoke(shop.url, "batches", "--kind", "dead").exit_code == 2
    assert all(kind in invoke(shop.url, "batches", "--help").output for kind in Kind)
