"""The documentation site is built from the pages, and has every public name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT

import headrace
import headrace.journal

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make docs`` does: a warning fails it, such as a link that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    # The first page, and what only those read who publish or develop it.
    kept_out = {"README", "RELEASING", "CAPABILITIES"}
    docs = ROOT / "docs"
    pages = {
        str(page.relative_to(docs if docs in page.parents else ROOT).with_suffix(""))
        for page in PAGES
    } - kept_out
    assert [name for name in sorted(pages) if not (site / name / "index.html").exists()] == []
    assert "Ten lines" in (site / "index.html").read_text()


def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    page = (site / "reference/index.html").read_text()
    names = [*headrace.__all__, *(f"journal.{name}" for name in headrace.journal.__all__)]
    short = {name.rpartition(".")[2] for name in names} - {"ARROW_SCHEMA", "DEFECTS"}
    found = {each.rpartition(".")[2] for each in re.findall(r'id="(headrace\.[\w.]+)"', page)}
    assert sorted(short - found) == []
    assert "A gate serves one query at a time" in page


def test_links_between_folders_lead_to_the_same_page_on_the_site(site: Path) -> None:
    page = (site / "tasks/index.html").read_text()
    assert 'href="../ARCHITECTURE/"' in page
    assert "../docs/" not in (site / "index.html").read_text()
