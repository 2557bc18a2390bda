"""Kafka messages to Arrow columns: those of the native connector, names and types the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from headrace.kafka.consumers import ClientConfig
from headrace.kafka.raw_headers import headers_of
from headrace.source.log import ARROW_SCHEMA

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# librdkafka numbers timestamp types 0 (none), 1 (create time), 2 (log append time); Java's client,
# whose numbers are the column's meaning, -1, 0 and 1.
_JAVA_TIMESTAMP_TYPE: Final = -1

# Spark's timestamps are microseconds in 64 bits; Kafka's, milliseconds in as many.
_MOST_MS: Final = (2**63 - 1) // 1000


@dataclass
class Chunk:
    """Consecutive messages as they came from one ``consume`` call.

    ``offsets`` and ``partitions`` were needed to cut the range; passing them on spares reading
    them out of the messages again. ``topic`` is None where the messages are of several topics.
    """

    messages: Sequence[Message]
    offsets: Int64s
    partitions: Int32s
    topic: str | None
    client: ClientConfig = field(default_factory=dict, repr=False)
    """How the brokers are reached, for headers that have to be read once more."""

    @cached_property
    def timestamps(self) -> Int64s:
        """Shape ``(messages, 2)``: librdkafka's timestamp type, milliseconds since the epoch."""
        flat = chain.from_iterable(map(Message.timestamp, self.messages))
        return np.fromiter(flat, np.int64, 2 * len(self.messages)).reshape(-1, 2)


def _topics(chunk: Chunk) -> pa.Array:
    if chunk.topic is not None:
        return pa.repeat(pa.scalar(chunk.topic, pa.string()), len(chunk.messages))
    return pa.array(list(map(Message.topic, chunk.messages)), pa.string())


def _timestamp_types(chunk: Chunk) -> pa.Array:
    kinds = chunk.timestamps[:, 0] + _JAVA_TIMESTAMP_TYPE
    return pa.array(kinds.astype(np.int32), pa.int32())


def _headers(chunk: Chunk) -> pa.Array:
    rows = [headers_of(message, chunk.client) for message in chunk.messages]
    # A message without headers has null, not an empty array, as with the native connector.
    return pa.array(
        [[{"key": k, "value": v} for k, v in row] if row else None for row in rows],
        ARROW_SCHEMA.field("headers").type,
    )


_BUILDERS: Final[dict[str, Callable[[Chunk], pa.Array]]] = {
    "key": lambda chunk: pa.array(list(map(Message.key, chunk.messages)), pa.binary()),
    "value": lambda chunk: pa.array(list(map(Message.value, chunk.messages)), pa.binary()),
    "topic": _topics,
    "partition": lambda chunk: pa.array(chunk.partitions, pa.int32()),
    "offset": lambda chunk: pa.array(chunk.offsets, pa.int64()),
    # The native connector gives -1 ms, one millisecond before the epoch, where a message has none.
    "timestamp": lambda chunk: pa.array(
        chunk.timestamps[:, 1].clip(-_MOST_MS, _MOST_MS) * 1000, pa.timestamp("us", tz="UTC")
    ),
    "timestampType": _timestamp_types,
    "headers": _headers,
}


class RecordBatchBuilder:
    """Builds record batches with just the columns asked for, in the order asked for."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
        self._builders = [_BUILDERS[name] for name in columns]

    def build(self, chunk: Chunk) -> pa.RecordBatch:
        """One row a message, in the messages' order."""
        arrays = [build(chunk) for build in self._builders]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def bounded(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts (views of it) of at most so many bytes, or of one record."""
    if batch.nbytes <= most_bytes or batch.num_rows == 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from bounded(batch.slice(0, half), most_bytes)
        yield from bounded(batch.slice(half), most_bytes)
