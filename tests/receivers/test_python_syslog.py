"""Python's own SysLogHandler, over TCP: each message with NUL at its end."""

import asyncio
import logging
import logging.handlers
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.receivers.serving import Journal, in_loop, receiving, until
from tests.receivers.test_tcp import connected, tcp

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


@pytest.mark.parametrize(
    ("framing", "said"),
    [
        ("lines", "Line 1 is a message of syslog that ends with NUL, and no line; receive it with"),
        ("octet-counting", "Message 1 has b'<' where its length or the space after that must be"),
    ],
)
@in_loop
async def test_where_another_framing_is_expected_nothing_is_stored_and_one_sentence_says_why(
    framing: Framing, said: str
) -> None:
    journal, receiver = Journal(), tcp(framing=framing)
    async with receiving(receiver, journal) as intake:
        async with connected(receiver) as client:
            await client.send(b"<12>one\0<12>two\0")
            assert (await client.answer()).startswith(f"error {said}")
            assert await client.reader.read() == b""
        await until(lambda: intake.rejections.totals["not taken"] == 1)
    assert journal.values == []


@in_loop
async def test_auto_takes_counted_messages_and_lines_on_one_port() -> None:
    journal, receiver = Journal(), tcp(framing="auto")
    async with receiving(receiver, journal):
        async with connected(receiver) as client:
            await client.send(b"5 hello12 <12>a\nb\nc 13")
            await client.acknowledged(2)
        async with connected(receiver) as client:
            await client.send(b"<12>line\r\n9 <12>count<12>next\n")
            await client.acknowledged(3)
            await client.send(b"glued fragment\n")
            assert (await client.answer()).startswith("error Message 4 has b'g' where its length")
            assert await client.reader.read() == b""
    assert journal.values == [b"hello", b"<12>a\nb\nc 13", b"<12>line", b"<12>count", b"<12>next"]
