"""Senders of lines that do not do their part, on sockets whose buffers the test has filled."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.receivers.serving import Journal, in_loop, is_closed, until

from headrace.receivers import Intake, IntakeSettings, TcpSettings
from headrace.receivers.tcp.line_sender import LineSender, SharedBySenders


class Pairs:
    """Connections: the receiver's end of each, and the sender's."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []

    def open(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
            self.ends.append(each)
        return ours, theirs

    def full(self) -> tuple[socket.socket, socket.socket]:
        """One that has no room for an answer."""
        ours, theirs = self.open()
        for filling in (b"\n" * 4096, b"\n"):
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(filling)
        return ours, theirs


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    opened = Pairs()
    yield opened
    for end in opened.ends:
        end.close()


def shared(intake: Intake, line_s: float = 30, **limits: int) -> SharedBySenders:
    return SharedBySenders(intake, TcpSettings(acknowledge=True, line_s=line_s), **limits)


@in_loop
async def test_senders_that_never_read_their_answers_do_not_stop_the_others(pairs: Pairs) -> None:
    journal = Journal()
    async with Intake(journal.append, IntakeSettings(block_interval_ms=1)) as intake:
        # A line is read at a time.
        common = shared(intake, line_s=1_000, read_bytes=2, readers=16, max_unanswered=3)
        stuck = [pairs.full() for _ in range(32)]
        serving = [LineSender(ours, common).start() for ours, _ in stuck]
        for _, theirs in stuck:
            theirs.send(b"a\n" * 10)
        # One whose answer is being written, and those that may be without one besides it.
        await until(lambda: len(journal.values) == 4 * len(stuck))

        ours, theirs = pairs.open()
        serving.append(LineSender(ours, common).start())
        theirs.send(b"b\n")
        assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b"ok 1\n"
        assert journal.values == [b"a"] * 4 * len(stuck) + [b"b"]
        for end in pairs.ends[1::2]:
            end.close()
        await asyncio.wait(serving)


@in_loop
async def test_a_sender_that_does_not_read_its_answers_in_time_is_let_go(pairs: Pairs) -> None:
    journal = Journal()
    async with Intake(journal.append, IntakeSettings(block_interval_ms=1)) as intake:
        common = shared(intake, line_s=0.2)
        ours, theirs = pairs.full()
        serving = LineSender(ours, common).start()
        theirs.send(b"a\n")
        await serving
        assert journal.values == [b"a"]
        assert len(common.connections) == 0
        assert ours.fileno() == -1
        while answered := await asyncio.get_running_loop().sock_recv(theirs, 65536):
            assert answered.strip() == b""
        assert is_closed(theirs)
        refused = intake.rejections.drain()
        assert refused is not None
        assert refused.counts == {"not reading": 1}
        assert refused.last == (
            "A sender did not read its answers for 0.2 s; read them, or raise line_s."
        )


@in_loop
async def test_a_stop_in_the_moment_in_which_lines_come_is_clean(pairs: Pairs) -> None:
    loop = asyncio.get_running_loop()
    wrong: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    async with Intake(Journal().append) as intake:
        ours, theirs = pairs.open()
        sender = LineSender(ours, shared(intake))
        serving = sender.start()
        for _ in range(5):  # until it waits for lines
            await asyncio.sleep(0)
        theirs.send(b"a\n")
        loop.call_soon(sender.stop)  # the loop finds the line before this, and tells it after
        await serving
    assert wrong == []
