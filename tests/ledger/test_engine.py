import select
import socket
from collections.abc import Callable

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.schema import DropTable
from tests.ledger.conftest import Execute, NewUrl
from tests.ledger.samples import a_batch, everything_of
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.ledger import Ledger, postgresql_server
from headrace.ledger.tables import metadata


def refusal(url: str) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(url)
    assert str(caught.value).count("\n") == 0
    return caught.value


def test_a_server_that_does_not_run_is_named_with_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = refusal(f"postgresql://app:hunter2@127.0.0.1:{port}/orders")
    assert str(error).startswith(
        f"The ledger postgresql+psycopg://app:***@127.0.0.1:{port}/orders cannot be reached: "
    )
    assert "Connection refused; see that its server runs" in str(error)
    assert "hunter2" not in everything_of(error)


@pytest.mark.timeout(60)  # the driver's own patience is longer
@pytest.mark.parametrize(("default_s", "option"), [(2, ""), (600, "?connect_timeout=2")])
def test_a_server_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, default_s: int, option: str
) -> None:
    monkeypatch.setattr(postgresql_server, "CONNECT_TIMEOUT_S", default_s)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://app:hunter2@127.0.0.1:{silent.getsockname()[1]}/orders"
        error = refusal(url + option)
    assert "cannot be reached: connection timeout expired; see" in str(error)
    assert "hunter2" not in everything_of(error)


def test_an_option_that_there_is_not_is_named() -> None:
    error = refusal("postgresql://app:hunter2@127.0.0.1/orders?sslmoed=require")
    assert 'cannot be used: invalid connection option "sslmoed".' in str(error)
    assert "hunter2" not in everything_of(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://127.0.0.1/orders?sslpassword=hunter2&connect_timeout=hunter2",
        "postgresql://app:hunter2@127.0.0.1/orders?plugin=hunter2",
    ],
)
def test_a_secret_that_the_driver_quotes_is_hidden_in_the_whole_chain(url: str) -> None:
    error = refusal(url)
    told = str(error).partition(" cannot be ")[2]
    assert "***" in told
    assert "hunter2" not in told
    assert error.__cause__ is None
    assert error.__context__ is None


def test_an_error_without_secrets_keeps_its_cause() -> None:
    error = refusal("postgresql://127.0.0.1/orders?sslmoed=require")
    assert isinstance(error.__cause__, sqlalchemy.exc.ProgrammingError)


def test_a_ledger_is_shown_without_its_password(postgresql: str) -> None:
    # The server trusts whoever reaches it, so that any password will do.
    url = postgresql.replace("postgres:", "postgres:hunter2")
    with Ledger.open(url) as ledger:
        assert "hunter2" not in repr(ledger)
        assert "postgres:***@" in repr(ledger)
        with pytest.raises(LedgerError) as caught:
            ledger.begin(a_batch())
    assert "hunter2" not in everything_of(caught.value)


CALLS: dict[str, Callable[[Ledger], object]] = {
    "gates": Ledger.gates,
    "rate": lambda ledger: ledger.rate("orders"),
    "begin": lambda ledger: ledger.begin(a_batch()),
    "succeed": lambda ledger: ledger.succeed("a batch"),
    "prune": lambda ledger: ledger.prune(0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_whatever_is_wrong_with_the_database_is_a_ledger_error(
    url: str, execute: Execute, call: Callable[[Ledger], object]
) -> None:
    with Ledger.open(url) as ledger:
        for table in reversed(metadata.sorted_tables):
            execute(DropTable(table))
        with pytest.raises(LedgerError, match=r"cannot be used: .*(gate|control)"):
            call(ledger)


def server_process(ledger: Ledger) -> int:
    """Who serves the ledger's only connection."""
    with ledger._database.reading() as connection:
        served_by: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return served_by


def test_a_connection_that_the_server_has_cut_is_replaced(
    new_postgresql_url: NewUrl, postgresql: str
) -> None:
    with Ledger.open(new_postgresql_url()) as ledger:
        cut = server_process(ledger)
        with psycopg.connect(postgresql, autocommit=True) as connection:
            ended = connection.execute("SELECT pg_terminate_backend(%s, 60000)", [cut])
            assert ended.fetchall() == [(True,)]
        ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
        assert ledger.last_begun("orders") is None
        assert server_process(ledger) != cut


def test_a_connection_on_which_the_server_only_told_something_is_kept(
    new_postgresql_url: NewUrl,
) -> None:
    url = new_postgresql_url()
    with Ledger.open(url) as ledger, psycopg.connect(url, autocommit=True) as other:
        kept = server_process(ledger)
        with ledger._database.reading() as connection:
            connection.exec_driver_sql("LISTEN news")
            file = connection.connection.fileno()
        other.execute("NOTIFY news")
        wait_until(lambda: select.select([file], [], [], 0)[0] != [])
        assert ledger.gates() == ()
        assert server_process(ledger) == kept
        assert select.select([file], [], [], 0)[0] == []


@pytest.mark.parametrize(("option", "expected"), [("", "30000"), ("&tcp_user_timeout=900", "900")])
def test_a_server_that_falls_silent_is_not_listened_to_for_hours(
    new_postgresql_url: NewUrl, option: str, expected: str
) -> None:
    with (
        Ledger.open(new_postgresql_url() + option) as ledger,
        ledger._database.reading() as connection,
    ):
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.get_parameters()["tcp_user_timeout"] == expected
