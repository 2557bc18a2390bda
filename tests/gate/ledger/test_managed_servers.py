"""A PostgreSQL of a cloud: passwords of the moment, several hosts, TLS, poolers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import UndefinedTable
from tests.docs.pages import ROOT, Snippet, blocks
from tests.gate.ledger.samples import everything_of
from tests.services import clouds, passwords
from tests.services.certificates import Authority
from tests.services.ledgers import patient
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import CUT, PostgresqlServer, reached_by_tcp
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import NO_RETRIES, OF_A_QUERY, Timeouts
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local.servers import free_ports
from headrace.testing import ManualClock

pytestmark = pytest.mark.nightly

OURS = "tests.services.passwords"


@pytest.fixture
def with_password(own_postgresql: PostgresqlServer) -> Iterator[str]:
    """The URL of a role that needs the password of `passwords`, without it."""
    passwords.current, passwords.outages = passwords.SECRET, 0
    own_postgresql.execute(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{passwords.SECRET}'")
    own_postgresql.ask_for_the_password_of("app")
    yield own_postgresql.url.replace("postgres:@", "app@")
    own_postgresql.execute("ALTER ROLE app NOLOGIN")


def refused(url: str, timeouts: Timeouts = NO_RETRIES) -> str:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(url, timeouts=timeouts)
    assert passwords.SECRET not in everything_of(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_login_asks_for_the_password_of_then(
    own_postgresql: PostgresqlServer, with_password: str
) -> None:
    url = f"{with_password}&password_from={OURS}:password"
    with Ledger.open(url) as ledger:
        before = passwords.calls
        ledger.gates.all()
        assert passwords.calls == before
        passwords.current = "hunter3"
        own_postgresql.execute("ALTER ROLE app PASSWORD 'hunter3'", CUT)
        assert ledger.gates.all() == ()
        assert passwords.calls == before + 1
        passwords.current = "of yesterday"
        own_postgresql.execute(CUT)
        with pytest.raises(LedgerError, match="password authentication failed") as caught:
            ledger.gates.all()
        assert "of yesterday" not in everything_of(caught.value)


def test_a_function_that_does_not_answer_is_waited_for(
    with_password: str, caplog: pytest.LogCaptureFixture, time: ManualClock
) -> None:
    passwords.outages = 3
    url = f"{with_password}&password_from={OURS}:password"
    with Ledger.open(url, timeouts=patient(time)) as ledger:
        assert ledger.gates.all() == ()
    assert time.monotonic() > 0
    assert "password_from of the ledger URL, raised ConnectionError" in caplog.text
    assert passwords.SECRET not in caplog.text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere:password", "importing nowhere raised ModuleNotFoundError; make nowhere"),
        (f"{OURS}:none", f"but {OURS} has no function none; name a function"),
        (f"{OURS}:SECRET", f"but {OURS} has no function SECRET; name a function"),
        (f"{OURS}:in_bytes", "returned a bytes; it must return the password as a text."),
        (f"{OURS}:nothing", "returned no password; it must return the password as a text."),
        (f"{OURS}:half_a_character", "returned no password; it must return the password as a text"),
        (f"{OURS}:needs", "a function that needs arguments; name a function that can be called"),
        (f"{OURS}:exits", "raised SystemExit, whose text is not shown because it may contain"),
        (f"{OURS}:cut_off", "returned no password; it must return the password as a text."),
        (
            f"{OURS}:raises",
            "raised ConnectionError, whose text is not shown because it may contain a secret; to"
            f" see the text, run: python -c 'import {OURS}; {OURS}.raises()'.",
        ),
    ],
)
def test_what_is_wrong_with_the_function_is_said(with_password: str, name: str, told: str) -> None:
    said = refused(f"{with_password}&password_from={name}")
    assert told in said
    assert "check that its server runs" not in said


RECIPES = [
    snippet
    for snippet in blocks(ROOT / "docs/deploying.md", "python")
    if "def password()" in snippet.text
]


@pytest.mark.parametrize("recipe", RECIPES, ids=["rds", "azure", "google"])
def test_the_recipes_return_a_password(recipe: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with clouds.stubbed():
        names: dict[str, Any] = {}
        exec(recipe.text, names)  # noqa: S102
        said = names["password"]()
    assert said == "hunter2" or "Action=connect&DBUser=headrace" in said


def test_a_wrong_function_is_not_waited_for(with_password: str, time: ManualClock) -> None:
    for name in ("nowhere:password", f"{OURS}:in_bytes", f"{OURS}:needs"):
        refused(f"{with_password}&password_from={name}", patient(time))
    assert time.monotonic() == 0


def test_a_failover_is_followed_to_the_host_that_can_be_written(
    own_postgresql: PostgresqlServer,
) -> None:
    with (
        own_postgresql.standby() as standby,
        reached_by_tcp(own_postgresql) as first,
        reached_by_tcp(standby) as second,
        # The standby is named first, and cannot be written.
        Ledger.open(
            f"postgresql://postgres@{second},{first}/postgres", timeouts=OF_A_QUERY
        ) as ledger,
        ThreadPoolExecutor(1) as pool,
    ):
        declare = partial(ledger.gates.declare, interval_ms=1_000, source="kafka", estimator="pid")
        declare("before")
        wait_until(lambda: "before" in names_at(standby))
        own_postgresql.stop("fast")
        waiting = pool.submit(declare, "after")
        standby.promote()
        waiting.result()
        assert names_at(standby) == ["after", "before"]


def names_at(server: PostgresqlServer) -> list[str]:
    with suppress(UndefinedTable), psycopg.connect(server.url) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM gate ORDER BY name")]
    return []


def test_a_refusal_is_final_once_each_host_has_answered(postgresql: str, time: ManualClock) -> None:
    with PgBouncer(postgresql, "session") as there:
        away = f"127.0.0.1:{free_ports(1)[0]}"
        for hosts in (f"{away},{there.host}", f"{there.host},{away}"):
            began_s = time.monotonic()
            refused(f"postgresql://stranger@{hosts}/postgres", patient(time, 1))
            assert time.monotonic() >= began_s + 1
        began_s = time.monotonic()
        hosts = f"{there.host},{there.host}"
        assert "stranger" in refused(f"postgresql://stranger@{hosts}/postgres", patient(time))
        assert time.monotonic() == began_s


@contextmanager
def with_tls(server: str, authority: Authority) -> Iterator[str]:
    """The URL of a pooler that lets only TLS in, with a certificate for localhost."""
    with PgBouncer(server, "transaction", tls=authority.issue("server")) as pooler:
        yield f"postgresql://postgres@{pooler.host}/postgres"


def test_a_server_s_certificate_is_checked_and_a_wrong_one_is_refused_at_once(
    postgresql: str, tmp_path: Path, time: ManualClock
) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "others")
    with with_tls(postgresql, ours) as url:
        for mode in ("require", f"verify-full&sslrootcert={ours.ca}"):
            Ledger.open(f"{url}?sslmode={mode}", timeouts=patient(time)).close()
        for options, told in (
            (f"sslmode=verify-full&sslrootcert={others.ca}", "certificate verify failed"),
            ("sslmode=verify-full&sslrootcert=/nowhere.pem", "/nowhere.pem"),
            ("sslmode=disable", "SSL required"),
        ):
            assert told in refused(f"{url}?{options}", patient(time))
    with PgBouncer(postgresql, "transaction") as plain:
        url = f"postgresql://postgres@{plain.host}/postgres?sslmode=require"
        assert "does not support SSL" in refused(url, patient(time))
    assert time.monotonic() == 0


def test_a_pooler_of_single_statements_is_refused_in_a_sentence(
    postgresql: str, time: ManualClock
) -> None:
    with PgBouncer(postgresql, "statement") as pooler:
        said = refused(f"postgresql://postgres@{pooler.host}/postgres", patient(time))
    assert "transaction blocks not allowed in statement pooling mode; have the pooler" in said
    assert time.monotonic() == 0
