"""A block's records in the columns of Kafka's source, names and types the same."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.journal.records import HEADERS

ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""Every column there is, in the order of Kafka's source."""

_CREATE_TIME: Final = 0
_STORED: Final = ("key", "value", "timestamp", "headers")


def checked_columns(columns: Sequence[str]) -> list[str]:
    """Columns that a journal has.

    Raises:
        OptionError: It has one of them not.
    """
    for column in columns:
        if column not in ARROW_SCHEMA.names:
            raise OptionError(
                f"A journal has no column {column!r}; it has {', '.join(ARROW_SCHEMA.names)}."
            )
    return list(columns)


def stored_columns(columns: Sequence[str]) -> list[str]:
    """Those that are read from a block; the others follow from where it stands."""
    return [column for column in columns if column in _STORED]


def as_kafka(batch: pa.RecordBatch, offsets: OffsetRange, columns: Sequence[str]) -> pa.RecordBatch:
    """Records with the columns asked for, in the order asked for.

    Keys, values and headers are shared with ``batch``, not copied.

    Args:
        batch: The records, one for each offset, with the columns of ``stored_columns``.
        offsets: Theirs.
        columns: Of ``ARROW_SCHEMA``.
    """
    count = offsets.count

    def column(name: str) -> pa.Array:
        match name:
            case "topic":
                return pa.repeat(pa.scalar(offsets.topic, pa.string()), count)
            case "partition":
                return pa.repeat(pa.scalar(offsets.partition, pa.int32()), count)
            case "offset":
                return pa.array(np.arange(offsets.start, offsets.until, dtype=np.int64))
            case "timestampType":
                return pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), count)
            case "timestamp":
                return batch.column(name).cast(ARROW_SCHEMA.field(name).type)
            case _:
                return batch.column(name)

    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([column(name) for name in columns], schema=schema)
