"""Run ``headgate`` as a user does: in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.services.waiting import wait_until

COMMAND = (sys.executable, "-c", "from headgate.cli import main; main()")
"""What the script ``headgate`` does, whether the package is installed or not."""


def run(
    *arguments: str, folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run it to its end in a folder, with its output piped."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def interrupted(
    arguments: list[str], folder: Path, *, once_there_is: Path
) -> subprocess.CompletedProcess[str]:
    """Run it as in a terminal in which Ctrl-C is pressed once there is a file, and once more.

    Whatever it has started in its terminal has ended, too, when this returns.
    """
    output, errors = folder / "stdout", folder / "stderr"
    with output.open("w") as stdout, errors.open("w") as stderr:
        running = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            wait_until(lambda: once_there_is.exists() or running.poll() is not None, timeout_s=150)
            os.killpg(running.pid, signal.SIGINT)
            wait_until(lambda: "Ctrl-C" in errors.read_text())
            assert running.poll() is None
            os.killpg(running.pid, signal.SIGINT)
            running.wait(60)
            wait_until(lambda: not _is_there(running.pid))
        finally:
            if _is_there(running.pid):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
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
