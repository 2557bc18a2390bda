"""A sender of lines: how its lines are cut, and senders that do not do their part."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.receivers.serving import Journal, in_loop, is_closed, until
from tests.journal.receivers.virtual import values_of

from headrace.errors import ReceiverError
from headrace.journal.receivers import Intake, IntakeSettings, TcpSettings
from headrace.journal.receivers.lines import SenderLines
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.tcp import LineSender, SharedBySenders

# None begins as another protocol does, which is refused whatever its length.
contents = st.lists(st.sampled_from(b"az09 {\xc3\xff"), max_size=30).map(bytes)


@given(
    st.lists(st.tuples(contents, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    contents,
    st.lists(st.integers(0, 500), max_size=8),
    st.integers(1, 40),
)
def test_lines_are_taken_up_to_the_first_that_is_too_long_wherever_they_are_cut(
    written: list[tuple[bytes, bytes]], rest: bytes, cuts: list[int], longest: int
) -> None:
    room = MemoryBudget(1_000)
    lines = SenderLines(TcpSettings(max_line_bytes=longest), room)
    data = b"".join(line + end for line, end in written) + rest
    taken: list[bytes] = []
    refused = None
    start = 0
    try:
        for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
            if whole := lines.add(data[start:end]):
                records, error = lines.records(whole, 1)
                taken += values_of(records)
                if error:
                    raise error
            lines.check()
            start = end
    except ReceiverError as error:
        refused = str(error)

    good = [line for line, _ in written]
    for place, line in enumerate(good):
        if len(line) > longest:
            assert taken == good[:place]
            assert refused is not None
            assert refused.startswith(f"Line {place + 1} is longer than the {longest} bytes")
            break
    else:
        assert taken == good
        assert lines.is_unfinished == bool(rest)
        assert (refused is not None) == (len(rest) > longest + 1)
        if refused is None:
            assert room.reserved_bytes == len(rest)
        else:  # as soon as it was too long
            assert longest + 1 < room.reserved_bytes <= len(rest)
    lines.close()
    assert room.reserved_bytes == 0


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


def shared(intake: Intake, line_s: float = 30, **limits: Any) -> SharedBySenders:
    return SharedBySenders(intake, TcpSettings(acknowledge=True, line_s=line_s), **limits)


async def begun(ours: socket.socket, common: SharedBySenders) -> LineSender:
    loop = asyncio.get_running_loop()
    _, sender = await loop.connect_accepted_socket(lambda: LineSender(common), ours)
    return sender


@in_loop
async def test_senders_that_never_read_their_answers_do_not_stop_the_others(pairs: Pairs) -> None:
    journal = Journal()
    async with Intake(journal.append, IntakeSettings(block_interval_ms=1)) as intake:
        # A line is read at a time.
        common = shared(intake, line_s=1_000, read_bytes=2, readers=16, max_unanswered=3)
        stuck = [pairs.full() for _ in range(32)]
        serving = [await begun(ours, common) for ours, _ in stuck]
        for _, theirs in stuck:
            theirs.send(b"a\n" * 10)
        # One whose answer is being written, and those that may be without one besides it.
        await until(lambda: len(journal.values) == 4 * len(stuck))

        ours, theirs = pairs.open()
        serving.append(await begun(ours, common))
        theirs.send(b"b\n")
        assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b"ok 1\n"
        assert journal.values == [b"a"] * 4 * len(stuck) + [b"b"]
        for end in pairs.ends[1::2]:
            end.close()
        await asyncio.wait({sender.closed for sender in serving})


@in_loop
async def test_a_sender_that_does_not_read_its_answers_in_time_is_let_go(pairs: Pairs) -> None:
    journal = Journal()
    async with Intake(journal.append, IntakeSettings(block_interval_ms=1)) as intake:
        common = shared(intake, line_s=0.2)
        ours, theirs = pairs.full()
        sender = await begun(ours, common)
        theirs.send(b"a\n")
        await sender.closed
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
        sender = await begun(ours, shared(intake))
        for _ in range(5):  # until it waits for lines
            await asyncio.sleep(0)
        theirs.send(b"a\n")
        loop.call_soon(sender.stop)  # the loop finds the line before this, and tells it after
        await sender.closed
    assert wrong == []


@pytest.mark.parametrize(
    ("data", "values", "error"),
    [
        (b"11 <1>hello\nab7 <1>good", [], "1 is a syslog message that begins with its length"),
        (b"<1>a\0<1>b\0c\n", [], "1 is a syslog message that ends with NUL, not a line"),
        (b"<1>a\n<1>b\0c\n", [b"<1>a"], "2 is a syslog message that ends with NUL"),
        (b"5 hello\nb\0c\n", [b"5 hello", b"b\0c"], ""),
    ],
)
def test_messages_of_syslog_that_are_no_lines_are_refused(
    data: bytes, values: list[bytes], error: str
) -> None:
    lines = SenderLines(TcpSettings(), MemoryBudget(1_000))
    records, _ = lines.records(lines.add(data), 1)
    assert values_of(records) == values
    if not error:
        lines.check()
        return
    with pytest.raises(ReceiverError, match=f"Line {error}"):
        lines.check()
