"""Rate of durable records in a journal, beside plain synced writes of the same blocks."""

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from bench.figures import AtLeast, Figure
from bench.load.records import chunk
from bench.pairs import in_turn
from bench.scale import Scale
from bench.stage import Stage
from bench.synced import synced_writes
from headrace.journal import Journal
from headrace.journal.block import Compression, encode
from headrace.journal.lane_writer import LaneWriter
from headrace.journal.records import Records

PLAIN: Final = "plain"
PROMISED: Final = AtLeast(0.8)

_LANE: Final = 0

Write = Callable[[LaneWriter, Records, int], None]
"""Writes the same records so many times, as a block each."""


def _in_a_row(writer: LaneWriter, records: Records, blocks: int) -> None:
    for written in [writer.submit(records) for _ in range(blocks)]:
        written.result()


def _awaited(writer: LaneWriter, records: Records, blocks: int) -> None:
    for _ in range(blocks):
        writer.append(records)


SIDES: Final[dict[str, tuple[Compression, Write]]] = {
    "not compressed": ("none", _in_a_row),
    "lz4": ("lz4", _in_a_row),
    "lz4, each block awaited": ("lz4", _awaited),
}


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """JSON of 200 bytes a record; what is counted are the records' own bytes, on every side.

    Nothing is removed before the end. A virtual disk may be several times as fast where something
    was just removed as where nothing ever was, and no side should profit from another's files.
    """
    written = stage.fresh_folder("written")
    records = Records.of_lines(chunk(scale.block_records), timestamp_ms=1)
    megabytes = records.bytes * scale.blocks / 1e6
    sizes = {compression: len(_stored(records, compression)) for compression, _ in SIDES.values()}
    times_s = in_turn(
        {PLAIN: partial(_plain_s, written, scale, _stored(records, "none"))}
        | {name: partial(_journal_s, written, scale, records, *how) for name, how in SIDES.items()},
        scale.pairs,
        scale.warm_ups,
    )
    shutil.rmtree(written)
    rates = {side: [megabytes / each for each in found] for side, found in times_s.items()}
    for name, (compression, _) in SIDES.items():
        yield Figure.side_by_side(
            f"written, {name}",
            "MB/s",
            headrace=rates[name],
            native=rates[PLAIN],
            target=PROMISED if compression == "none" else None,
            details={"rates": rates, "block_bytes": sizes},
        )


def _stored(records: Records, compression: Compression) -> bytes:
    """The file that a block of these records is."""
    block = encode(
        records, journal_id=bytes(16), writer=bytes(16), lane=0, first=0, compression=compression
    )
    return b"".join(bytes(part) for part in block.parts)


def _plain_s(written: Path, scale: Scale, block: bytes) -> float:
    return sum(synced_writes(Path(mkdtemp(dir=written)), block, scale.blocks))


def _journal_s(
    written: Path, scale: Scale, records: Records, compression: Compression, write: Write
) -> float:
    folder = mkdtemp(dir=written)
    with Journal.open(folder, create=True).writer(_LANE, compression=compression) as writer:
        began_s = time.perf_counter()
        write(writer, records, scale.blocks)
        return time.perf_counter() - began_s
