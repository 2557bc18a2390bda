"""Connections to a server: as many stay open as are used all the time, and each speaks UTF-8."""

import itertools
from contextlib import ExitStack

import psycopg
import pytest
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.postgresql import UNUSED_S
from headrace.operate.cli import doctor
from headrace.operate.cli.doctor import Level
from headrace.testing import ManualClock

pytestmark = pytest.mark.nightly

_numbers = itertools.count()


@pytest.fixture
def url(postgresql: str) -> str:
    """The URL of a database of its own."""
    name = f"counted_{next(_numbers)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgresql.replace("/postgres?", f"/{name}?")


def connections(url: str) -> int:
    """The number of the ledger's."""
    with psycopg.connect(url) as connection:
        (found,) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'headrace'"
        ).fetchone() or (0,)
    return int(found)


def test_connections_that_were_needed_once_are_closed(url: str) -> None:
    clock = ManualClock()
    database = Database(url, read_only=False, timeouts=Timeouts(clock=clock))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(database.reading()).exec_driver_sql("SELECT 1")
        assert connections(url) == 3
    for _ in range(2):
        clock.sleep(UNUSED_S + 1)
        with database.reading() as connection:
            connection.exec_driver_sql("SELECT 1")
    wait_until(lambda: connections(url) == 1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(database.reading()).exec_driver_sql("SELECT 1")
    database.close()
    wait_until(lambda: connections(url) == 0)


def test_a_connection_is_not_closed_while_it_is_lent(url: str) -> None:
    clock = ManualClock()
    database = Database(url, read_only=False, timeouts=Timeouts(clock=clock))
    with database.reading() as lent:
        for _ in range(3):
            clock.sleep(UNUSED_S + 1)
            with database.reading() as connection:
                connection.exec_driver_sql("SELECT 1")
        assert lent.exec_driver_sql("SELECT 1").scalar_one() == 1
    database.close()


def test_a_connection_speaks_utf8_whatever_the_machine_and_the_role_ask_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with Ledger.open(f"{url}&client_encoding=SQL_ASCII") as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        ledger.operator_limits.pause("orders", by="ops", why="日本")
        hold = ledger.operator_limits.of("orders").hold
        assert hold is not None
        assert hold.why == "日本"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_that_cannot_store_every_character_is_refused(
    postgresql: str, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode()
        )
    url = postgresql.replace("/postgres?", f"/{name}?")
    expected = f"The ledger's database {name!r} has the encoding {encoding}, .* ENCODING 'UTF8'"
    with pytest.raises(LedgerError, match=expected):
        Ledger.open(url)
    check = doctor.check_ledger(url)
    assert (check.level, check.advice[:6]) == (Level.PROBLEM, "create")
