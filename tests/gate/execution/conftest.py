"""Fixtures of the gate's tests: a ledger of their own, and its URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.ledgers import new_ledger

from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.ledger.ledger import Ledger

GATES = ("orders", "payments")


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """A ledger with the gates ``orders`` and ``payments``, as their planners declare them."""
    with new_ledger(ledger_url) as opened:
        for name in GATES:
            opened.gates.declare(
                name,
                interval_ms=1_000,
                source="kafka",
                estimator=EstimatorSettings("pid").to_text(),
            )
        yield opened
