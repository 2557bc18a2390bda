"""Which query stands behind a gate, on each kind of database."""

from dataclasses import replace

import pytest
import sqlalchemy
from tests.ledger.conftest import Execute
from tests.ledger.samples import batch_number

from headrace.errors import GateInUseError
from headrace.ledger import GateClaim, Ledger

LEASE_MS = 60_000
BLUE = GateClaim("orders", "blue", "driver", "read", "process 1 on a", 500, "kafka", "pid")
GREEN = replace(BLUE, owner="green", described="process 2 on b", interval_ms=700)


def test_a_gate_has_one_query_and_the_second_hears_of_the_first(ledger: Ledger) -> None:
    assert ledger.claim_gate(BLUE, LEASE_MS) is None
    first = ledger.claim_gate(GREEN, LEASE_MS)
    assert first is not None
    assert (first.owner, first.driver, first.read) == ("blue", "driver", "read")
    assert first.described == "process 1 on a"
    assert 0 <= first.until_ms - first.since_ms - LEASE_MS < 5_000
    assert ledger.gate_query("orders") == first
    (declared,) = [gate for gate in ledger.gates() if gate.name == "orders"]
    assert declared.interval_ms == 500


def test_a_claim_declares_a_gate_that_is_new(ledger: Ledger) -> None:
    assert ledger.claim_gate(replace(BLUE, gate="new"), LEASE_MS) is None
    assert "new" in [gate.name for gate in ledger.gates()]


def test_a_gate_that_was_released_is_free_at_once(ledger: Ledger) -> None:
    ledger.claim_gate(BLUE, LEASE_MS)
    assert ledger.release_gate("orders", "blue")
    assert ledger.gate_query("orders") is None
    assert ledger.claim_gate(GREEN, LEASE_MS) is None
    assert not ledger.release_gate("orders", "blue")
    assert not ledger.renew_gate("orders", "blue", LEASE_MS)
    assert ledger.gate_query("orders") is not None


def test_a_query_that_claims_again_keeps_its_gate(ledger: Ledger) -> None:
    for _ in range(2):
        assert ledger.claim_gate(BLUE, LEASE_MS) is None


def test_a_lease_that_has_run_out_is_taken_over_unless_it_was_renewed(ledger: Ledger) -> None:
    ledger.claim_gate(BLUE, 0)
    assert ledger.gate_query("orders") is None
    assert ledger.renew_gate("orders", "blue", LEASE_MS)
    assert ledger.claim_gate(GREEN, LEASE_MS) is not None
    ledger.renew_gate("orders", "blue", 0)
    assert ledger.claim_gate(GREEN, LEASE_MS) is None


def test_a_query_that_is_known_to_be_gone_is_replaced_at_once(ledger: Ledger) -> None:
    ledger.claim_gate(BLUE, LEASE_MS)
    assert ledger.claim_gate(GREEN, LEASE_MS, gone="somebody else") is not None
    assert ledger.claim_gate(GREEN, LEASE_MS, gone="blue") is None


def test_a_lease_that_is_longer_than_one_can_be_counts_for_nothing(
    ledger: Ledger, execute: Execute
) -> None:
    ledger.claim_gate(BLUE, LEASE_MS)
    # The database's clock was a day ahead, and was put right.
    execute(sqlalchemy.text("UPDATE gate SET query_until_ms = query_until_ms + 86400000"))
    assert ledger.claim_gate(GREEN, LEASE_MS) is None


def test_a_batch_is_begun_by_the_query_behind_the_gate_and_by_no_other(ledger: Ledger) -> None:
    ledger.begin(batch_number(0))
    ledger.claim_gate(BLUE, LEASE_MS)
    batch = ledger.begin(batch_number(1), query="blue")
    behind = ledger.gate_query("orders")
    assert behind is not None
    assert (behind.begins, behind.run_id) == (1, batch.run_id)
    with pytest.raises(GateInUseError, match=r"taken over by another query \(process 1 on a\)"):
        ledger.begin(batch_number(2), query="green")
    assert ledger.last_begun("orders") == (2, batch)
    ledger.release_gate("orders", "blue")
    with pytest.raises(GateInUseError):
        ledger.begin(batch_number(2), query="blue")
    assert ledger.batches("orders", limit=1) == (batch,)


def test_a_query_says_where_its_checkpoint_is(ledger: Ledger) -> None:
    ledger.claim_gate(BLUE, LEASE_MS)
    ledger.locate_query("orders", "green", "/elsewhere")
    ledger.locate_query("orders", "blue", "/ckpt")
    behind = ledger.gate_query("orders")
    assert behind is not None
    assert behind.checkpoint == "/ckpt"


def test_the_runs_of_a_handler_are_counted_for_each_gate(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    assert [ledger.next_sequence("orders") for _ in range(3)] == [1, 2, 3]
    assert ledger.next_sequence("clicks") == 1
