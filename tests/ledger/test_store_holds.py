"""How a gate is held back, on each kind of database."""

import pytest
from tests.ledger.samples import a_sample

from headrace.control import RateLimit
from headrace.ledger import Admission, Ledger

BOUND = RateLimit(250.0, "enrich", 2.0, 1000.0)


def test_a_gate_that_nobody_holds_has_its_rate_alone(ledger: Ledger) -> None:
    assert ledger.admission("orders") == Admission(None, None)
    assert ledger.admission("unheard of") == Admission(None, None)
    ledger.publish_rate(a_sample(5, 120.5))
    assert ledger.admission("orders") == Admission(120.5, None)
    assert ledger.pressures("orders") is None


def test_a_hold_is_read_with_the_rate_until_it_is_taken_back(ledger: Ledger) -> None:
    ledger.publish_rate(a_sample(5, 120.5))
    ledger.hold("orders", BOUND, 60_000, "heard")
    assert ledger.admission("orders") == Admission(120.5, BOUND)
    ledger.hold("orders", None, 60_000, "heard more")
    assert ledger.admission("orders") == Admission(120.5, None)
    assert ledger.pressures("orders") == "heard more"


@pytest.mark.parametrize("lease_ms", [0, -60_000])
def test_a_hold_whose_lease_is_over_holds_nothing(ledger: Ledger, lease_ms: int) -> None:
    ledger.hold("orders", BOUND, lease_ms, "heard")
    assert ledger.admission("orders") == Admission(None, None)
    assert ledger.pressures("orders") == "heard"


def test_a_gate_that_is_declared_again_is_still_held(ledger: Ledger) -> None:
    ledger.hold("orders", BOUND, 60_000, "heard")
    ledger.declare_gate("orders", interval_ms=2_000, source="journal", estimator="other")
    assert ledger.admission("orders").held == BOUND


def test_holding_a_gate_that_is_not_declared_does_nothing(ledger: Ledger) -> None:
    ledger.hold("clicks", BOUND, 60_000, "heard")
    assert [gate.name for gate in ledger.gates()] == ["orders"]
