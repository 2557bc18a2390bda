"""Fixtures for the tests of a task's two ends."""

import contextlib
from collections.abc import Iterator

import pytest
from tests.journal.receivers.spark.driven import TOKEN, Driven

from headrace.journal.receivers.spark.reporting import ReportServer


@pytest.fixture
def server() -> Iterator[ReportServer]:
    opened = ReportServer("127.0.0.1", 0)
    with contextlib.closing(opened):
        yield opened


@pytest.fixture
def driven(server: ReportServer) -> Driven:
    """Gets the reports with `TOKEN`."""
    found = Driven()
    server.expect(TOKEN, found.reported, found.left)
    return found
