"""What tests of the tracker's two ends share."""

import contextlib
from collections.abc import Iterator

import pytest

from headrace.tracker.channel import Channel


@pytest.fixture
def channel() -> Iterator[Channel]:
    opened = Channel("127.0.0.1", 0)
    with contextlib.closing(opened):
        yield opened
