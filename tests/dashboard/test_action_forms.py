import pytest
from tests.dashboard.histories import a_ledger, add_dead_letter

from headrace.dashboard.action_forms import perform
from headrace.dashboard.ledger_link import LedgerLink
from headrace.dashboard.pages import Site
from headrace.dashboard.rendering import environment
from headrace.errors import OptionError
from headrace.ledger import DeadLetterStatus, Ledger


@pytest.mark.parametrize("action", ["drop-letters", "send-letters"])
def test_a_dead_letter_is_not_that_of_another_gate(url: str, action: str) -> None:
    a_ledger(url, "returns", batches=0)
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger)
        (record,) = ledger.dead_letters.oldest("orders")
        form = {"gate": "returns", "letter": str(record.dead_letter_id), "why": "a test"}
        with pytest.raises(OptionError, match="No such dead letter waits"):
            perform(site, action, form, "Ada")
        assert ledger.repairs.newest() == ()
        (record,) = ledger.dead_letters.oldest("orders")
        assert record.status is DeadLetterStatus.WAITING
