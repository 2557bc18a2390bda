"""How fast blocks become durable in a journal, beside plain synced writes of the same bytes."""

import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Final, Literal

from bench.figures import AtLeast, Figure
from bench.load.records import chunk
from bench.made import random_records
from bench.pairs import Spread, in_turn
from bench.scale import Scale
from bench.stage import Stage
from bench.synced import synced_writes
from headgate.journal import Journal
from headgate.journal.block import encode
from headgate.journal.records import Records

PLAIN: Final = "plain"
JOURNAL: Final = "journal"
PROMISED: Final = AtLeast(0.8)

_LANE: Final = 0


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Records that do not compress, as they are; and JSON, compressed as receivers do."""
    raw = random_records(scale.block_records)
    json_lines = Records.of_lines(chunk(scale.block_records), timestamp_ms=1)
    yield from _written(stage, scale, raw, "none")
    yield from _written(stage, scale, json_lines, "lz4")


def _written(
    stage: Stage, scale: Scale, records: Records, compression: Literal["none", "lz4"]
) -> Iterator[Figure]:
    stored = _stored(records, compression)
    rates = in_turn(
        {
            PLAIN: partial(_plain_rate, stage, scale, stored),
            JOURNAL: partial(_journal_rate, stage, scale, records, compression, len(stored)),
        },
        scale.pairs,
        scale.warm_ups,
    )
    size = f"{len(stored) / 1e6:.1f} MB blocks"
    yield Figure.side_by_side(
        f"written, {size}, {'not compressed' if compression == 'none' else compression}",
        "MB/s",
        headgate=rates[JOURNAL],
        native=rates[PLAIN],
        target=PROMISED,
        details=rates,
    )
    if compression != "none":
        share = records.bytes / len(stored)
        own = Spread.of([rate * share for rate in rates[JOURNAL]])
        yield Figure("the same, as the records' own bytes", "MB/s", own)


def _stored(records: Records, compression: Literal["none", "lz4"]) -> bytes:
    """The file that a block of these records is."""
    block = encode(
        records, journal_id=bytes(16), writer=bytes(16), lane=0, first=0, compression=compression
    )
    return b"".join(bytes(part) for part in block.parts)


def _plain_rate(stage: Stage, scale: Scale, data: bytes) -> float:
    took_s = sum(synced_writes(stage.folder, data, scale.blocks))
    return scale.blocks * len(data) / took_s / 1e6


def _journal_rate(
    stage: Stage,
    scale: Scale,
    records: Records,
    compression: Literal["none", "lz4"],
    stored_bytes: int,
) -> float:
    """Block after block, each encoded anew while the one before is synced."""
    folder = stage.fresh_folder("journal")
    with Journal.open(str(folder), create=True).writer(_LANE, compression=compression) as writer:
        began_s = time.perf_counter()
        for written in [writer.submit(records) for _ in range(scale.blocks)]:
            written.result()
        took_s = time.perf_counter() - began_s
    shutil.rmtree(folder)
    return scale.blocks * stored_bytes / took_s / 1e6
