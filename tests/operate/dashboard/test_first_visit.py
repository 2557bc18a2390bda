"""A first visit, before a query has run: a calm page, which shows the first gate by itself."""

from pathlib import Path

import httpx
import pytest
from tests.operate.dashboard.conftest import Serve
from tests.operate.dashboard.histories import a_ledger

from headrace.errors import LedgerError
from headrace.operate.dashboard.live import LedgerLink
from headrace.operate.dashboard.pages import Site, environment

README = Path(__file__).parents[3] / "README.md"


def gates(link: LedgerLink) -> list[str]:
    return link.ask(lambda ledger: [each.name for each in ledger.gates.all()])


def test_a_ledger_that_is_not_made_yet_is_empty_until_it_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    link = LedgerLink(url)
    assert gates(link) == [] and not link.is_made
    assert not (tmp_path / "ledger.db").exists()
    with pytest.raises(LedgerError, match="There is no ledger"):
        link.current()
    link.close()
    a_ledger(url)
    link = LedgerLink(url)
    assert gates(link) == ["orders"] and link.is_made
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(LedgerError, match="There is no ledger"):
        gates(link)
    link.close()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="folder does not exist"):
        gates(LedgerLink(f"sqlite:///{tmp_path / 'none' / 'ledger.db'}"))


def test_the_lines_that_make_a_gate_are_those_of_the_readme() -> None:
    site = Site(environment(), LedgerLink("postgresql://app:hunter2@db/orders"), {})
    assert "hunter2" not in site.first_lines
    lines = site.first_lines.replace("postgresql+psycopg://app@db/orders", "sqlite:///headrace.db")
    readme = README.read_text()
    for line in lines.splitlines():
        assert line.removesuffix(".start()") in readme


@pytest.mark.integration
def test_a_first_visit_is_calm_on_every_page(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    address = serve(url)
    for path in ("/", "/failures", "/flows", "/receivers", "/verify", "/actions"):
        answer = httpx.get(address + path)
        assert answer.status_code == 200 and "does not answer" not in _shown(answer.text), path
    first = httpx.get(address).text
    assert "There is no ledger yet" in first and "gate = headrace.Gate(" in first


def _shown(html: str) -> str:
    """The page without the banner that is hidden while the ledger answers."""
    return html if 'role="alert" hidden' not in html else html.split("<main")[1]
