"""The ledgers of stories of crashes."""

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty ledger; an empty string for the ledger of the job's folder."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("new_postgresql_url")())
