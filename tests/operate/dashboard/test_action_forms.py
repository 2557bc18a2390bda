import pytest
from tests.operate.dashboard.histories import a_ledger, add_dead_letter, add_failure

from headrace.errors import OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetterStatus
from headrace.operate.dashboard.action_forms import perform
from headrace.operate.dashboard.live import LedgerLink
from headrace.operate.dashboard.pages import Site, environment


@pytest.mark.parametrize("action", ["drop-letters", "send-letters"])
def test_a_dead_letter_is_not_that_of_another_gate(url: str, action: str) -> None:
    a_ledger(url, "returns", batches=0)
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger)
        (record,) = ledger.dead_letters.oldest("orders")
        form = {"gate": "returns", "letter": str(record.dead_letter_id), "why": "a test"}
        with pytest.raises(OptionError, match="dead letter does not wait any more"):
            perform(site, action, form, "Ada")
        assert ledger.operator_limits.history(None) == ()
        (record,) = ledger.dead_letters.oldest("orders")
        assert record.status is DeadLetterStatus.WAITING


BULK = {"gate": "orders", "why": "a test", "error": "ValueError"}


@pytest.mark.integration
@pytest.mark.parametrize("action", ["drop-letters", "send-letters", "retry-alike"])
@pytest.mark.parametrize(
    "form",
    [
        *({"letter": each} for each in ("12a", "-1", str(10**20), "", "٣")),
        {},
        {"number": "1", "last": "9"},
        {"error": "ValueError", "last": "9"},
        {"error": "ValueError", "number": "1"},
        {"error": "ValueError", "number": "2", "last": str(10**15)},
        {"error": "ValueError", "number": "1", "last": "0"},
        {"error": "ValueError", "number": "one", "last": "9"},
        {"letter": "2", "value": "x"},
    ],
)
def test_what_a_form_does_not_say_clearly_does_nothing(
    url: str, action: str, form: dict[str, str]
) -> None:
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger)
        key = add_failure(ledger, start=30_000)
        with pytest.raises(OptionError):
            perform(site, action, {"gate": "orders", "why": "a test", **form}, "Ada")
        assert ledger.operator_limits.history(None) == ()
        (record,) = ledger.dead_letters.oldest("orders")
        assert record.status is DeadLetterStatus.WAITING
        batch = ledger.batches.get(key)
        assert batch is not None and batch.retry_ms is None


@pytest.mark.parametrize(
    "form",
    [
        {**BULK, "number": "1", "last": "1", "value": "x"},
        {"gate": "orders", "why": "a test", "letter": "1", "value": '{"amount": "12,50"}'},
        {"gate": "orders", "why": "a test", "letter": "2", "value": "x"},
    ],
)
def test_a_value_that_is_not_clearly_a_correction_sends_nothing(
    url: str, form: dict[str, str]
) -> None:
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger)
        if form.get("letter") == "2":
            add_dead_letter(ledger, start=20_001, value=b"\xff")
        with pytest.raises(OptionError, match="value"):
            perform(site, "send-letters", form, "Ada")
        assert ledger.operator_limits.history(None) == ()
        assert {each.status for each in ledger.dead_letters.oldest()} == {DeadLetterStatus.WAITING}


def test_a_bulk_action_is_about_what_was_shown_and_nothing_that_has_come_since(url: str) -> None:
    site = Site(environment(), LedgerLink(url), {})
    with Ledger.open(url) as ledger:
        add_dead_letter(ledger, start=20_000)
        (shown,) = ledger.dead_letters.oldest("orders")
        add_dead_letter(ledger, start=20_001)
        form = {**BULK, "number": "1", "last": str(shown.dead_letter_id)}
        assert "1 dead letter of gate orders is dropped." in perform(
            site, "drop-letters", form, "Ada"
        )
        with pytest.raises(
            OptionError, match="showed 1 dead letter with this error, and now there are 0"
        ):
            perform(site, "drop-letters", form, "Ada")
        statuses = [each.status for each in ledger.dead_letters.oldest("orders")]
        assert statuses == [DeadLetterStatus.DROPPED, DeadLetterStatus.WAITING]
