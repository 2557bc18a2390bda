"""What tests of a task's two ends share."""

import contextlib
from collections.abc import Iterator

import pytest

from headrace.receivers.spark.reporting import ReportServer


@pytest.fixture
def server() -> Iterator[ReportServer]:
    opened = ReportServer("127.0.0.1", 0)
    with contextlib.closing(opened):
        yield opened
