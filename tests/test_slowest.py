"""Where the time of a run went: seconds by tier, folder, module, test, fixture and wait."""

import json
from pathlib import Path

import pytest
from tests.slowest import main, tables

TESTS = {
    "tests/core/test_a.py::test_it[1]": {
        "tier": "unit",
        "setup_s": 1.0,
        "call_s": 2.0,
        "teardown_s": 0.5,
        "fixtures": {"broker": 0.75},
        "waits": {"tests/core/test_a.py:test_it": 1.5},
    },
    "tests/core/test_a.py::test_it[2]": {"tier": "unit", "setup_s": 0.5},
}


def test_seconds_are_added() -> None:
    assert {name: dict(seconds) for name, seconds in tables(TESTS).items()} == {
        "tier": {"unit": 4.0},
        "folder": {"tests/core": 4.0},
        "module": {"tests/core/test_a.py": 4.0},
        "test": {"tests/core/test_a.py::test_it": 4.0},
        "fixture": {"broker": 0.75},
        "wait": {"tests/core/test_a.py:test_it": 1.5},
    }


def test_the_tables_of_a_file_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "durations.json"
    file.write_text(json.dumps({"took_s": 3.0, "tests": TESTS}))
    assert main([str(file)]) == 0
    printed = capsys.readouterr().out
    assert f"{file}: 2 tests in 3 s" in printed
    assert "     4.0 s  tests/core/test_a.py::test_it" in printed
