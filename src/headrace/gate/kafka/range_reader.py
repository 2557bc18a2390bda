"""Reader of offset ranges in a task: it yields Arrow record batches. It does not import Spark.

The tasks read with librdkafka, so Spark needs no additional jar.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, groupby, zip_longest
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition as Position

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError, SourceError
from headrace.gate.kafka.attempts import HEADER
from headrace.gate.kafka.consumers import (
    REFUSALS,
    ClientConfig,
    MakeConsumer,
    WarmConsumer,
    find_missing,
    find_watermarks,
    warm_consumer,
)
from headrace.gate.kafka.raw_headers import headers_of
from headrace.gate.source.log import ARROW_SCHEMA
from headrace.gate.source.losses import OnLoss

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# librdkafka numbers timestamp types 0 (none), 1 (create time), 2 (log append time). The column has
# the numbers of Java's client: -1, 0 and 1.
_JAVA_TIMESTAMP_TYPE: Final = -1

# Spark's timestamps are microseconds in 64 bits, Kafka's milliseconds in 64 bits.
_MOST_MS: Final = (2**63 - 1) // 1000


@dataclass
class Chunk:
    """Messages of one ``consume`` call that lie within the wanted ranges.

    ``offsets`` and ``partitions`` have one entry per message: the reader has computed them already.
    ``topic`` is None for messages of several topics.
    """

    messages: Sequence[Message]
    offsets: Int64s
    partitions: Int32s
    topic: str | None
    client: ClientConfig = field(default_factory=dict, repr=False)
    """Client settings for a second read of records whose headers the client cannot decode."""

    @cached_property
    def timestamps(self) -> Int64s:
        """Array of shape ``(messages, 2)``: timestamp type as in librdkafka, and time (ms)."""
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
    """Builder of record batches with the selected columns, in the selected order."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
        self._builders = [_BUILDERS[name] for name in columns]

    def build(self, chunk: Chunk) -> pa.RecordBatch:
        """Return a record batch with one row per message, in the messages' order."""
        arrays = [build(chunk) for build in self._builders]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def bounded(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch by halves into slices of at most ``most_bytes``, or of one record."""
    if batch.nbytes <= most_bytes or batch.num_rows == 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from bounded(batch.slice(0, half), most_bytes)
        yield from bounded(batch.slice(half), most_bytes)


# consume() waits its whole timeout for the n-th message, so the timeout is short.
POLL_S: Final = 0.01
# n is bounded by the size of a batch; the first call does not know the records' size.
_MOST_MESSAGES: Final = 10_000
_FIRST_MESSAGES: Final = 64
_GROWTH: Final = 16

# Largest read for which librdkafka must not fetch far past the range (see _fetch_size).
_SMALL_READ: Final = 50_000

# librdkafka reports each of these once, skips the undecodable records, and continues after them.
_UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError.INVALID_MSG,
    }
)


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Settings of `read_ranges`.

    Attributes:
        on_loss: Function called with missing offsets before they are skipped. It may raise.
        timeout_ms: Time without a message from the brokers after which the read fails (ms).
        batch_bytes: Maximum size of a record batch (bytes). A larger record is a batch of its own.
        aborted: Tags of the aborted stage attempts whose records are skipped; see
            `headrace.gate.kafka.attempts`.
        silence_s: Time without messages after which the brokers are asked whether the topics exist
            (s), because librdkafka does not report a deleted topic. A partition counts as missing
            after two such requests, because a broker may learn late of a new partition.
        request_s: Timeout of the requests after a silence (s).
        make_consumer: Constructor of the consumers that answer questions about partitions. The
            Python engine reads with such a consumer too.
        read: Engine that reads the records.
    """

    client: ClientConfig = field(repr=False)
    columns: tuple[str, ...]
    on_loss: OnLoss
    timeout_ms: int
    batch_bytes: int = 4 * 1024 * 1024
    aborted: frozenset[bytes] = frozenset()
    silence_s: float = 3.0
    request_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    make_consumer: MakeConsumer = Consumer
    read: "type[RangeRead]" = field(default_factory=lambda: RangeRead)


def read_ranges(config: ReaderConfig, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield exactly the records of these ranges, in offset order within each range.

    Partitions are interleaved as the brokers deliver them. Several ranges of one partition are read
    one after the other. A range ends at its end offset, not after a number of records, because
    compaction, control records and aborted transactions leave gaps.

    DataLossError is raised if offsets of a range are gone and ``on_loss`` does not skip them.
    BrokerError is raised if a broker refused the read, or no message arrived for ``timeout_ms``.
    SourceError is raised if records are damaged or of an unknown format.
    """
    wanted = [r for r in ranges if r.count > 0]
    if not wanted:
        return
    client = _fetch_size(config.client, wanted)
    with warm_consumer(client, config.read.maker(config)) as consumer:
        for turn in _turns(wanted):
            yield from config.read(config, turn, consumer).batches()


def _turns(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Split ranges into as few lists as possible, each with at most one range per partition."""
    by_partition = [list(same) for _, same in groupby(sorted(ranges), lambda r: r.topic_partition)]
    return [[r for r in turn if r is not None] for turn in zip_longest(*by_partition)]


def _fetch_size(client: ClientConfig, ranges: Sequence[OffsetRange]) -> ClientConfig:
    """Return the client's settings, with less prefetching for a small read.

    librdkafka prefetches 100 000 messages of each partition by default. For a small read this takes
    twice the processor time of the read itself. A value that the user has set is kept.
    """
    if "queued.min.messages" in client or sum(r.count for r in ranges) > _SMALL_READ:
        return client
    return {**client, "queued.min.messages": 1000}


class RangeRead:
    """State of one read: for each range, its next offset to read and its end.

    A slot is the index of a range. No two ranges may be of the same partition.

    The rules for events, losses, refusals and silences are here. Another engine replaces the
    methods that use the consumer.
    """

    @classmethod
    def maker(cls, config: ReaderConfig) -> MakeConsumer:
        """Return the constructor of the consumer that reads."""
        return config.make_consumer

    def __init__(
        self, config: ReaderConfig, ranges: Sequence[OffsetRange], consumer: WarmConsumer
    ) -> None:
        self._config = config
        self._ranges = ranges
        self._consumer = consumer
        self._next = np.array([r.start for r in ranges], np.int64)
        self._until = np.array([r.until for r in ranges], np.int64)
        self._slot: dict[tuple[str | None, int | None], int] = {
            (r.topic, r.partition): slot for slot, r in enumerate(ranges)
        }
        topics = {r.topic for r in ranges}
        self._topic = topics.pop() if len(topics) == 1 else None
        self._slot_of_partition = np.zeros(max(r.partition for r in ranges) + 1, np.int64)
        for slot, r in enumerate(ranges):
            self._slot_of_partition[r.partition] = slot
        self._open = set(range(len(ranges)))
        self._missing: set[int] = set()  # Slots whose partition was missing in the last answer.

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges."""
        self._begin()
        heard_at = looked_at = self._config.clock()
        while self._open:
            batch = self._receive()
            if batch is None:
                now = self._config.clock()
                if (now - heard_at) * 1000 > self._config.timeout_ms:
                    self._fail()
                elif now - max(looked_at, heard_at) > self._config.silence_s:
                    self._look_into_silence()
                    looked_at = self._config.clock()
                continue
            yield from bounded(batch, self._config.batch_bytes)
            # Read the clock after the yield: the consumer's time for the batches is no silence of
            # the broker.
            heard_at = self._config.clock()
            self._consumer.refusal = None
            self._missing.clear()

    def _begin(self) -> None:
        self._builder = RecordBatchBuilder(self._config.columns)
        self._count = _FIRST_MESSAGES
        self._consumer.kafka.assign([self._position(slot) for slot in sorted(self._open)])

    def _receive(self) -> pa.RecordBatch | None:
        """Return the next records, or None if none came within `POLL_S`. Handle events."""
        most = min(self._count, self._remaining_count())
        chunk = self._take(self._consumer.kafka.consume(most, POLL_S))
        if chunk is None:
            return None
        batch = self._builder.build(chunk)
        size = max(batch.nbytes / batch.num_rows, 1.0)
        # Grow the poll size slowly; later records may be larger.
        most_messages = min(self._config.batch_bytes / size, self._count * _GROWTH, _MOST_MESSAGES)
        self._count = int(most_messages) or 1
        return batch

    def _position(self, slot: int) -> Position:
        r = self._ranges[slot]
        return Position(r.topic, r.partition, int(self._next[slot]))

    def _take(self, messages: list[Message]) -> Chunk | None:
        """Return the wanted messages, or None if there are none. Handle error events."""
        events: list[tuple[Message, KafkaError]] = []
        if any(map(Message.error, messages)):
            events = [(m, error) for m in messages if (error := m.error()) is not None]
            messages = [message for message in messages if message.error() is None]
        chunk = self._cut(messages) if messages else None
        # Move the positions first: an event applies to the position after the records before it.
        for message, error in events:
            offset = message.offset() or 0  # None if the event has no single offset
            self._on_event((message.topic(), message.partition()), offset, error)
        return chunk

    def _cut(self, messages: list[Message]) -> Chunk | None:
        count = len(messages)
        offsets: Int64s = np.fromiter(map(Message.offset, messages), np.int64, count)
        partitions: Int32s = np.fromiter(map(Message.partition, messages), np.int32, count)
        slots = self._slots(messages, partitions)
        inside = (offsets >= self._next[slots]) & (offsets < self._until[slots])
        # Offsets rise within a partition, and numpy keeps the last value for a repeated index.
        self._next[slots] = np.maximum(self._next[slots], offsets + 1)
        self._close({slot for slot in self._open if self._next[slot] >= self._until[slot]})
        if self._config.aborted:
            inside &= np.fromiter(map(self._is_wanted, messages), np.bool_, count)
        if not inside.all():
            messages = list(compress(messages, inside.tolist()))
            offsets, partitions = offsets[inside], partitions[inside]
        if not messages:
            return None
        return Chunk(messages, offsets, partitions, self._topic, self._config.client)

    def _is_wanted(self, message: Message) -> bool:
        headers = headers_of(message, self._config.client)
        return not any(name == HEADER and value in self._config.aborted for name, value in headers)

    def _slots(self, messages: list[Message], partitions: Int32s) -> npt.NDArray[np.int64]:
        if self._topic is not None:
            return self._slot_of_partition[partitions]
        pairs = zip(map(Message.topic, messages), partitions.tolist(), strict=True)
        return np.fromiter((self._slot[pair] for pair in pairs), np.int64, len(messages))

    def _close(self, slots: set[int]) -> None:
        if slots:
            self._open -= slots
            # Stop fetching ahead, and drop the records past the end. pause() would not do: a
            # resumed partition is fetched only when the broker's thread next wakes, up to 1 s
            # later.
            self._consumer.kafka.incremental_unassign([self._position(slot) for slot in slots])

    def _advance(self, slot: int, position: int) -> None:
        self._next[slot] = max(int(self._next[slot]), min(position, int(self._until[slot])))
        if self._next[slot] >= self._until[slot]:
            self._close({slot})

    def _on_event(
        self, place: tuple[str | None, int | None], offset: int, error: KafkaError
    ) -> None:
        slot = self._slot.get(place)
        if error.code() in REFUSALS:
            raise _refused(error)
        if slot is None:
            return
        if error.code() in _UNREADABLE and offset < self._until[slot]:
            raise SourceError(
                f"Records of {self._ranges[slot]} cannot be read, at offset {offset}:"
                f" {error.str()}; the records in Kafka are damaged, or of a format unknown to this"
                " client."
            )
        if slot not in self._open:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            self._advance(slot, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._after_reset(slot)
        else:
            self._consumer.last_error = error

    def _after_reset(self, slot: int) -> None:
        """Handle the event that an offset was outside of the log, then continue the read.

        The event may come from an earlier read, so the cluster is asked before offsets count as
        lost.
        """
        self._skip_lost(slot)
        if slot in self._open:
            self._restart(slot)

    def _restart(self, slot: int) -> None:
        position = self._position(slot)
        self._consumer.kafka.incremental_unassign([position])
        self._consumer.kafka.incremental_assign([position])

    def _skip_lost(self, slot: int) -> None:
        """Call ``on_loss`` for offsets of a range that the log no longer has, and skip them."""
        r = self._remaining(slot)
        config = self._config
        log = find_watermarks(
            config.client, r.topic_partition, config.request_s, config.make_consumer
        )
        if log is None:
            return
        earliest, latest = log
        why = f"the log of this partition now holds [{earliest}, {latest})"
        if r.start < earliest:
            self._lost(slot, min(earliest, r.until), why)
        elif r.start >= latest:
            self._lost(slot, r.until, why)

    def _lost(self, slot: int, until: int, why: str) -> None:
        r = self._remaining(slot)
        self._config.on_loss(OffsetRange(r.topic, r.partition, r.start, until), why)
        self._advance(slot, until)

    def _look_into_silence(self) -> bool:
        """Ask the brokers why no messages arrive. Return whether a broker answered.

        BrokerError is raised after a refusal. Partitions missing for the second time count as
        lost.
        """
        if self._consumer.refusal is not None:
            raise _refused(self._consumer.refusal)
        partitions = {slot: self._ranges[slot].topic_partition for slot in self._open}
        missing = self._find_missing(partitions.values())
        if missing is None:
            return False
        again = {slot for slot, tp in partitions.items() if tp in missing}
        for slot in sorted(again & self._missing):
            self._lost(slot, self._ranges[slot].until, "the topic or partition does not exist")
        self._missing = again
        return True

    def _find_missing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition] | None:
        return find_missing(self._consumer.kafka, partitions, self._config.request_s)

    def _fail(self) -> None:
        """Handle the read's timeout: skip lost ranges, else raise `BrokerError` with the reason."""
        self._missing = set(self._open)
        if self._look_into_silence():
            for slot in sorted(self._open):
                self._skip_lost(slot)
        if self._open:
            waiting = ", ".join(str(self._remaining(slot)) for slot in sorted(self._open))
            error = self._consumer.last_error
            raise BrokerError(
                f"Kafka sent no records of {waiting} for {self._config.timeout_ms} ms"
                " (kafkaConsumer.pollTimeoutMs); its last error was:"
                f" {error.str() if error else 'none'}."
            )

    def _remaining_count(self) -> int:
        return int(np.maximum(self._until - self._next, 0).sum())

    def _remaining(self, slot: int) -> OffsetRange:
        r = self._ranges[slot]
        return OffsetRange(r.topic, r.partition, int(self._next[slot]), r.until)


def _refused(error: KafkaError) -> BrokerError:
    return BrokerError(f"Kafka refused to serve the read: {error.str()}.")
