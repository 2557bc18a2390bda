"""A dashboard as its own process, and a browser that looks at it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.operate.dashboard.browsers import ADVICE, OFFLINE, find_browser
from tests.operate.dashboard.histories import a_ledger
from tests.services.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# `make unit` does without the package that they are written with.
_WITH_PLAYWRIGHT: Final = ["picture.py", "test_actions.py", "test_live_pages.py"]
collect_ignore = [] if find_spec("playwright") else _WITH_PLAYWRIGHT

TOKEN: Final = "a token that nobody guesses"  # noqa: S105  (of these tests alone)
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The browser that a module's tests share; where there is none, a test says how to install one.

    Not longer, for while it is there an event loop runs in this thread, and no other one can.
    """
    from playwright.sync_api import sync_playwright

    found = find_browser()
    if found is None:
        pytest.fail(f"There is no browser to test with; {ADVICE}.", pytrace=False)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(OFFLINE))
        yield running
        running.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page of a browser without cookies. A script that fails, or is refused, fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console",
        lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None,
    )
    yield opened
    context.close()
    assert wrong == []


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A new ledger with a gate of a few batches."""
    return a_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


@contextmanager
def dashboards(folder: Path) -> Iterator[Serve]:
    """``serve(url, *options)`` starts a dashboard; its address, without the last slash."""
    running: list[subprocess.Popen[str]] = []

    def start(ledger: str, *options: str) -> str:
        log = folder / f"dashboard-{len(running)}.log"
        command = [sys.executable, "-m", "headrace", "dashboard", "--ledger", ledger]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--port", "0", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "HEADRACE_DASHBOARD_TOKEN": TOKEN},
            )
        running.append(process)

        def address() -> str | None:
            assert process.poll() is None, log.read_text()
            said = log.read_text()
            return said.rpartition(" at ")[2].strip().rstrip("/") if " at http" in said else None

        return str(wait_until(address))

    yield start
    for process in running:
        process.terminate()
    for process in running:
        assert process.wait(60) == 0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Dashboards of one test."""
    with dashboards(tmp_path) as start:
        yield start


@pytest.fixture
def signed_in(page: "Page") -> "Callable[[str], Page]":
    """``signed_in(address)`` signs somebody in; the page is at the overview then."""

    def sign_in(address: str) -> "Page":
        page.goto(f"{address}/sign-in")
        page.get_by_label("Your name").fill("Ada")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{address}/")
        return page

    return sign_in
