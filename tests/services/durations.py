"""The time of each test, in a file: its phases, its fixtures and its waits.

`make test` writes ``build/durations.json`` and `make nightly` ``build/durations-nightly.json``;
`make slowest` (``python -m tests.slowest``) prints them.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.services.tiers import TIERS

ROOT: Final = Path(__file__).parents[2]
OPTION: Final = "--durations-file"
PHASES: Final = ("setup_s", "call_s", "teardown_s")
_FIXTURES: Final = "fixtures"
_WAITS: Final = "waits"

_waits: Counter[str] = Counter()
"""Seconds in `wait_until` of the test that runs now, by the function that waits."""


def add_wait(depth: int, seconds: float) -> None:
    """Count seconds for the function that waits, ``depth`` frames above the caller."""
    frame = sys._getframe(depth + 1)
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    _waits[f"{name}:{frame.f_code.co_qualname}"] += seconds  # type: ignore[assignment]


class Durations:
    """A plugin of pytest: workers measure, and the process that has them writes the file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._began_s = time.monotonic()
        self._tests: dict[str, dict[str, Any]] = {}
        self._fixtures: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        began_s = time.monotonic()
        try:
            return (yield)
        finally:
            took_s = time.monotonic() - began_s
            self._fixtures[fixturedef.argname] += took_s  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        report: Any = yield
        if call.when == "teardown":
            report.user_properties = [
                *((_FIXTURES, _large(self._fixtures)), (_WAITS, _large(_waits))),
                *report.user_properties,
            ]
            self._fixtures.clear()
            _waits.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {})
        test[f"{report.when}_s"] = round(report.duration, 3)
        test["tier"] = next((each for each in report.keywords if each in TIERS), "")
        if report.when == "teardown":
            test |= {
                name: value for name, value in report.user_properties if name in (_FIXTURES, _WAITS)
            }

    def pytest_sessionfinish(self) -> None:
        if self._file is None:
            return
        took_s = round(time.monotonic() - self._began_s, 1)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"took_s": took_s, "tests": self._tests}, indent=1))


def _large(seconds: Counter[str]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items() if value >= 0.05}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(OPTION, metavar="FILE", help="write the time of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Measure each test of this run; write the file where the run has no process above it."""
    file = config.getoption(OPTION)
    if file:
        path = None if hasattr(config, "workerinput") else ROOT / file
        config.pluginmanager.register(Durations(path), "durations")
