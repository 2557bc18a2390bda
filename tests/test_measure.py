"""The shape of the source: nothing imports in a circle; and that what measures it finds things."""

from pathlib import Path

import pytest
from tests.measure import (
    FILLERS,
    circles,
    import_circles,
    long_functions,
    modules,
    sentences,
    table,
    value_classes,
    wide_constructors,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two modules that import each other, one of them in a function, and one for its types."""
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text('"""Nothing."""\n')
    (package / "walls.py").write_text(
        '"""What holds the roof."""\n\nfrom dataclasses import dataclass\n\n\n'
        '@dataclass(frozen=True)\nclass Wall:\n    """A wall. It stands."""\n\n'
        "    height_m: float\n\n\n"
        "def build():\n    from house.roof import Roof\n\n    return Roof\n"
    )
    (package / "roof.py").write_text(
        "from typing import TYPE_CHECKING\n\nfrom house.walls import Wall\n\n"
        "if TYPE_CHECKING:\n    from house.garden import Garden\n\n\nclass Roof:\n"
        f"    def __init__(self, {', '.join('abcdefghi')}):\n        self.wall = Wall\n\n"
        "    def cover(self):\n" + "        print()\n" * 52
    )
    (package / "garden.py").write_text("from house import roof\n\n\nclass Garden:\n    pass\n")
    return tmp_path


@pytest.mark.integration
def test_no_modules_import_each_other_even_when_a_function_is_called() -> None:
    assert import_circles() == []


@pytest.mark.integration
def test_no_constructor_has_more_parameters_than_a_reader_keeps_in_mind() -> None:
    assert [each for module in modules().values() for each in wide_constructors(module)] == []


@pytest.mark.integration
def test_no_function_is_longer_than_a_screen() -> None:
    assert [each for module in modules().values() for each in long_functions(module)] == []


@pytest.mark.integration
def test_sentences_have_a_noun() -> None:
    spoken = [each for module in modules().values() for each in sentences(module)]
    assert sum(each.split()[0] in FILLERS for each in spoken) < 0.02 * len(spoken)


def test_a_circle_through_a_function_is_found_and_one_for_types_is_none(source: Path) -> None:
    assert import_circles(source) == [["house.roof", "house.walls"]]


def test_circles_are_found_apart() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["d", "e"], ["a", "b", "c"]]


def test_what_is_too_long_or_too_wide_is_found(source: Path) -> None:
    roof = modules(source)["house.roof"]
    assert long_functions(roof) == ["house.roof.cover: 53 lines"]
    assert wide_constructors(roof) == ["house.roof:10: 9 parameters"]


def test_value_classes_and_sentences_are_counted(source: Path) -> None:
    walls = modules(source)["house.walls"]
    assert value_classes(walls) == {"Wall": 1}
    assert sentences(walls) == ["What holds the roof.", "A wall.", "It stands."]
    assert ("sentences that begin with What, Who, Whoever, Where, How, Of", "25.0%") in table(
        source
    )
