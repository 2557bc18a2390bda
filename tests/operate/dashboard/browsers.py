"""The browser of the tests, which asks for nothing but their own pages.

``python -m tests.operate.dashboard.browsers`` installs one where it can: as root, with apt. Without
a browser, the tests of the pages are left out; with CI=true in the environment that is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
"""Programs that will do, the first that is there."""

OFFLINE: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""With these it looks up nothing by itself."""

ADVICE: Final = "install Chromium, as with: apt-get install chromium"


def find_browser() -> str | None:
    """The path of the first browser that this machine has."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def is_required() -> bool:
    """Whether the tests of the pages run, or fail, in any case."""
    return os.environ.get("CI") == "true"


def main() -> int:
    """See to it that there is a browser; the exit status is 1 if there must be one and is not."""
    if not find_browser() and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
    if find_browser():
        return 0
    then = "CI=true needs one" if is_required() else "the tests of the pages are left out"
    sys.stderr.write(f"There is no browser: {then}; {ADVICE}.\n")
    return 1 if is_required() else 0


def _install() -> None:
    """Try to install Chromium, and say how much that is."""
    apt = ["apt-get", "-o", "Acquire::Retries=3"]
    install = [*apt, "install", "--no-install-recommends", "chromium"]
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}

    def run(command: list[str]) -> str:
        done = subprocess.run(command, env=variables, check=False, capture_output=True, text=True)
        return done.stdout

    run([*apt, "update"])
    plan = run([*install, "--assume-no"])
    if size := re.search(r"After this operation, (.*) of additional disk space", plan):
        sys.stdout.write(f"Installing Chromium with apt, {size[1]}, for the tests of the pages\n")
        sys.stdout.flush()
        run([*install, "--yes"])


if __name__ == "__main__":
    sys.exit(main())
