"""Programs of Debian's packages, unpacked into a folder of the cache: nothing is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.operate.local.java import cache_folder, exclusive

PACKAGES: Final = {
    "curl": ("curl",),
    "mosquitto": ("mosquitto",),
    "mosquitto_pub": ("mosquitto-clients",),
    "pgbouncer": ("pgbouncer",),
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "syslog-ng": ("syslog-ng-core", "syslog-ng-mod-http"),
}
"""Programs that tests run, and the packages that have them."""

_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class Program(NamedTuple):
    """A program's path, the environment that it needs, and the folder of its package.

    The folder is ``/`` where the machine has it installed.
    """

    path: str
    variables: dict[str, str]
    root: Path


def program(name: str) -> Program:
    """This machine's own program of that name, or the one of its packages."""
    if found := shutil.which(name, path=_PLACES):
        return Program(found, dict(os.environ), Path("/"))
    packages = PACKAGES[name]
    place = cache_folder(packages[0])
    unpacked = place / "unpacked"
    with exclusive(place / "lock"):
        if not unpacked.exists():
            _unpack(place, unpacked, packages)
    (path,) = {str(file) for file in unpacked.rglob(name) if file.parent.name in ("bin", "sbin")}
    libraries = os.pathsep.join(sorted({str(each.parent) for each in unpacked.rglob("lib*.so*")}))
    return Program(path, {**os.environ, "LD_LIBRARY_PATH": libraries}, unpacked)


def missing() -> list[str]:
    """The programs that this machine has neither installed nor unpacked."""
    return [
        name
        for name, packages in PACKAGES.items()
        if not shutil.which(name, path=_PLACES)
        and not (cache_folder(packages[0]) / "unpacked").exists()
    ]


def _unpack(place: Path, unpacked: Path, packages: Sequence[str]) -> None:
    """Download what is missing to run it, and unpack that: nothing is installed."""
    assert shutil.which("apt-get"), f"These tests need a real program; install {packages[0]}."
    with tempfile.TemporaryDirectory(dir=place) as work:
        try:
            _download(work, packages)
        except subprocess.CalledProcessError:  # the lists of packages are not there, or are old
            _quietly("apt-get", "update")
            _download(work, packages)
        for package in Path(work).glob("*.deb"):
            _quietly("dpkg-deb", "--extract", package, f"{work}/unpacked")
        Path(work, "unpacked").rename(unpacked)


def _download(folder: str, packages: Sequence[str]) -> None:
    """Download what would be installed."""
    planned = _quietly("apt-get", "--simulate", "--no-install-recommends", "install", *packages)
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    _quietly("apt-get", "download", *names, folder=folder)


def _quietly(*command: str | Path, folder: str | None = None) -> str:
    """Return a command's standard output; an error has its standard error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout
