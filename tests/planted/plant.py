"""Plants a defect into a copy of the source, and runs the tests that must find it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src"

LIMIT_S: Final = 300
"""The time that the tests of one defect may take; tests that take longer hang, and so find it."""

_END_S: Final = 20
"""The time that tests have to stop their services."""

_TIERS: Final = {
    "unit": "make test",
    "integration and not nightly": "make test",
    "nightly": "make nightly",
}
"""Tests are run tier by tier, the fast ones first; the command that runs each."""

_NO_TESTS: Final = 5
"""pytest's exit status where a tier has no test in the files."""

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_BEGUN: Final = re.compile(r"^(tests/\S+::\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Planted:
    """A defect: a place in a module, what stands there instead, and the tests that find it.

    Attributes:
        what: The defect, as a noun.
        module: The module, below ``src/headrace``.
        line: A line of the module, or a few, or a part of one; it is there exactly once.
        instead: The text in its place.
        tests: The files of tests that find it; their unit tests are run before the others.
    """

    what: str
    module: str
    line: str
    instead: str
    tests: str

    @property
    def package(self) -> str:
        """The package of the module."""
        return self.module.partition("/")[0]


@dataclass(frozen=True)
class Outcome:
    """Outcome of the tests of one defect.

    Attributes:
        by: The test that found it; None where none has.
        took_s: The time that the tests took (s).
        trouble: Why nobody knows whether they find it; else empty.
        hangs: Whether that test did not end.
        command: The command that runs that test.
    """

    by: str | None
    took_s: float
    trouble: str = ""
    hangs: bool = False
    command: str = ""


def plant(defect: Planted, source: Path) -> None:
    """Change the line in a copy of the source."""
    module = source / "headrace" / defect.module
    text = module.read_text()
    assert text.count(defect.line) == 1, f"{defect.module} has the line {text.count(defect.line)}x"
    module.write_text(text.replace(defect.line, defect.instead))


def outcome_of(defect: Planted, folder: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Plant a defect into a copy of the source in an empty folder, and run its tests."""
    source = folder / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    plant(defect, source)
    began_s, statuses = time.monotonic(), set[int | None]()
    for tier, command in _TIERS.items():
        log = folder / f"{tier}.log"
        left_s = max(limit_s - (time.monotonic() - began_s), 1)
        status = _run(["-m", f"({tier}) and not soak", *defect.tests.split()], source, log, left_s)
        statuses.add(status)
        if status not in (0, _NO_TESTS):
            took_s = time.monotonic() - began_s
            outcome = outcome_from(status, log.read_text(errors="replace"), took_s)
            return _confirmed(replace(outcome, command=command), folder)
    took_s = time.monotonic() - began_s
    return Outcome(None, took_s, "" if 0 in statuses else "there is no such test")


def _confirmed(outcome: Outcome, folder: Path) -> Outcome:
    """The same, unless the test that failed fails without the defect, too."""
    if outcome.by is None or outcome.hangs:
        return outcome
    if _run([outcome.by], SOURCE, folder / "intact.log", LIMIT_S) != 1:
        return outcome
    return replace(outcome, by=None, trouble=f"{outcome.by} fails without it, too")


def outcome_from(status: int | None, log: str, took_s: float) -> Outcome:
    """The outcome of tests that have not all passed; the status is None if their time was over."""
    failed, begun = _FAILED.findall(log), _BEGUN.findall(log)
    if status == 1 and failed:
        return Outcome(failed[0], took_s)
    if begun and (status is None or "Timeout" in log):
        return Outcome(begun[-1], took_s, hangs=True)
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    return Outcome(None, took_s, f"the tests cannot be run (status {status}): {last}")


def report(defects: Iterable[Planted], limit_s: float = LIMIT_S) -> bool:
    """Plant one defect after the other, and print a line for each; whether all are found."""
    number, missing = 0, 0
    for defect in defects:
        with TemporaryDirectory(prefix="headrace-planted-") as folder:
            outcome = outcome_of(defect, Path(folder), limit_s)
        number += 1
        missing += outcome.by is None
        about = f"{outcome.took_s:5.1f} s  {defect.module}: {defect.what}"
        if outcome.by is None:
            _say(f"NOT FOUND {about}; {outcome.trouble or f'{defect.tests} passed'}")
        else:
            by = f"{outcome.by}{', which hangs' * outcome.hangs}"
            _say(f"found     {about}; by `{outcome.command}`: {by}")
    _say(f"{number - missing} of {number} defects were found.")
    return not missing


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(tests: Sequence[str], source: Path, log: Path, limit_s: float) -> int | None:
    """Run chosen tests until one fails; their exit status, or None after the time limit."""
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "planted"]
    environment = os.environ | {"PYTHONPATH": str(source), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYTEST_CURRENT_TEST", None)
    with log.open("w") as output:
        # A session of its own, so that whatever the tests start can be ended with them.
        running = subprocess.Popen(
            [*command, *tests],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(running)


def _end(running: subprocess.Popen[bytes]) -> None:
    """End the tests: first let them stop what they have started."""
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
