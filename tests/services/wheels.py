"""Wheels of what Headrace needs with its extra `receivers`, in their locked versions.

An environment is made of them without a network.
"""

import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WHEELS: Final = Path(sys.prefix, "wheels")
LOCK: Final = Path(__file__).parents[2] / "requirements.lock"


def make_wheels() -> None:
    """Make them anew, mostly of what pip has in its cache."""
    blocks = re.findall(r"^([\w.-]+)(==.*\\\n(?: +--hash=.*\n)+)", LOCK.read_text(), re.MULTILINE)
    names = dependencies("headrace[receivers]")
    with tempfile.TemporaryDirectory(dir=sys.prefix) as work:
        chosen = Path(work, "requirements.txt")
        chosen.write_text("".join(name + rest for name, rest in blocks if name in names))
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-input", "--no-deps"]
        folder = f"--wheel-dir={work}/wheels"
        subprocess.run(
            [*pip, "--require-hashes", folder, f"--requirement={chosen}"],
            check=True,
            capture_output=True,
            text=True,
        )
        if WHEELS.exists():
            WHEELS.rename(f"{work}/old")
        Path(work, "wheels").rename(WHEELS)


def dependencies(package: str) -> set[str]:
    """The names of all packages that a package of this environment needs, its own left out."""
    waiting, seen = [Requirement(package)], set[str]()
    names = set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        for needed in map(Requirement, requires(requirement.name) or ()):
            extras = requirement.extras or {""}
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in extras):
                names.add(canonicalize_name(needed.name))
                waiting.append(needed)
    return names
