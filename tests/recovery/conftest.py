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
    """Return the URL of an empty ledger; an empty string for the ledger of the job's folder."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql"))
