"""The ceilings of the source: what is above one is named, and what is no ceiling is refused."""

from pathlib import Path

import pytest
from tests.budget import as_toml, ceilings, excesses, sizes
from tests.measure import modules

NOW = {"total": {"lines": 30}, "core": {"lines": 20}}


def test_sizes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house/walls.py").write_text(
        '"""What\nholds."""\n\nfrom enum import Enum\n\n\nclass Wall(Enum):\n    """A wall."""\n\n'
        "    NORTH = 1\n    SOUTH = 2\n\n\ndef build():\n    if True:\n        return 1\n"
    )
    assert sizes(list(modules(tmp_path).values())) == {
        "lines": 16,
        "docstring_lines": 3,
        "statements": 7,
        "modules": 1,
        "value_classes": 0,
        "enums": 1,
    }


def test_a_tree_that_does_not_parse_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "walls.py").write_text("a = 1\nb = (\n")
    with pytest.raises(
        SystemExit, match=r"walls\.py:2: '\(' was never closed; nothing is measured"
    ):
        modules(tmp_path)


def test_what_is_above_its_ceiling_or_has_none_is_named() -> None:
    allowed = {"total": {"lines": 30}, "core": {"lines": 19}}
    assert excesses(NOW, NOW) == []
    (above,) = excesses(NOW, allowed)
    assert str(above).startswith("`lines` of [core] is 20, and budget.toml allows 19; take")
    (missing,) = excesses(NOW, {"total": {"lines": 30}})
    assert str(missing).startswith("budget.toml has no ceiling for `lines` of [core], which is 20;")
    with pytest.raises(SystemExit, match=r"a ceiling for `lines` of \[gone\], which is not"):
        excesses(NOW, {**NOW, "gone": {"lines": 1}})


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('[core]\nlines = "many"', r"`lines` of \[core\] is 'many'; a ceiling is a whole number"),
        ("[core]\nlines = true", r"`lines` of \[core\] is True; a ceiling is a whole number"),
        ("[core]\nlines = -1", r"`lines` of \[core\] is -1; a ceiling is a whole number"),
        ("lines = 1", r"`lines` stands in no table"),
        ("[core", r"The ceilings cannot be read from .*: Expected"),
    ],
)
def test_what_is_no_ceiling_is_refused(tmp_path: Path, text: str, refusal: str) -> None:
    file = tmp_path / "budget.toml"
    file.write_text(text)
    with pytest.raises(SystemExit, match=refusal):
        ceilings(file)


def test_ceilings_only_go_down(tmp_path: Path) -> None:
    file = tmp_path / "budget.toml"
    file.write_text(as_toml(NOW, {"total": {"lines": 25}, "core": {"lines": 99}}))
    assert ceilings(file) == {"total": {"lines": 25}, "core": {"lines": 20}}
