"""The pages are true: links lead somewhere, options are all there, commands exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.app import COMMANDS
from headrace.execution import RECOMMENDED_CONF
from headrace.journal.journal_options import OPTIONS as JOURNAL_OPTIONS
from headrace.kafka.kafka_options import OPTIONS as KAFKA_OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def code_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Each fenced block's language and text."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    inside = [target for target in targets if "://" not in target]
    missing = [target for target in inside if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_compiles(page: Path) -> None:
    for language, text in code_blocks(page):
        if language == "python":
            compile(text, page.name, "exec")


def test_the_page_of_options_has_every_option_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE)
    every = {*KAFKA_OPTIONS, "kafka.bootstrap.servers", *JOURNAL_OPTIONS, *RECOMMENDED_CONF}
    assert sorted(rows) == sorted(every)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_a_page_exist(page: Path) -> None:
    named = re.findall(r"^headrace ([\w-]+)", page.read_text(), re.MULTILINE)
    assert [name for name in named if name not in COMMANDS] == []


def test_make_targets_on_a_page_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"^make ([\w-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, page.name
