"""What a receiver's process does before its first record, so that no sender waits for it."""

import gc
from typing import Final

import pyarrow as pa

from headrace.journal.block import decode, encode
from headrace.journal.records import SCHEMA, Records

_SAMPLE_ID: Final = bytes(16)


def warm_up() -> None:
    """Load what the first record would load, and spare the collector what is there by now.

    Arrow imports pandas with the first array that it makes, which takes a tenth of a second. A full
    collection looks at every object of every module each time, with all threads waiting: a tenth
    of a second as well. What is there before the first record stays anyway, so it is frozen
    (`gc.freeze`), for the whole process: call it only where the process is the receiver's.
    """
    records = Records.of([b"{}"], timestamp_ms=0)
    block = encode(records, journal_id=_SAMPLE_ID, writer=_SAMPLE_ID, lane=0, first=0)
    data = b"".join(bytes(memoryview(part)) for part in block.parts)
    decode(pa.py_buffer(data), "a sample", SCHEMA.names)
    gc.collect()
    gc.freeze()
