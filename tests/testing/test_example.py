"""The example of `docs/testing.md`, as pytest runs it."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "testing_a_handler.py"
TESTS = [(n, f) for n, f in runpy.run_path(str(EXAMPLE)).items() if n.startswith("test_")]


@pytest.mark.integration
@pytest.mark.parametrize("test", [test for _, test in TESTS], ids=[name for name, _ in TESTS])
def test_each_test_of_the_example_passes(test: Callable[[], None]) -> None:
    test()


def test_there_are_some() -> None:
    assert len(TESTS) == 4
