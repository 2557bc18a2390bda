"""How long a journal of many blocks takes until it can be written and read again after a crash."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.figures import AtMost, Figure
from bench.made import random_records
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headgate.control import OffsetRange
from headgate.journal import Journal
from headgate.journal.block import encode
from headgate.journal.names import BLOCK, file_name
from headgate.journal.records import Records
from headgate.receivers import Intake
from headgate.receivers.remembering import remember

PROMISED: Final = AtMost(5)
RECORDS: Final = 10
"""Of each block."""

_LANE: Final = 0


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
    first_block = encode(
        records, journal_id=journal.identity.id, writer=bytes(16), lane=_LANE, first=0
    )
    payload = b"".join(bytes(part) for part in first_block.payload)
    lane = folder / str(_LANE)
    for first in range(0, blocks * RECORDS, RECORDS):
        header = replace(first_block.header, first=first)
        (lane / file_name(first, BLOCK)).write_bytes(header.encode() + payload)


def _recovered(folder: Path, blocks: int) -> dict[str, float]:
    journal = Journal.open(str(folder))
    steps_s = {}

    def timed(name: str, step: Callable[[], object]) -> object:
        began_s = time.perf_counter()
        answer = step()
        steps_s[name] = time.perf_counter() - began_s
        return answer

    def write() -> None:
        with journal.writer(_LANE) as writer:
            assert writer.end == blocks * RECORDS

    timed("writer", write)
    timed("message ids", lambda: remember(journal, _LANE, Intake(_never)))
    assert timed("bounds", journal.bounds) == {_LANE: (0, blocks * RECORDS)}
    timed("blocks", lambda: journal.blocks(_LANE))
    timed("tasks", lambda: journal.firsts(_LANE))
    return steps_s


def _never(_records: Records) -> OffsetRange:
    raise AssertionError("nothing is appended here")
