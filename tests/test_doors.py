"""Doors: what a house lets others import, and what documents tell users to import."""

import ast
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
STUBS: Final = sorted(SOURCE.rglob("__init__.pyi"))
DOORS: Final = [".".join(path.parent.relative_to(SOURCE).parts) for path in STUBS]


def test_every_house_has_a_door() -> None:
    houses = {path.parent.name for path in (SOURCE / "headrace").glob("*/README.md")}
    assert houses == {"decoding", "flow", "gate", "journal", "operate", "testing"}
    assert {f"headrace.{house}" for house in houses} <= set(DOORS)


@pytest.mark.parametrize("name", DOORS)
def test_a_door_has_each_name_once_and_none_is_a_module_s(name: str) -> None:
    door = importlib.import_module(name)
    assert door.__all__ == sorted(set(door.__all__))
    assert [each for each in door.__all__ if getattr(door, each, None) is None] == []
    # An import of the module would replace the name on the package.
    folder = SOURCE / name.replace(".", "/")
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules & set(door.__all__) == set()


@pytest.mark.parametrize("path", STUBS, ids=DOORS)
def test_a_door_leads_into_its_own_house_or_to_another_door(path: Path) -> None:
    house = ".".join(path.parent.relative_to(SOURCE).parts[:2])
    shared = {"headrace.errors", "headrace.core.ranges"}
    outside = {each for each in _behind(path).values() if not f"{each}.".startswith(f"{house}.")}
    assert outside <= {*DOORS, *shared}


def _behind(stub: Path) -> dict[str, str]:
    """Return the module that each name of a door comes from."""
    return {name: module for module, name in _imports(stub)}


def _imports(path: Path) -> list[tuple[str, str]]:
    statements = [
        each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ImportFrom)
    ]
    return [(each.module or "", alias.name) for each in statements for alias in each.names]


def test_a_journal_knows_no_kafka() -> None:
    behind = _behind(SOURCE / "headrace/gate/__init__.pyi")
    journal = sorted((SOURCE / "headrace/journal").rglob("*.py"))
    used = {name for path in journal for door, name in _imports(path) if door == "headrace.gate"}
    assert used
    assert {name for name in used if behind[name].startswith("headrace.gate.kafka")} == set()


PAGES: Final = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]
IMPORTS: Final = sorted(
    {
        found.groups()
        for page in PAGES
        for found in re.finditer(
            r"^(?:from (headrace[\w.]*) import ([\w, ]+)|import (headrace[\w.]*))$",
            page.read_text(),
            re.MULTILINE,
        )
    },
    key=str,
)


@pytest.mark.parametrize(("door", "names", "package"), IMPORTS)
def test_what_documents_import_is_behind_a_door(
    door: str | None, names: str | None, package: str | None
) -> None:
    module = importlib.import_module(door or package or "")
    assert module.__name__ in {*DOORS, "headrace.errors"}
    missing = [each for each in (names or "").split(", ") if each and not hasattr(module, each)]
    assert missing == []


@pytest.mark.parametrize("name", ["execution", "ledger", "kafka", "control", "receivers", "cli"])
def test_what_was_never_public_is_an_ordinary_import_error(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named 'headrace.{name}'"):
        importlib.import_module(f"headrace.{name}")
