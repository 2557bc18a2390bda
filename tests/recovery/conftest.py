"""The ledgers of stories of crashes."""

from collections.abc import Iterator

import pytest
from tests.ledger.servers import postgresql_server


@pytest.fixture
def postgresql() -> Iterator[str]:
    with postgresql_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """Of an empty ledger; that of the job's folder where it is empty."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql"))
