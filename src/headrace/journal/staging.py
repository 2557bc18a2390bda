"""The first phase of writing a batch: a task writes some of its records, as blocks of no offset."""

import secrets
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from headrace.journal.block import MAX_RECORDS, encode
from headrace.journal.faults import told
from headrace.journal.journal import Journal
from headrace.journal.names import STAGED, staged_folder
from headrace.journal.records import HEADERS, SCHEMA, Records

_BLOCK_BYTES: Final = 32 * 2**20
"""A block has no more, unless Spark hands out more at once; a reader holds one in memory."""


def new_attempt() -> str:
    """What tells the blocks of one attempt from those of any other."""
    return secrets.token_hex(8)


def stage(
    journal: Journal,
    lane: int,
    attempt: str,
    task: int,
    batches: Iterable[pa.RecordBatch],
    *,
    timestamp_ms: int,
) -> Iterator[str]:
    """Write records as blocks; answers their files' names in order, each durable by then.

    Args:
        journal: Where; in a directory.
        lane: For which lane; whoever calls for the tasks has it, and has made the folder.
        attempt: As `new_attempt` makes it.
        task: Its number, which no other task of the attempt has, nor any other run of the task.
        batches: With the columns key, value (binary) and headers.
        timestamp_ms: The records' time (ms since the epoch).

    Raises:
        JournalError: The storage fails.
    """
    for number, records in enumerate(_blocks(batches, timestamp_ms)):
        block = encode(
            records,
            journal_id=journal.identity.id,
            writer=bytes.fromhex(attempt).rjust(16, b"\0"),
            lane=lane,
            first=0,
        )
        name = f"{attempt}.{task}.{number}.{STAGED}"
        with told(f"Records for lane {lane} of the journal {journal.storage.url} cannot be staged"):
            journal.storage.put(f"{staged_folder(lane)}/{name}", block.parts)
        yield name


def _blocks(batches: Iterable[pa.RecordBatch], timestamp_ms: int) -> Iterator[Records]:
    """The records in portions that are neither too small nor too large for a block."""
    held: list[Records] = []
    count = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, MAX_RECORDS):
            records = _records(batch.slice(start, MAX_RECORDS), timestamp_ms)
            count, size = count + records.count, size + records.batch.nbytes
            if held and (size > _BLOCK_BYTES or count > MAX_RECORDS):
                yield Records.concat(held)
                held, count, size = [], records.count, records.batch.nbytes
            held.append(records)
    if held:
        yield Records.concat(held)


def _records(batch: pa.RecordBatch, timestamp_ms: int) -> Records:
    count = batch.num_rows
    columns = {
        "key": batch.column("key").cast(pa.binary()),
        "value": batch.column("value").cast(pa.binary()),
        "timestamp": pa.repeat(pa.scalar(timestamp_ms, SCHEMA.field("timestamp").type), count),
        "headers": batch.column("headers").cast(HEADERS),
        "id": pa.nulls(count, pa.string()),
    }
    return Records(pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA))
