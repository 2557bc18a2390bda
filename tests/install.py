"""``python tests/install.py TEXT MB MB ARGUMENTS``: pip install, with what it has done so far.

For the Makefile: on a terminal as a bar, elsewhere as a line every ten seconds. It counts what pip
has written, to its temporary folder and to the environment, against about how much is to be
downloaded and installed: of all the packages, of which some may be there already.
It mends what an interrupted run or a broken cache has left, and begins nothing for which the disk
has no room. It runs on the standard library alone, before anything is installed.
"""

import contextlib
import fcntl
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
from pathlib import Path
from typing import Final, TextIO

PIP: Final = (
    *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
    *("--no-compile", "--progress-bar", "off"),
)
BAR: Final = 24
LOOK_S, LINE_S = 0.5, 10.0
_STEP: Final = re.compile(
    r"^ *((?:Collecting|Downloading|Building wheel for) +[^\s=:]+|Installing)"
)
_MEGABYTE: Final = 1_000_000

BROKEN: Final = re.compile(r"DO NOT MATCH THE HASHES|BadZipFile|Wheel .* is invalid|Decompression")
"""Words of pip about a file that is not what it should be, as one that its cache has."""

UNPACKED: Final = 2.5
"""Megabytes in temporary folders for each downloaded one: Spark is built there from its source."""


def megabytes(folder: Path) -> float:
    """Return the size of a folder's files, which may change meanwhile."""
    size = 0
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


def remove_halves(packages: Path) -> None:
    """Remove what says that a package is there, of those that pip has not installed to their end.

    Each has one of these files near its end. Without this, pip takes the package to be complete.
    """
    for pattern, last in (("*.dist-info", "INSTALLER"), ("*.egg-info", "installed-files.txt")):
        for folder in packages.glob(pattern):
            if not (folder / last).exists():
                shutil.rmtree(folder)


def present(lock: Path, packages: Path) -> float:
    """Megabytes of the packages of a lock file that are installed in their locked versions."""
    locked = set(re.findall(r"^([\w.-]+==[^\s;]+)", lock.read_text(), re.MULTILINE))
    size = 0
    for record in (*packages.glob("*/RECORD"), *packages.glob("*/installed-files.txt")):
        name, version = record.parent.stem.split("-")[:2]
        if f"{re.sub('[-_.]+', '-', name).lower()}=={version}" not in locked:
            continue
        # Its paths begin at the packages, those of the older file beside it.
        start = packages if record.name == "RECORD" else record.parent
        for line in record.read_text().splitlines():
            with contextlib.suppress(OSError):
                size += Path(start, line.split(",")[0]).lstat().st_size
    return size / _MEGABYTE


def shortage(text: str, needed: dict[Path, float]) -> str | None:
    """The sentence about the first disk that has less room than its folders need together."""
    disks: dict[int, float] = {}
    for folder, megabyte in needed.items():
        disk = folder.stat().st_dev
        disks[disk] = disks.get(disk, 0) + megabyte
        free = shutil.disk_usage(folder).free / _MEGABYTE
        if disks[disk] > free:
            return (
                f"{text}: that takes about {disks[disk]:,.0f} MB on the disk of {folder}, where"
                f" {free:,.0f} MB are free; make room there, and run make again."
            )
    return None


def pip_cache() -> Path:
    """The folder, there already, in which pip keeps its cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pip")
    folder = Path(os.environ.get("PIP_CACHE_DIR") or base).expanduser().absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


def install(
    text: str, to_download: float, to_install: float, arguments: list[str], screen: TextIO
) -> int:
    """Mend the environment, see whether there is room, and run pip; answers its exit status."""
    packages = Path(sysconfig.get_path("purelib"))
    remove_halves(packages)
    if "--requirement" in arguments and "--target" not in arguments:
        lock = Path(arguments[arguments.index("--requirement") + 1])
        missing = max(1 - present(lock, packages) / to_install, 0.01)
        to_download, to_install = missing * to_download, missing * to_install
    temporary = Path(tempfile.gettempdir())
    needed = {temporary: UNPACKED * to_download}
    for folder, megabyte in ((packages, to_install), (pip_cache(), to_download)):
        needed[folder] = needed.get(folder, 0) + megabyte
    if (refusal := shortage(text, needed)) is not None:
        sys.stderr.write(f"{refusal}\n")
        return 1
    status, words = run_pip(text, to_download, to_install, arguments, screen)
    if status and BROKEN.search(words):
        screen.write("A file is not what it should be; downloading it again, past pip's cache\n")
        status, words = run_pip(
            text, to_download, to_install, [*arguments, "--no-cache-dir"], screen
        )
    if status:
        sys.stderr.write(words)
    return status


def run_pip(
    text: str, to_download: float, to_install: float, arguments: list[str], screen: TextIO
) -> tuple[int, str]:
    """Run pip; answers its exit status and its last words."""
    began_s = line_s = time.monotonic()
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-pip-") as folder:
        packages = Path(sysconfig.get_path("purelib"))
        before, downloaded = megabytes(packages), 0.0
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
                # Wheels that are built there add to the size, and are removed again.
                downloaded = min(max(downloaded, megabytes(Path(folder))), to_download)
                steps = [found[1] for line in said[-20:] if (found := _STEP.match(line))]
                step = steps[-1] if steps else "pip starts"
                # Then all is there; what had been downloaded before was not downloaded again.
                total = (downloaded if step == "Installing" else to_download) + to_install
                done = downloaded + megabytes(packages) - before
                line = shown(text, step.lower(), time.monotonic() - began_s, done, total)
                if screen.isatty():
                    draw(line, done / total, screen)
                elif time.monotonic() - line_s >= LINE_S:
                    line_s = time.monotonic()
                    screen.write(f"{line}\n")
                    screen.flush()
        finally:
            if screen.isatty():
                screen.write("\r\x1b[K")
            if pip.poll() is None:
                end(pip)
            reader.join()
    if not pip.returncode:
        screen.write(f"{text}: done in {time.monotonic() - began_s:.0f} s\n")
    return pip.returncode, "".join(said[-20:])


def end(pip: subprocess.Popen[str]) -> None:
    """Interrupt pip, which puts back what it was replacing; after ten seconds, kill it."""
    os.killpg(pip.pid, signal.SIGINT)
    try:
        pip.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(pip.pid, signal.SIGKILL)
        pip.wait()


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _, text, download, installed, *arguments = sys.argv
        with Path(sys.prefix, ".installing").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one pip at a time, also of `make --jobs`
            sys.exit(install(text, float(download), float(installed), arguments, sys.stdout))
    except KeyboardInterrupt:
        sys.exit(130)
