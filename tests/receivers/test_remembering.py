"""What an intake takes over of the ids in its lane, and what ends the looking for them."""

import asyncio
import logging
import threading
from itertools import count
from pathlib import Path

import pytest
from tests.receivers.serving import DEADLINE_S, in_loop, until

from headrace.errors import ReceiverError
from headrace.journal import Journal
from headrace.journal.records import Records
from headrace.receivers import Hosting, Intake
from headrace.receivers.deduplicator import StoredIds, newest_ids
from headrace.receivers.host import serve

BLOCKS = 5


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Has a lane of blocks of one record, whose ids are their offsets."""
    made = Journal.open(str(tmp_path / "events"), create=True)
    with made.writer(0) as writer:
        for offset in range(BLOCKS):
            writer.append(Records.of([b"x"], timestamp_ms=1, ids=[str(offset)]))
    return made


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


def offsets_of(found: list[StoredIds]) -> list[int]:
    return [offsets.start for ids, offsets in found if ids == [str(offsets.start)]]


@pytest.mark.parametrize(("step_s", "max_ids", "first"), [(4, 100, 3), (0, 100, 0), (0, 2, 3)])
def test_ids_are_read_until_there_are_enough_or_the_time_is_over_which_is_logged(
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
    step_s: int,
    max_ids: int,
    first: int,
) -> None:
    clock = count(step=step_s)
    now_s = lambda: float(next(clock))  # noqa: E731
    with caplog.at_level(logging.WARNING, "headrace.receivers"):
        read = asyncio.run(newest_ids(journal, 0, max_ids, asyncio.Event(), now_s))
    assert offsets_of(read) == list(range(first, BLOCKS))
    cut_off = "newest 2 records, in 2 blocks, were restored within 10 s"
    assert [cut_off in each for each in caplog.messages] == ([True] if step_s else [])


@pytest.mark.parametrize("end", ["stop", "cancel"])
@in_loop
async def test_the_loop_goes_on_meanwhile_and_an_end_waits_for_the_block_that_is_being_read(
    journal: Journal, slow: Slow, end: str
) -> None:
    stop = asyncio.Event()
    reading = asyncio.create_task(newest_ids(journal, 0, 100, stop))
    await until(lambda: slow.read)
    if end == "stop":
        stop.set()
    else:
        reading.cancel()
    await settle()
    assert not reading.done()
    slow.going.set()
    await asyncio.wait([reading])
    assert reading.cancelled() if end == "cancel" else offsets_of(reading.result()) == [4]
    assert slow.read == [BLOCKS - 1]


class Never:
    """A receiver that is not to receive."""

    async def receive(self, intake: Intake) -> None:
        raise ReceiverError("It has received; it was to be stopped before.")


@in_loop
async def test_a_receiver_that_is_stopped_meanwhile_does_not_begin_and_its_lane_is_free(
    journal: Journal, slow: Slow
) -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(Never(), Hosting(journal.storage.url), stop))
    await until(lambda: slow.read)
    stop.set()
    slow.going.set()
    await serving
    with journal.writer(0) as writer:
        assert writer.end == BLOCKS
