"""The three tiers of tests, which of them a test is of, and that a unit test starts no process.

- ``unit``: in memory: no JVM, no service, no other process, and none of the slowest tests.
  `make unit` runs these within a minute.
- ``integration``: on real parts, what a change can break and a reviewer must know: one scenario for
  each promise of ``docs/guarantees.md`` that a crash or a service decides. `make test` runs these
  and the units.
- ``nightly``: everything else that ends within minutes: the second implementation of a contract,
  servers that are killed, other people's programs, browsers, printed commands. `make nightly`.

A test's tier follows from what it uses. A marker names it where no fixture or parameter does.
"""

import sys
from typing import Final

import pytest

TIERS: Final = ("unit", "integration", "nightly")

NIGHTLY_PARAMETERS: Final = frozenset({"postgresql", "zookeeper"})
"""Implementations of a contract whose twin in memory, in a file or in SQLite `make test` runs."""

NIGHTLY_FIXTURES: Final = frozenset(
    {"browser", "postgresql", "own_postgresql", "zookeeper", "own_zookeeper"}
)
"""Fixtures of services of which `make test` has a twin, or that a test kills."""

SERVICES: Final = frozenset({"java", "new_url", "world"})
"""Fixtures that start a process or write files, or have it done."""

FOLDERS: Final = frozenset({"recovery", "examples", "bench", "demo", "simulation"})
"""Whose tests run programs, one and all, or simulate hours of a flow for seconds."""

_PROCESSES: Final = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"}
)

_running: list[str] = []
"""The unit test that runs now."""

_started: list[str] = []
"""Processes that it has tried to start."""


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    marked = {mark.name for mark in item.iter_markers()}
    parameters = getattr(item, "callspec", None)
    named = parameters.params.values() if parameters else ()
    values = {value for value in named if isinstance(value, str)}
    if "nightly" in marked or values & NIGHTLY_PARAMETERS:
        return "nightly"
    if marked & {"unit", "integration"}:
        return "unit" if "unit" in marked else "integration"
    fixtures = set(getattr(item, "fixturenames", ()))
    if fixtures & NIGHTLY_FIXTURES:
        return "nightly"
    is_served = fixtures & SERVICES or item.path.parent.name in FOLDERS
    return "integration" if is_served else "unit"


def watch_processes() -> None:
    """From now on, see to it that a unit test starts no process: the test fails."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _running and event in _PROCESSES:
        _started.append(f"{event}{arguments[:2]!r}")
        raise AssertionError(
            f"The unit test {_running[-1]} starts a process by {_started[-1]}; let it use what is"
            " in memory, or mark it with pytest.mark.integration."
        )


def begin(item: pytest.Item) -> None:
    """A test begins, before its fixtures do."""
    _started.clear()
    if item.get_closest_marker("unit") is not None:
        _running.append(item.nodeid)


def end() -> str | None:
    """Return what a test that has ended tried to start, also where it swallowed the refusal.

    Processes that its session's or module's fixtures start at their end are not its own.
    """
    _running.clear()
    return _started[0] if _started else None
