"""Programs that tests run: this machine's own, or unpacked from Debian's or Ubuntu's packages."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from headrace.local.cache import cache_folder, exclusive

_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


@cache
def program(name: str, package: str, *others: str) -> tuple[str, str | None]:
    """A program of packages, and where its libraries are if not where the system looks."""
    if found := shutil.which(name, path=_PLACES):
        return found, None
    place = cache_folder(package)
    unpacked = place / "unpacked"
    with exclusive(place / "lock"):
        if not unpacked.exists():
            _unpack((package, *others), place, unpacked)
    libraries = {str(file.parent) for file in unpacked.rglob("lib*.so*")}
    (found_in,) = (path for path in unpacked.glob(f"usr/*bin/{name}"))
    return str(found_in), os.pathsep.join(sorted(libraries))


def environment(libraries: str | None) -> dict[str, str]:
    """The environment variables of such a program."""
    return {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}


def _unpack(packages: Sequence[str], place: Path, unpacked: Path) -> None:
    """Download what is missing to run it, and unpack that: nothing is installed."""
    assert shutil.which("apt-get"), f"These tests need a real {packages[0]}; install it."
    with tempfile.TemporaryDirectory(dir=place) as work:
        try:
            _download(packages, work)
        except subprocess.CalledProcessError:  # the lists of packages are not there, or are old
            subprocess.run(["apt-get", "--quiet", "update"], check=True)
            _download(packages, work)
        for each in Path(work).glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", each, f"{work}/unpacked"], check=True)
        Path(work, "unpacked").rename(unpacked)


def _download(packages: Sequence[str], folder: str) -> None:
    """Download what would be installed."""
    plan = ["apt-get", "--simulate", "--no-install-recommends", "install", *packages]
    planned = subprocess.run(plan, capture_output=True, text=True, check=True).stdout
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    subprocess.run(["apt-get", "--quiet", "download", *names], cwd=folder, check=True)
