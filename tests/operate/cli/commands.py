"""Run ``headrace`` as a user does: in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.waiting import wait_until

COMMAND = (sys.executable, "-c", "from headrace.operate.cli import main; main()")
"""Equivalent of the script ``headrace``, whether the package is installed or not."""


def run(
    *arguments: str, folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run it to its end in a folder, with its output piped."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def in_a_terminal(
    *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run it as in a terminal of its own, with what it says in ``stdout`` and ``stderr`` there.

    Whatever it has started in its terminal has ended, too, when this is over.
    """
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        running = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env={**os.environ, **(variables or {})},
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            yield running
        finally:
            if _is_there(running.pid):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def press_ctrl_c(running: subprocess.Popen[str]) -> None:
    """As a terminal does: to the whole group."""
    os.killpg(running.pid, signal.SIGINT)


def interrupted(
    arguments: list[str], folder: Path, *, once_there_is: Path
) -> subprocess.CompletedProcess[str]:
    """Run it as in a terminal in which Ctrl-C is pressed once there is a file, and once more."""
    output, errors = folder / "stdout", folder / "stderr"
    with in_a_terminal(*arguments, folder=folder) as running:
        wait_until(lambda: once_there_is.exists() or running.poll() is not None, timeout_s=150)
        press_ctrl_c(running)
        wait_until(lambda: "Ctrl-C" in errors.read_text())
        assert running.poll() is None
        press_ctrl_c(running)
        running.wait(60)
        wait_until(lambda: not _is_there(running.pid))
    return subprocess.CompletedProcess(
        running.args, running.returncode, output.read_text(), errors.read_text()
    )


def _is_there(group: int) -> bool:
    """Whether a process of this group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
