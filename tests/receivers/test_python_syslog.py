"""Python's own SysLogHandler, over TCP: each message with NUL at its end."""

import asyncio
import logging
import logging.handlers
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.receivers.serving import Journal, in_loop, receiving, until
from tests.receivers.test_tcp import tcp

from headrace.receivers.settings import Framing

pytestmark = pytest.mark.nightly

TRACE = "failed\nTraceback (most recent call last):\n5 frames\n<14>not a start"


@contextmanager
def python_logger(port: int) -> Iterator[logging.Logger]:
    handler = logging.handlers.SysLogHandler(("127.0.0.1", port), socktype=socket.SOCK_STREAM)
    logger = logging.Logger("sender")  # of this test alone
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


@pytest.mark.parametrize("framing", ["nul", "auto"])
@in_loop
async def test_messages_of_python_are_stored_each_as_it_was_sent(framing: Framing) -> None:
    journal, receiver = Journal(), tcp(framing=framing, acknowledge=False)
    async with receiving(receiver, journal) as intake:

        def send() -> None:
            with python_logger(receiver.port) as logger:
                for text in ["one", TRACE, "last"]:
                    logger.warning(text)

        await asyncio.to_thread(send)
        await until(lambda: len(journal.values) == 3)
        assert intake.rejections.totals == {}
    assert journal.values == [f"<12>{text}".encode() for text in ("one", TRACE, "last")]
