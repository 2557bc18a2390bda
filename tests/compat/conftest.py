"""What the contract suite shares: it runs on each version of Spark that Headrace supports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ledger import Ledger


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url) as opened:
        yield opened
