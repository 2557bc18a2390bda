"""``python tests/install.py TEXT MEGABYTES ARGUMENTS``: pip install, with what it has done so far.

For the Makefile: on a terminal as a bar, elsewhere as a line every ten seconds. It counts what pip
has written, to its temporary folder and to the environment, against about how much that will be.
It runs on the standard library alone, before anything is installed.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

PIP: Final = (
    *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
    *("--no-compile", "--progress-bar", "off"),
)
BAR: Final = 24
LOOK_S, LINE_S = 0.5, 10.0
_STEP: Final = re.compile(r"^ *(Collecting|Downloading|Building wheel for|Installing) +(\S+)")
_MEGABYTE: Final = 1_000_000


def megabytes(folders: Iterable[Path]) -> float:
    """How much there is in folders, which may change meanwhile."""
    size = 0
    for folder in folders:
        for here, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    size += Path(here, name).lstat().st_size
    return size / _MEGABYTE


def left(elapsed_s: float, done: float, total: float) -> str:
    """About how long it will take, from how long it took.

    >>> left(30, 100, 400), left(1, 1, 400), left(60, 390, 400)
    ('about 2 min left', 'looking how fast it is', 'a few seconds left')
    """
    if done < 0.02 * total or elapsed_s <= LOOK_S:
        return "looking how fast it is"
    seconds = elapsed_s * (total - done) / done
    if seconds >= 55:
        return f"about {max(round(seconds / 60), 1)} min left"
    return f"about {round(seconds, -1):.0f} s left" if seconds >= 5 else "a few seconds left"


def shown(text: str, step: str, elapsed_s: float, done: float, total: float) -> str:
    """The progress in one line."""
    # More than was expected is not finished either.
    known = min(done, 0.99 * total)
    return (
        f"{text}: {done:,.0f} of about {max(total, done):,.0f} MB,"
        f" {left(elapsed_s, known, total)} ({step})"
    )


def draw(line: str, part: float, screen: TextIO) -> None:
    """The line behind a bar, in the place of the one before."""
    filled = round(BAR * min(part, 1.0))
    width = shutil.get_terminal_size().columns - 1
    bar = f"[{'#' * filled}{'.' * (BAR - filled)}] {line}"
    screen.write(f"\r\x1b[K{bar[:width]}")
    screen.flush()


def install(text: str, total: float, arguments: list[str], screen: TextIO) -> int:
    """Run pip; answers its exit status."""
    began_s = line_s = time.monotonic()
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-pip-") as folder:
        watched = (Path(folder), Path(sysconfig.get_path("purelib")))
        before, most = megabytes(watched), 0.0
        pip = subprocess.Popen(
            [*PIP, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,  # Ctrl-C is for us, who end it
        )
        reader = threading.Thread(target=lambda: said.extend(pip.stdout or ()), daemon=True)
        reader.start()
        try:
            while pip.poll() is None:
                time.sleep(LOOK_S)
                # What is unpacked is removed again.
                most = max(most, megabytes(watched) - before)
                steps = [
                    " ".join(found.groups()) for line in said[-20:] if (found := _STEP.match(line))
                ]
                step = steps[-1].lower() if steps else "pip starts"
                line = shown(text, step, time.monotonic() - began_s, most, total)
                if screen.isatty():
                    draw(line, most / total, screen)
                elif time.monotonic() - line_s >= LINE_S:
                    line_s = time.monotonic()
                    screen.write(f"{line}\n")
                    screen.flush()
        finally:
            if screen.isatty():
                screen.write("\r\x1b[K")
            if pip.poll() is None:
                os.killpg(pip.pid, signal.SIGTERM)
                pip.wait()
            reader.join()
    if pip.returncode:
        sys.stderr.write("".join(said[-20:]))
    else:
        screen.write(f"{text}: done in {time.monotonic() - began_s:.0f} s\n")
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(install(sys.argv[1], float(sys.argv[2]), sys.argv[3:], sys.stdout))
    except KeyboardInterrupt:
        sys.exit(130)
