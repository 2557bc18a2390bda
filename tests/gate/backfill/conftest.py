"""A ledger in a SQLite file, and what works off its failed batches."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.ledgers import new_ledger

from headrace.gate.ledger.ledger import Ledger
from headrace.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url: str, clock: ManualClock) -> Iterator[Ledger]:
    """An empty ledger with the gate ``orders``."""
    with new_ledger(url, clock=clock, database_clock=clock) as opened:
        opened.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        yield opened
