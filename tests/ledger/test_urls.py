import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import URL

from headrace.errors import LedgerError
from headrace.ledger import normalize_url, redact_url


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
