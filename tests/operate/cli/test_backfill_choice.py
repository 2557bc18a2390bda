"""Which batches ``headrace backfill`` runs, and which it refuses."""

import json

import pytest
from tests.operate.cli.conftest import Complain
from tests.operate.cli.outcomes import Shop, add_failed, invoke

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.connector import Connector

HANDLER = ["--handler", "operator:is_"]


def planned(shop: Shop, *arguments: str) -> list[str]:
    """The keys that a dry run would run, without a look at Kafka."""
    result = invoke(shop.url, "backfill", *HANDLER, "--dry-run", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(each)["batch_key"] for each in result.stdout.splitlines()]


@pytest.fixture
def nothing_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connector, "gone", lambda _connector, _options, _ranges: [])


@pytest.mark.usefixtures("nothing_gone")
def test_what_failed_is_chosen_by_key_by_filter_or_as_a_whole(shop: Shop) -> None:
    assert planned(shop, "--all") == [shop.failed, shop.left]
    assert planned(shop, shop.left[:9], shop.failed.upper(), shop.left) == [shop.failed, shop.left]
    assert planned(shop, "orders") == [shop.failed, shop.left]
    assert planned(shop, "orders", "--all") == [shop.failed, shop.left]
    assert planned(shop, "--status", "failed") == [shop.failed]
    assert planned(shop, "--status", "backfilling") == [shop.left]
    assert planned(shop, "--since", "2023-11-14T22:13:24Z") == [shop.left]
    assert planned(shop, "--until", "2023-11-14T22:13:24Z") == [shop.failed]
    assert planned(shop, "--since", "1h") == []


@pytest.mark.usefixtures("nothing_gone")
def test_batches_of_several_gates_are_not_run_by_one_handler(
    shop: Shop,
    complain: Complain,
) -> None:
    with Ledger.open(shop.url) as ledger:
        add_failed(ledger, "clicks", OffsetRange("clicks", 0, 0, 5), "localhost:9092")
    message = complain(shop.url, "backfill", *HANDLER, "--all")
    assert "belong to several gates ('clicks', 'orders')" in message
    assert "name one of the gates" in message
    assert planned(shop, "--all", "orders") == [shop.failed, shop.left]


def test_nothing_to_do_is_fine(shop: Shop) -> None:
    result = invoke(shop.url, "backfill", *HANDLER, "--since", "1h", "--json")
    assert result.exit_code == 0
    assert "nothing to do" in result.stderr
    assert result.stdout == ""
