"""Which tier a test is of, by what it uses; and that a unit test starts no process.

A test says so itself, with a marker, where it uses something that no fixture gives it.
"""

import sys
from typing import Final

import pytest

TIERS: Final = ("unit", "contract", "integration")

CONTRACTS: Final = frozenset({"new_url", "world", "remote"})
"""Fixtures that are each implementation of a protocol in turn: of the ledger's database, of what
carries signals, of a journal's storage."""

SERVICES: Final = frozenset({"java", "postgresql", "server", "workers"})
"""Fixtures that start a process, or have one started."""

FOLDERS: Final = frozenset({"recovery", "examples", "bench", "demo"})
"""Whose tests run programs, one and all."""

_PROCESSES: Final = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"}
)

_running: list[str] = []
"""The unit test that runs now."""

_started: list[str] = []
"""Processes that it has tried to start."""


def tier_of(item: pytest.Item) -> str:
    """The tier of a test."""
    own = [mark.name for mark in item.iter_markers() if mark.name in TIERS]
    fixtures = set(getattr(item, "fixturenames", ()))
    if own:
        return own[0]
    if fixtures & CONTRACTS:
        return "contract"
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
    """A test has ended; what it has tried to start, also where it swallowed the refusal.

    Processes that its session's or module's fixtures start at their end are not its own.
    """
    _running.clear()
    return _started[0] if _started else None
