"""Run ``headgate`` as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
