"""Rate of durable records in a journal, beside plain synced writes of the same blocks."""

import shutil
import time
from collections.abc import Iterator
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
from headrace.journal.records import Records

PLAIN: Final = "plain"
PROMISED: Final = AtLeast(0.8)

_LANE: Final = 0


SIDES: Final[dict[str, Compression]] = {"not compressed": "none", "lz4": "lz4"}


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """JSON of 200 bytes a record; what is counted are the records' own bytes, on every side.

    Nothing is removed before the end. A virtual disk may be several times as fast where something
    was just removed as where nothing ever was, and no side should profit from another's files.
    """
    written = stage.fresh_folder("written")
    records = Records.of_lines(chunk(scale.block_records), timestamp_ms=1)
    megabytes = records.bytes * scale.blocks / 1e6
    sizes = {compression: len(_stored(records, compression)) for compression in SIDES.values()}
    times_s = in_turn(
        {PLAIN: partial(_plain_s, written, scale, _stored(records, "none"))}
        | {name: partial(_journal_s, written, scale, records, how) for name, how in SIDES.items()},
        scale.pairs,
        scale.warm_ups,
    )
    shutil.rmtree(written)
    rates = {side: [megabytes / each for each in found] for side, found in times_s.items()}
    for name, compression in SIDES.items():
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


def _journal_s(written: Path, scale: Scale, records: Records, compression: Compression) -> float:
    folder = mkdtemp(dir=written)
    with Journal.open(folder, create=True).writer(_LANE, compression=compression) as writer:
        began_s = time.perf_counter()
        for _ in range(scale.blocks):
            writer.append(records)
        return time.perf_counter() - began_s
