import select
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import URL
from sqlalchemy.schema import DropTable
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import a_batch, everything_of
from tests.services.postgresql import NewUrl
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import (
    NO_RETRIES,
    Timeouts,
    normalize_url,
    redact_url,
    without_secrets,
)
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.tables import metadata


def refusal(url: str) -> str:
    """Everything that a user could be shown of a URL's refusal."""
    with pytest.raises(LedgerError) as caught:
        normalize_url(url)
    error = caught.value
    assert error.__context__ is None
    return "".join(traceback.format_exception_only(error))


def test_a_sqlite_file_is_named_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_url("sqlite:///ledger.db") == f"sqlite:///{tmp_path}/ledger.db"
    assert normalize_url("sqlite+pysqlite:////a/b.db") == "sqlite:////a/b.db"


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg"])
def test_postgresql_is_reached_through_psycopg(driver: str) -> None:
    url = f"{driver}://app:p%40ss@db:5433/orders?sslmode=require"
    assert normalize_url(url) == ("postgresql+psycopg://app:p%40ss@db:5433/orders?sslmode=require")


def test_several_hosts_are_named_as_in_postgresqls_own_client() -> None:
    for hosts, named in (
        ("a:5432,b:5433", "host=a%3A5432&host=b%3A5433"),
        ("a,b.c", "host=a&host=b.c"),
    ):
        url = normalize_url(f"postgresql://app:p@{hosts}/orders?sslmode=require")
        assert url == f"postgresql+psycopg://app:p@/orders?{named}&sslmode=require"
        assert normalize_url(url) == url


def test_the_name_of_a_function_for_passwords_is_no_secret() -> None:
    url = "postgresql+psycopg://app@db/orders?password_from=shop.ledger%3Apassword"
    assert redact_url(url) == without_secrets(url) == url


def test_a_normal_url_stays_as_it_is() -> None:
    for url in ("sqlite:///ledger.db", "postgresql://app:p%3A%2F%40s@db/orders?sslmode=require"):
        normal = normalize_url(url)
        assert normalize_url(normal) == normal


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "cannot be understood"),
        ("ledger.db", "cannot be understood"),
        ("sqlite:///a\0b", "cannot be understood"),
        ("postgresql://app:hunter2/orders", "cannot be understood"),
        ("postgresql://app:hunter2@db:port/orders", "cannot be understood"),
        ("postgresql://app:hunter2@a:5432,b:x/orders", "cannot be understood"),
        ("postgresql://app:hunter2@[::1],[::2]/orders", "cannot be understood"),
        ("postgresql://app:hunter2@db/orders?password_from=a:b", "more than one password"),
        ("postgresql://db/orders?password=hunter2&password_from=a:b", "more than one password"),
        ("postgresql://db/orders?password_from=hunter2", "write module:function, for a function"),
        ("mysql://app:hunter2@db/orders", "cannot be kept in 'mysql'"),
        ("postgresql+asyncpg://app:hunter2@db/orders", "cannot be kept in 'postgresql+asyncpg'"),
        ("sqlite://", "cannot be kept in ':memory:'"),
        ("sqlite:///:memory:", "cannot be kept in ':memory:'"),
        ("sqlite:///file:ledger.db", "cannot be kept in 'file:ledger.db'"),
        ("sqlite://ledger.db", "three slashes and a path"),
        ("sqlite://app:hunter2@host/ledger.db", "three slashes and a path"),
        ("sqlite:///ledger.db?key=hunter2", "without options"),
        ("postgresql://app:hunt@er2@db/orders", "more than one '@'"),
        ("postgresql://app:hunt@er2/@db/orders", "more than one '@'"),
        ("postgresql://app:hunt@er2?@db/orders", "more than one '@'"),
    ],
)
def test_what_is_not_a_ledgers_url_is_refused_without_a_word_of_its_password(
    url: str, told: str
) -> None:
    text = refusal(url)
    assert told in text
    assert "hunt" not in text
    assert "er2" not in text


schemes = st.sampled_from(["", "sqlite:///", "postgresql://", "postgresql://app:secret@"])


@given(schemes, st.text())
def test_any_text_is_a_url_or_refused(scheme: str, text: str) -> None:
    try:
        normal = normalize_url(scheme + text)
    except LedgerError:
        return
    assert normalize_url(normal) == normal


@given(st.text(), st.sampled_from(["password", "sslpassword", "oauth_client_secret"]))
def test_a_url_is_shown_without_its_secrets(password: str, option: str) -> None:
    secret = f"<{password}>"
    url = URL.create("postgresql", "app", secret, "db", 5432, "orders", {option: secret})
    assert redact_url(url) == f"postgresql://app:***@db:5432/orders?{option}=***"


def test_every_value_of_a_secret_option_is_hidden() -> None:
    shown = redact_url("postgresql://db/orders?password=one&password=two&host=a&host=b")
    assert "one" not in shown
    assert "two" not in shown
    assert "host=a&host=b" in shown


def refused(url: str, timeouts: Timeouts = NO_RETRIES) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(url, timeouts=timeouts)
    assert str(caught.value).count("\n") == 0
    return caught.value


def test_a_server_that_does_not_run_is_named_with_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = refused(f"postgresql://app:hunter2@127.0.0.1:{port}/orders")
    assert str(error).startswith(
        f"The ledger postgresql+psycopg://app:***@127.0.0.1:{port}/orders cannot be reached: "
    )
    assert "Connection refused; check that its server runs" in str(error)
    assert "hunter2" not in everything_of(error)


@pytest.mark.integration
@pytest.mark.timeout(60)  # the driver's own patience is longer
@pytest.mark.parametrize(("default_s", "option"), [(2, ""), (600, "?connect_timeout=2")])
def test_a_server_that_does_not_answer_is_waited_for_until_the_timeout(
    default_s: int, option: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://app:hunter2@127.0.0.1:{silent.getsockname()[1]}/orders"
        error = refused(url + option, Timeouts(connect_s=default_s))
    assert "cannot be reached: connection timeout expired; check" in str(error)
    assert "hunter2" not in everything_of(error)


def test_an_option_that_there_is_not_is_named() -> None:
    error = refused("postgresql://app:hunter2@127.0.0.1/orders?sslmoed=require")
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
    error = refused(url)
    told = str(error).partition(" cannot be ")[2]
    assert "***" in told
    assert "hunter2" not in told
    assert error.__cause__ is None
    assert error.__context__ is None


def test_an_error_without_secrets_keeps_its_cause() -> None:
    error = refused("postgresql://127.0.0.1/orders?sslmoed=require")
    assert isinstance(error.__cause__, sqlalchemy.exc.ProgrammingError)


def test_a_ledger_is_shown_without_its_password(postgresql: str) -> None:
    # The server trusts whoever reaches it, so that any password will do.
    url = postgresql.replace("postgres:", "postgres:hunter2")
    with Ledger.open(url) as ledger:
        assert "hunter2" not in repr(ledger)
        assert "postgres:***@" in repr(ledger)
        with pytest.raises(LedgerError) as caught:
            ledger.batches.begin(a_batch())
    assert "hunter2" not in everything_of(caught.value)


CALLS: dict[str, Callable[[Ledger], object]] = {
    "gates": lambda ledger: ledger.gates.all(),
    "rate": lambda ledger: ledger.rates.current("orders"),
    "begin": lambda ledger: ledger.batches.begin(a_batch()),
    "succeed": lambda ledger: ledger.batches.succeed("a batch"),
    "prune": lambda ledger: ledger.history.prune(0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_whatever_is_wrong_with_the_database_is_a_ledger_error(
    url: str, execute: Execute, call: Callable[[Ledger], object]
) -> None:
    with Ledger.open(url) as ledger:
        for table in reversed(metadata.sorted_tables):
            execute(DropTable(table))
        with pytest.raises(LedgerError, match=r"cannot be used: .*(gate|batch)"):
            call(ledger)


def server_process(ledger: Ledger) -> int:
    """Return the id of the process that serves the ledger's only connection."""
    with ledger.batches.lend() as connection:
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
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        assert ledger.gates.last_begun("orders") is None
        assert server_process(ledger) != cut


def test_a_connection_on_which_the_server_only_said_something_is_kept(
    new_postgresql_url: NewUrl,
) -> None:
    url = new_postgresql_url()
    with Ledger.open(url) as ledger, psycopg.connect(url, autocommit=True) as other:
        kept = server_process(ledger)
        with ledger.batches.lend() as connection:
            driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        # A handler's LISTEN ends with its transaction.
        driver.execute("LISTEN news")
        driver.commit()
        file = driver.fileno()
        other.execute("NOTIFY news")
        wait_until(lambda: select.select([file], [], [], 0)[0] != [])
        assert ledger.gates.all() == ()
        assert server_process(ledger) == kept
        assert select.select([file], [], [], 0)[0] == []


@pytest.mark.parametrize(("option", "expected"), [("", "30000"), ("&tcp_user_timeout=900", "900")])
def test_a_server_that_falls_silent_is_not_listened_to_for_hours(
    new_postgresql_url: NewUrl, option: str, expected: str
) -> None:
    with (
        Ledger.open(new_postgresql_url() + option) as ledger,
        ledger.batches.lend() as connection,
    ):
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.get_parameters()["tcp_user_timeout"] == expected
