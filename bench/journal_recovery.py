"""Time until a journal of many blocks can be written and read again after a crash."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.figures import AtMost, Figure
from bench.made import random_records
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headrace.journal import Journal
from headrace.journal.block import encode
from headrace.journal.journal_log import JournalLog
from headrace.journal.journal_options import parse_options
from headrace.journal.layout import SEGMENT, file_name
from headrace.journal.receivers.deduplicator import newest_ids

PROMISED: Final = AtMost(5)
RECORDS: Final = 10
"""Records of each block."""

_LANE: Final = 0
_SEGMENT_BLOCKS: Final = 10_000


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """A receiver's start on it, and what a query plans its first batch by."""
    folder = stage.fresh_folder("journal")
    _fill(folder, scale.journal_blocks)
    rounds = [_recovered(folder, scale.journal_blocks) for _ in range(scale.pairs)]
    shutil.rmtree(folder)
    yield Figure(
        f"recovery of {scale.journal_blocks} blocks",
        "s",
        Spread.of([sum(steps.values()) for steps in rounds]),
        target=PROMISED,
        details={"steps_s": rounds},
    )


def _fill(folder: Path, blocks: int) -> None:
    """Write blocks that differ by their headers alone, without syncing each."""
    journal = Journal.open(str(folder), create=True)
    with journal.writer(_LANE):
        records = random_records(RECORDS)
    made = partial(encode, records, journal_id=journal.identity.id, writer=bytes(16), lane=_LANE)
    block = made(first=0)
    lane, checksum = folder / str(_LANE), 0
    for segment in range(0, blocks, _SEGMENT_BLOCKS):
        with (lane / file_name(segment * RECORDS, SEGMENT)).open("wb") as file:
            for number in range(segment, min(segment + _SEGMENT_BLOCKS, blocks)):
                first = number * RECORDS
                header = replace(block.header, first=first, synced=first, previous=checksum)
                file.writelines([header.encode(), *block.payload])
                checksum = header.checksum


def _recovered(folder: Path, blocks: int) -> dict[str, float]:
    """Return the time that each step takes (s)."""
    journal = Journal.open(str(folder))
    end = blocks * RECORDS
    steps: dict[str, Callable[[], object]] = {
        "writer": lambda: _write(journal, end),
        "message ids": lambda: _remember(journal),
        "plan": lambda: _plan(folder, end),
        "tasks": lambda: journal.blocks(_LANE),
    }
    steps_s = {}
    for name, step in steps.items():
        began_s = time.perf_counter()
        step()
        steps_s[name] = time.perf_counter() - began_s
    return steps_s


def _write(journal: Journal, end: int) -> None:
    with journal.writer(_LANE) as writer:
        assert writer.end == end


def _remember(journal: Journal) -> None:
    asyncio.run(newest_ids(journal, _LANE, 100_000, asyncio.Event()))


def _plan(folder: Path, end: int) -> None:
    """Ask the source what a query asks it before its first batch."""
    log = JournalLog(parse_options({"path": str(folder)}, streaming=True))
    lanes = log.partitions(log.topics(must_exist=True))
    earliest, latest = log.bounds(lanes)
    assert set(latest.values()) == {end}
    log.sizes(earliest, latest)
