"""What an intake takes over of the ids in its lane, and what ends the looking for them."""

import asyncio
import logging
import threading
from itertools import count
from pathlib import Path

import pytest
from tests.receivers.serving import DEADLINE_S, run, until

from headrace.control import OffsetRange
from headrace.errors import ReceiverError
from headrace.journal import Journal
from headrace.journal.records import Records
from headrace.receivers import Hosting, Intake
from headrace.receivers.host import serve
from headrace.receivers.remembering import remember

BLOCKS = 5


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Has a lane of blocks of one record, whose ids are their offsets."""
    made = Journal.open(str(tmp_path / "events"), create=True)
    with made.writer(0) as writer:
        for offset in range(BLOCKS):
            writer.append(Records.of([b"x"], timestamp_ms=1, ids=[str(offset)]))
    return made


class Watched(Intake):
    """Says at which offsets it was told of ids, in the order in which it was."""

    def __init__(self) -> None:
        super().__init__(refused)
        self.known: list[int] = []

    def remember(self, ids: object, offsets: OffsetRange) -> None:
        self.known += range(offsets.start, offsets.until)


class Slow:
    """Blocks that come when they are let, as over a network."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.going = threading.Event()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow, records = Slow(), Journal.records

    def come(journal: Journal, lane: int, first: int) -> Records:
        slow.read.append(first)
        assert slow.going.wait(DEADLINE_S)
        return records(journal, lane, first)

    monkeypatch.setattr(Journal, "records", come)
    return slow


async def settle() -> None:
    """Let whoever can go on do so until nobody can."""
    for _ in range(20):
        await asyncio.sleep(0)


def refused(_records: Records) -> OffsetRange:
    raise AssertionError("nothing is appended here")


def test_no_more_blocks_are_read_than_the_time_allows_and_the_log_says_so(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    intake, clock = Watched(), count(step=4)
    with caplog.at_level(logging.WARNING, "headrace.receivers"):
        run(remember(journal, 0, intake, asyncio.Event(), lambda: float(next(clock))))
    assert intake.known == [3, 4]
    (told,) = caplog.messages
    assert "newest records only, 2 in 2 blocks: no more could be read within 10 s" in told


def test_within_the_time_all_of_them_are_remembered_without_a_word(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    intake = Watched()
    run(remember(journal, 0, intake, asyncio.Event(), lambda: 0.0))
    assert intake.known == list(range(BLOCKS))
    assert not caplog.messages


def test_the_loop_goes_on_meanwhile_and_a_stop_ends_it_after_a_block(
    journal: Journal, slow: Slow
) -> None:
    intake, stop = Watched(), asyncio.Event()

    async def work() -> None:
        remembering = asyncio.create_task(remember(journal, 0, intake, stop))
        await until(lambda: slow.read)
        stop.set()
        await settle()
        assert not remembering.done()
        slow.going.set()
        await remembering

    run(work())
    assert slow.read == [BLOCKS - 1]
    assert intake.known == [BLOCKS - 1]


def test_when_it_is_cancelled_it_is_done_with_the_journal(journal: Journal, slow: Slow) -> None:
    async def work() -> None:
        remembering = asyncio.create_task(remember(journal, 0, Watched(), asyncio.Event()))
        await until(lambda: slow.read)
        remembering.cancel()
        await settle()
        assert not remembering.done()
        slow.going.set()
        with pytest.raises(asyncio.CancelledError):
            await remembering

    run(work())
    assert slow.read == [BLOCKS - 1]


class Never:
    """A receiver that is not to receive."""

    async def receive(self, intake: Intake) -> None:
        raise ReceiverError("It has received; it was to be stopped before.")


def test_a_receiver_that_is_stopped_meanwhile_does_not_begin_and_its_lane_is_free(
    journal: Journal, slow: Slow
) -> None:
    stop = asyncio.Event()

    async def work() -> None:
        serving = asyncio.create_task(serve(Never(), Hosting(journal.storage.url), stop))
        await until(lambda: slow.read)
        stop.set()
        slow.going.set()
        await serving

    run(work())
    with journal.writer(0) as writer:
        assert writer.end == BLOCKS
