from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.queries import stop_queries
from tests.journal.samples import append, journal_at

from headrace.journal import Journal


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test() -> Iterator[None]:
    yield
    stop_queries()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0."""
    made = journal_at(tmp_path / "orders")
    append(made, 3, 7, 2)
    return made
