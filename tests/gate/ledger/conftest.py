"""Ledgers to test with: on SQLite, and on a PostgreSQL server that runs for the whole session."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Executable
from tests.services.ledgers import new_ledger
from tests.services.postgresql import NewUrl

from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.ledger import Ledger
from headrace.testing import ManualClock

Execute = Callable[[Executable], None]
Ordinary = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def new_sqlite_url(tmp_path: Path) -> NewUrl:
    """Makes the URL of a SQLite file that does not exist yet."""
    numbers = itertools.count()
    return lambda: f"sqlite:///{tmp_path}/ledger_{next(numbers)}.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest) -> NewUrl:
    """Makes the URL of a ledger that does not exist yet, on each kind of database in turn."""
    made: NewUrl = request.getfixturevalue(f"new_{request.param}_url")
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(new_url: NewUrl) -> str:
    return new_url()


@pytest.fixture
def ledger(url: str, clock: ManualClock) -> Iterator[Ledger]:
    """An empty ledger with the gate ``orders``."""
    with new_ledger(url, clock=clock, database_clock=clock) as opened:
        opened.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        yield opened


@pytest.fixture
def time() -> ManualClock:
    """The time of ledgers that wait for their database."""
    return ManualClock()


@pytest.fixture
def execute(url: str) -> Execute:
    """Changes the database behind the ledger's back."""

    def execute(statement: Executable) -> None:
        engine = sqlalchemy.create_engine(normalize_url(url))
        with engine.begin() as connection:
            connection.execute(statement)
        engine.dispose()

    return execute


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can look into, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def ordinary() -> Ordinary:
    """Within ``with ordinary():`` a file's mode counts, even where root runs the tests."""

    @contextmanager
    def ordinary() -> Iterator[None]:
        user = os.geteuid()
        os.seteuid(user or 65_534)  # by custom that user's name is nobody
        try:
            yield
        finally:
            os.seteuid(user)

    return ordinary
