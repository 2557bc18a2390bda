"""Output of ``--json``: its fields and their kinds as stored, and each of them documented.

``UPDATE_VIEWS=1 pytest tests/operate/cli/test_json_shapes.py`` writes the stored shapes again.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.docs.pages import ROOT
from tests.operate.cli.outcomes import Shop, rows
from tests.operate.cli.test_flows import SHOP
from tests.operate.cli.test_journal import a_journal, damage, read

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.connector import Connector

FILE: Final = Path(__file__).parent / "json_shapes.txt"
PAGE: Final = ROOT / "docs/commands.md"
COMMANDS: Final = {
    "status": 0,
    "why orders": 0,
    "batches": 0,
    "batches {isolated}": 0,
    "failures": 3,
    "dead-letters list": 0,
    "verify": 3,
    "limit 5 orders": 0,
    "pause orders": 0,
    "drain orders": 0,
    "prune --older-than 1d": 0,
    "backfill --handler operator:is_ --all --dry-run": 0,
    "journal ls orders": 0,
    "journal prune orders --older-than 0s --dry-run": 0,
    "journal verify orders": 4,
    "journal repair orders": 0,
    "flow show shown_flow:orders": 0,
}
KINDS: Final = {str: "text", bool: "yes or no", int: "number", float: "number", type(None): "null"}


def kinds(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from kinds(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        yield place, "list"
        for each in value:
            yield from kinds(each, f"{place}[]")
    else:
        yield place, KINDS[type(value)]


def shape(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    shown: dict[str, set[str]] = {}
    for each in found:
        for place, kind in kinds(each, ""):
            shown.setdefault(place, set()).add(kind)
    return shown


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return collected(tmp_path_factory.mktemp("shapes"), monkeypatch)


def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, set[str]]]:
    shop = Shop(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Connector, "gone", lambda _connector, _options, _ranges: [])
    Path("shown_flow.py").write_text(SHOP)
    orders = a_journal()
    journals = f"sqlite:///{tmp_path}/journals.db"
    with Ledger.open(journals) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
    read(journals, orders, 0, 3, 10)
    damage()
    found = {}
    for command, status in COMMANDS.items():
        url = journals if command.startswith("journal") else shop.url
        found[command] = shape(rows(url, command.format(isolated=shop.isolated), status))
    return found


@pytest.mark.integration
def test_the_fields_are_as_stored(shapes: dict[str, dict[str, set[str]]]) -> None:
    text = "".join(
        f"{command}: {place}: {' or '.join(sorted(found))}\n"
        for command, of in shapes.items()
        for place, found in sorted(of.items())
    )
    if os.environ.get("UPDATE_VIEWS"):
        FILE.write_text(text)
    assert FILE.read_text() == text, "a field that programs read has changed"


@pytest.mark.integration
def test_every_field_is_documented(shapes: dict[str, dict[str, set[str]]]) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    fields = {
        name for of in shapes.values() for place in of for name in re.findall(r"\b[a-z]\w*", place)
    }
    assert sorted(fields - named) == []
