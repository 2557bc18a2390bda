"""Records and journals to measure with."""

import os
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.topics import KEY
from headrace.journal import Journal
from headrace.journal.records import SCHEMA, Records

VALUE_BYTES: Final = 200
_MADE_MS: Final = 1_767_225_600_000
_BLOCK_RECORDS: Final = 32_768


def random_records(count: int) -> Records:
    """Records with a key as in `bench.topics` and values of 200 bytes that do not compress."""
    offsets = pa.py_buffer(np.arange(0, (count + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32))
    data = pa.py_buffer(os.urandom(count * VALUE_BYTES))
    columns = {
        "key": pa.repeat(pa.scalar(KEY, pa.binary()), count),
        "value": pa.Array.from_buffers(pa.binary(), count, [None, offsets, data]),
        "timestamp": pa.repeat(pa.scalar(_MADE_MS, SCHEMA.field("timestamp").type), count),
    }
    return Records(
        pa.RecordBatch.from_arrays(
            [columns.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA],
            schema=SCHEMA,
        )
    )


def fill(folder: Path, lanes: int, rows: int, *, block_records: int = _BLOCK_RECORDS) -> None:
    """Make a journal of so many such records, evenly in lanes, in blocks like a receiver's."""
    journal = Journal.open(str(folder), create=True)
    for lane in range(lanes):
        left = rows // lanes + (lane < rows % lanes)
        with journal.writer(lane) as writer:
            while left:
                count = min(left, block_records)
                writer.append(random_records(count))
                left -= count
