"""The commands on the pages do what the pages say: what stands there can be typed as it is."""

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from tests.cli.outcomes import add_failed, invoke
from tests.docs.test_pages import PAGES
from tests.journal.journals import fill

from headrace.core.ranges import OffsetRange
from headrace.ledger import Ledger

# In a block or in a sentence; what only names an option of it leaves out what is run.
COMMANDS: Final = sorted(
    {
        " ".join(found.split("#")[0].split())
        for page in PAGES
        for found in re.findall(r"headrace backfill [^`\n]+", page.read_text())
        if re.search(r"--(handler|flow) \w", found)
    }
)

HANDLER = """
def write(df, batch):
    df.count()
"""

FLOW = """
from headrace.flow import Flow, journal

orders = Flow("orders", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
orders.channel("raw", journal("raw"))
orders.channel("clean", journal("clean"))


@orders.stage("clean", reads="raw", writes="clean", on_failure="defer")
def clean(df, batch):
    return df
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a package ``shop``, a file of options, and a journal."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "orders.py").write_text(HANDLER)
    (tmp_path / "shop" / "flows.py").write_text(FLOW)
    (tmp_path / "kafka.properties").write_text("# nothing of Kafka's, for it is a journal\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    fill(tmp_path / "raw", {0: [30]})
    return tmp_path


def test_there_are_such_commands() -> None:
    assert any("--flow" in each and "--all" in each for each in COMMANDS)
    assert any("--handler" in each for each in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_backfill_on_a_page_would_run_what_has_failed(command: str, here: Path) -> None:
    url = f"sqlite:///{here}/headrace.db"
    gate = "orders.clean" if "--flow" in command else "orders"
    with Ledger.open(url) as ledger:
        failed = add_failed(
            ledger, gate, OffsetRange("raw", 0, 0, 10), str(here / "raw"), source="journal"
        )
    arguments = [failed.schedule_id if each == "KEY" else each for each in shlex.split(command)]
    result = invoke(url, *arguments[1:], "--dry-run")
    assert result.exit_code == 0, result.output
    assert "1 batch with 10 records would be run" in result.output
