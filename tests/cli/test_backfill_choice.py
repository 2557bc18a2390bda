"""Which batches ``headrace backfill`` runs, and which it refuses."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Complain
from tests.cli.failed import add_failed, one_range
from tests.cli.outcomes import Shop, invoke

from headrace.control import OffsetRange
from headrace.ledger import Ledger
from headrace.source.connector import Connector

HANDLER = ["--handler", "operator:is_"]


def planned(shop: Shop, *arguments: str) -> list[str]:
    """The keys that a dry run would run, without a look at Kafka."""
    result = invoke(shop.url, "backfill", *HANDLER, "--dry-run", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(each)["schedule_id"] for each in result.stdout.splitlines()]


@pytest.fixture
def nothing_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connector, "gone", lambda _connector, _options, _ranges: [])


@pytest.mark.usefixtures("nothing_gone")
def test_what_failed_is_chosen_by_key_by_filter_or_as_a_whole(shop: Shop) -> None:
    assert planned(shop, "--all") == [shop.failed, shop.left]
    assert planned(shop, shop.left[:9], shop.failed.upper(), shop.left) == [shop.failed, shop.left]
    assert planned(shop, "--gate", "orders") == [shop.failed, shop.left]
    assert planned(shop, "--gate", "orders", "--all") == [shop.failed, shop.left]
    assert planned(shop, "--status", "failed") == [shop.failed]
    assert planned(shop, "--status", "backfilling") == [shop.left]
    assert planned(shop, "--since", "2023-11-14T22:13:24Z") == [shop.left]
    assert planned(shop, "--until", "2023-11-14T22:13:24Z") == [shop.failed]
    assert planned(shop, "--since", "1h") == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("good", "is success, so it is processed"),
        ("split", "was split; name the children that failed"),
        ("busy", "is run by another backfill, which has it at least until"),
        ("dead", "is dead (DataLossError: orders-0 [40, 50) has left Kafka.), which is final"),
        ("bad_part", "sent again with `headrace dead-letters send`"),
        ("open", "is in_progress, so the live stream runs it"),
    ],
)
def test_a_batch_that_cannot_be_run_is_refused_with_what_to_do(
    shop: Shop,
    name: str,
    said: str,
    complain: Complain,
) -> None:
    arguments = ["backfill", *HANDLER, shop.failed, getattr(shop, name)]
    message = complain(shop.url, *arguments)
    assert message.startswith(f"headrace: Batch {getattr(shop, name)} of gate 'orders' ")
    assert said in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "in one way"),
        (["--all", "--since", "1h"], "in one way"),
        (["--all", "--gate", "orders", "--status", "failed"], "in one way"),
        (["--all", "--gate", "clicks"], "has no gate 'clicks'"),
        (["ab", "--all"], "in one way"),
        (["ab", "--since", "1h"], "in one way"),
        (["xyz"], "has no batch 'xyz'"),
        (["0"], "has no batch '0'"),
        (["--gate", "clicks"], "has no gate 'clicks'"),
        (["--status", "dead"], "--status is 'dead', but only batches that are failed or"),
        (["--since", "soon"], "--since is 'soon'"),
        (["--all", "--option", "hunter2"], "--option is not NAME=VALUE"),
        (["--all", "--option", "starting=1"], "There is no option starting"),
        (["--all", "--handler", "json:missing"], "has no 'missing'"),
        (["--all", "--transform", "nowhere:f"], "No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_understood_is_told_in_one_line(
    shop: Shop,
    arguments: list[str],
    said: str,
    complain: Complain,
) -> None:
    whole = ["backfill", *HANDLER, *arguments]
    assert said in complain(shop.url, *whole)


def test_a_ledger_that_is_not_there_is_not_made(
    tmp_path: Path,
    complain: Complain,
) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    message = complain(url, "backfill", *HANDLER, "--all")
    assert "none.db" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_gone")
def test_batches_of_several_gates_are_not_run_by_one_handler(
    shop: Shop,
    complain: Complain,
) -> None:
    with Ledger.open(shop.url) as ledger:
        add_failed(ledger, "clicks", OffsetRange("clicks", 0, 0, 5), "localhost:9092")
    message = complain(shop.url, "backfill", *HANDLER, "--all")
    assert "of the gates 'clicks', 'orders'" in message
    assert "--gate" in message
    assert planned(shop, "--all", "--gate", "orders") == [shop.failed, shop.left]


@pytest.mark.usefixtures("nothing_gone")
def test_a_part_of_a_batch_that_is_run_is_not_run_by_itself_too(shop: Shop) -> None:
    halves = [one_range(OffsetRange("orders", 0, start, start + 5)) for start in (30, 35)]
    with Ledger.open(shop.url) as ledger:
        taken = ledger.take(shop.left, "me", 1)
        assert taken is not None
        for part in ledger.split(shop.left, halves, "me", 1):
            ledger.fail(part.schedule_id, ValueError("no"))
    assert planned(shop, "--all") == [shop.failed, shop.left]


def test_nothing_to_do_is_fine(shop: Shop) -> None:
    result = invoke(shop.url, "backfill", *HANDLER, "--since", "1h", "--json")
    assert result.exit_code == 0
    assert "nothing to do" in result.stderr
    assert result.stdout == ""
