"""A gate whose handler raises again and again, as ``status``, ``--json`` and its page show it."""

from html import unescape
from pathlib import Path

import pytest
from tests.cli.outcomes import rows, told
from tests.dashboard.histories import add_batch, add_dead_letter
from tests.services.ledgers import new_ledger

from headrace.core.timing import wall_clock_ms
from headrace.dashboard.fleet import Fleet
from headrace.dashboard.gate_page import gate_page
from headrace.dashboard.live import LedgerLink
from headrace.dashboard.pages import Site, environment
from headrace.ledger import Ledger
from headrace.status.states import HISTORY

HINT = (
    "The handler raised on single records in 11 of the last 12 batches (last ValueError: no number"
    " for <b>), and is run many times to find them:"
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger in which 11 batches have a bad record each, and the newest has none."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with new_ledger(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        for number in range(11):
            add_dead_letter(ledger, start=number, error="no number for <b>")
        add_batch(ledger, start=100, lag=100)
    return url


def test_status_gives_a_hint_and_exits_as_before(url: str) -> None:
    shown = " ".join(told(url, "status --gate orders").replace("│", " ").split())
    assert HINT in shown
    assert "headrace dead-letters list --gate orders" in shown
    (gate,) = rows(url, "status")
    error = "ValueError: no number for <b>"
    assert gate["isolated"] == {"batches": 11, "of": 12, "error": error}
    assert [each["urgency"] for each in gate["needs"] if each["kind"] == "bad records"] == [2]


def test_the_page_of_the_gate_gives_it_as_text_with_a_link_to_what_failed(url: str) -> None:
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        view = gate_page(site, "orders", {}).look(ledger, Fleet(), wall_clock_ms())
    state = view.regions["state"]
    assert HINT in unescape(state)
    assert "<b>" not in state
    (line,) = [each for each in state.splitlines() if "raised on single records" in each]
    assert 'href="/failures?gate=orders"' in line
    assert "urgency-2" in line


def test_bad_records_of_batches_that_are_not_shown_any_more_do_not_count(url: str) -> None:
    with Ledger.open(url) as ledger:
        for number in range(2, HISTORY):
            add_batch(ledger, start=number * 100, lag=100)
    (gate,) = rows(url, "status")
    assert (gate["isolated"]["batches"], gate["isolated"]["of"]) == (1, HISTORY)
    assert "bad records" not in [each["kind"] for each in gate["needs"]]
