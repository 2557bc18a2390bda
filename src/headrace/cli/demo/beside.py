"""Processes beside the demo: the driver, and the dashboard."""

import os
import re
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from headrace.core.extras import needs_extra
from headrace.errors import HeadraceError, SetupError
from headrace.local.server import ServerProcess

_LOG: Final = "server.log"
_LAST_LINES: Final = 12
_START_S: Final = 30
_ADDRESS: Final = re.compile(r"^The dashboard is at (\S+)$", re.MULTILINE)


class PythonProcess(ServerProcess):
    """A module that is run in a folder of its own, and ends when this process does."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__()
        folder.mkdir()
        self._folder = folder
        self._command = (sys.executable, "-m", *arguments)

    def start(self) -> None:
        """Start it, or start it again."""
        self._launch("headrace-demo", self._folder, self._command)

    def log(self) -> str:
        """Output of the process so far."""
        return (self._folder / _LOG).read_text(errors="replace")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            ending = "\n".join(self.log().splitlines()[-_LAST_LINES:])
            raise HeadraceError(f"The demo's {self._command[2]} has ended:\n{ending}")


def show_dashboard(
    process: PythonProcess, console: Console, open_page: Callable[[str], object] | None
) -> None:
    """Start the dashboard, say where it is, and open it; without what it needs, say that."""
    try:
        with needs_extra("dashboard", "The dashboard"):
            import headrace.dashboard  # noqa: F401, PLC0415  (an extra)
    except SetupError as error:
        console.print(f"Without the dashboard: {error}", soft_wrap=True)
        return
    process.start()
    ends_s = time.monotonic() + _START_S
    while (found := _ADDRESS.search(process.log())) is None:
        process.check()
        if time.monotonic() > ends_s:
            raise HeadraceError(f"The demo's dashboard did not start in {_START_S} s.")
        time.sleep(0.05)
    console.print(f"The dashboard is at {found[1]}", soft_wrap=True)
    if open_page is not None:
        open_page(found[1])


def browser(
    variables: Mapping[str, str], platform: str = sys.platform
) -> Callable[[str], object] | None:
    """Return the opener of pages, if there is a display and somebody who looks at it; else None.

    >>> browser({"CI": "true", "DISPLAY": ":0"}, "linux") is browser({}, "linux") is None
    True
    """
    has_display = platform in {"darwin", "win32"} or any(
        variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return webbrowser.open if has_display and not variables.get("CI") else None


def page_opener(console: Console, *, wanted: bool) -> Callable[[str], object] | None:
    """The browser of somebody who sits before this terminal."""
    return browser(os.environ) if wanted and console.is_terminal else None
