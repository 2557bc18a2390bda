"""``headrace prune``: what is old and done with goes, and nothing else."""

import json
from pathlib import Path

import pytest
from tests.cli.outcomes import Shop, invoke, planned

from headrace.ledger import Ledger
from headrace.ledger.base import wall_clock_ms


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger of three batches that ended long ago, and one that ended just now."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    for clock, starts in ((lambda: 1_000, (0, 10, 20)), (wall_clock_ms, (30,))):
        with Ledger.open(url, clock=clock) as ledger:
            ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
            for start in starts:
                ledger.succeed(ledger.begin(planned(start, start + 10)).schedule_id)
    return url


def test_what_ended_long_ago_is_deleted_and_verify_counts_it(url: str) -> None:
    done = invoke(url, "prune", "--older-than", "30 days")
    assert (done.exit_code, done.stdout) == (0, "Deleted: 3 batches and 0 rates.\n")
    (span,) = json.loads(invoke(url, "verify", "--json").stdout)["spans"]
    assert (span["pruned"], span["processed"]) == (30, 10)
    again = invoke(url, "prune", "--older-than", "30 days", "--json")
    assert json.loads(again.stdout) == {"batches": 0, "rates": 0}


def test_what_is_not_made_good_stays_whatever_its_age(shop: Shop) -> None:
    before = invoke(shop.url, "failures", "--json").stdout
    assert invoke(shop.url, "prune", "--older-than", "1 ms").exit_code == 0
    assert invoke(shop.url, "failures", "--json").stdout == before != ""
