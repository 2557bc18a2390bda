"""Leaves out the tests of the pages where there is no browser, and says so twice."""

from typing import Any, Final

import pytest
from tests.operate.dashboard.browsers import ADVICE, find_browser, is_required

_COUNT: Final = "tests of the pages left out"
"""The name under which a worker reports its count."""


class PagesLeftOut:
    """A plugin of pytest, of a run that has no browser: of its workers, too, if it has some."""

    def __init__(self) -> None:
        self._count = 0

    def pytest_report_header(self, config: pytest.Config) -> str | None:
        if "unit" in config.option.markexpr.split():
            return None  # no test of a page is one
        return f"There is no browser: the tests of the pages are left out; {ADVICE}."

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        of_pages = [each for each in items if "browser" in getattr(each, "fixturenames", ())]
        items[:] = [each for each in items if each not in of_pages]
        if of_pages:
            config.hook.pytest_deselected(items=of_pages)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._count += sum("browser" in getattr(each, "fixturenames", ()) for each in items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_COUNT] = self._count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; each has collected the same tests."""
        self._count = max(self._count, getattr(node, "workeroutput", {}).get(_COUNT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._count:
            terminalreporter.write_line(
                f"There is no browser: {self._count} tests of the pages were left out; {ADVICE}."
            )


def leave_out_pages(config: pytest.Config) -> None:
    """Do so in this run if it has to."""
    if not find_browser() and not is_required():
        config.pluginmanager.register(PagesLeftOut(), "pages-left-out")
