"""The task side: offset ranges in, Arrow record batches out. Nothing of Spark is in here."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from headgate.control.ranges import OffsetRange
from headgate.errors import BrokerError, DataLossError
from headgate.kafka.columns import Chunk, Int32s, Int64s, RecordBatchBuilder
from headgate.kafka.consumers import ClientConfig, WarmConsumer, warm_consumer

_LOG: Final = logging.getLogger("headgate.kafka")

# consume() waits its whole timeout for the n-th message, so the timeout is short ...
_POLL_S: Final = 0.01
# ... and n is bounded by what a batch may hold; the first call does not know the records' size.
_MOST_MESSAGES: Final = 10_000
_FIRST_MESSAGES: Final = 64
_GROWTH: Final = 16

# Up to this many records librdkafka is kept from fetching far past the range (see _fetch_size).
_SMALL_READ: Final = 50_000

_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """How ranges are read.

    Attributes:
        client: librdkafka's consumer settings.
        columns: the columns to build, in order; any of ``columns.ARROW_SCHEMA``.
        fail_on_data_loss: whether offsets that are gone stop the read; else they are passed over.
        timeout_ms: how long the broker may give nothing before the read fails (ms).
        batch_bytes: about how large a record batch may become (bytes).
    """

    client: ClientConfig = field(repr=False)
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    timeout_ms: int
    batch_bytes: int = 4 * 1024 * 1024


def read_ranges(config: ReaderConfig, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Every record of the ranges, and no other; in offset order within a partition.

    Partitions are interleaved as the broker delivers them. A range ends by position, not by count:
    compaction, control records and aborted transactions leave gaps.

    Raises:
        DataLossError: offsets of a range are gone and ``fail_on_data_loss`` is set; names them.
        BrokerError: the broker refused, or gave nothing for ``timeout_ms``.
    """
    wanted = [r for r in ranges if r.count > 0]
    if not wanted:
        return
    with warm_consumer(_fetch_size(config.client, wanted)) as consumer:
        yield from _RangeRead(config, wanted, consumer).batches()


def _fetch_size(client: ClientConfig, ranges: Sequence[OffsetRange]) -> ClientConfig:
    """Settings for the size of the read; a user's own setting stands.

    librdkafka goes on fetching until it holds 100 000 messages of each partition. For a small read
    that is work thrown away: it takes twice the processor time of the read itself.
    """
    if "queued.min.messages" in client or sum(r.count for r in ranges) > _SMALL_READ:
        return client
    return {**client, "queued.min.messages": 1000}


class _RangeRead:
    """The state of one read: for each range (a slot), the next offset wanted and the end."""

    def __init__(
        self, config: ReaderConfig, ranges: Sequence[OffsetRange], consumer: WarmConsumer
    ) -> None:
        self._config = config
        self._ranges = ranges
        self._consumer = consumer
        self._next = np.array([r.start for r in ranges], np.int64)
        self._until = np.array([r.until for r in ranges], np.int64)
        self._slot = {(r.topic, r.partition): slot for slot, r in enumerate(ranges)}
        topics = {r.topic for r in ranges}
        self._topic = topics.pop() if len(topics) == 1 else None
        self._slot_of_partition = np.zeros(max(r.partition for r in ranges) + 1, np.int64)
        for slot, r in enumerate(ranges):
            self._slot_of_partition[r.partition] = slot
        self._ends: dict[int, int] = {}  # slot -> where the log was last seen to end
        self._open = set(range(len(ranges)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        builder = RecordBatchBuilder(self._config.columns)
        self._assign(self._open)
        count = _FIRST_MESSAGES
        heard_at = time.monotonic()
        while self._open:
            messages = self._consumer.kafka.consume(min(count, self._remaining_count()), _POLL_S)
            if not messages:
                if (time.monotonic() - heard_at) * 1000 > self._config.timeout_ms:
                    self._give_up()
                continue
            chunk = self._take(self._without_events(messages))
            if chunk is None:
                continue
            heard_at = time.monotonic()
            batch = builder.build(chunk)
            size = max(batch.nbytes / batch.num_rows, 1.0)
            # Neither more than the batch may hold, nor a leap: the next records may be larger.
            count = int(min(self._config.batch_bytes / size, count * _GROWTH, _MOST_MESSAGES)) or 1
            yield batch

    def _position(self, slot: int) -> Position:
        r = self._ranges[slot]
        return Position(r.topic, r.partition, int(self._next[slot]))

    def _assign(self, slots: set[int]) -> None:
        self._consumer.kafka.assign([self._position(slot) for slot in sorted(slots)])

    def _without_events(self, messages: list[Message]) -> list[Message]:
        """Messages proper; ends of partitions and errors, which come among them, handled."""
        if not any(map(Message.error, messages)):
            return messages
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_event(message, error)
        return [message for message in messages if message.error() is None]

    def _take(self, messages: list[Message]) -> Chunk | None:
        """Those messages that are in an open range, cut out of what came; moves the positions."""
        if not messages:
            return None
        count = len(messages)
        offsets: Int64s = np.fromiter(map(Message.offset, messages), np.int64, count)
        partitions: Int32s = np.fromiter(map(Message.partition, messages), np.int32, count)
        slots = self._slots(messages, partitions)
        inside = (offsets >= self._next[slots]) & (offsets < self._until[slots])
        # Offsets rise within a partition, and of a repeated index numpy keeps the last value.
        self._next[slots] = np.maximum(self._next[slots], offsets + 1)
        self._close(slot for slot in self._open if self._next[slot] >= self._until[slot])
        if not inside.all():
            messages = list(compress(messages, inside.tolist()))
            offsets, partitions = offsets[inside], partitions[inside]
        return Chunk(messages, offsets, partitions, self._topic) if messages else None

    def _slots(self, messages: list[Message], partitions: Int32s) -> npt.NDArray[np.int64]:
        if self._topic is not None:
            return self._slot_of_partition[partitions]
        pairs = zip(map(Message.topic, messages), partitions.tolist(), strict=True)
        return np.fromiter(map(self._slot.__getitem__, pairs), np.int64, len(messages))

    def _close(self, slots: Iterator[int]) -> None:
        done = set(slots)
        if done:
            self._open -= done
            # Ends the fetching ahead and drops what was fetched past the end. Not pause(): one that
            # is resumed is fetched again only when the broker's thread next wakes, up to 1 s later.
            self._consumer.kafka.incremental_unassign([self._position(slot) for slot in done])

    def _on_event(self, message: Message, error: KafkaError) -> None:
        slot = self._slot.get((message.topic(), message.partition()))
        code = error.code()
        if code in _REFUSED or error.fatal():
            raise BrokerError(f"Kafka refused to serve the read: {error.str()}.")
        if slot is None or slot not in self._open:
            return
        if code == KafkaError._PARTITION_EOF:
            self._ends[slot] = message.offset()
            if message.offset() >= self._until[slot]:
                self._close(iter([slot]))
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._after_loss(slot)
        elif code in _GONE:
            self._lost(slot, int(self._until[slot]), "the topic or partition does not exist")

    def _after_loss(self, slot: int) -> None:
        """The next offset is outside the log: go on at its start, if any of the range is there."""
        r = self._ranges[slot]
        earliest, latest = self._consumer.kafka.get_watermark_offsets(
            Position(r.topic, r.partition), timeout=self._config.timeout_ms / 1000
        )
        position = int(self._next[slot])
        resume_at = earliest if earliest > position else int(self._until[slot])
        self._lost(
            slot,
            min(resume_at, int(self._until[slot])),
            f"the log of this partition now holds [{earliest}, {latest})",
        )
        if slot in self._open:
            self._assign(self._open)

    def _lost(self, slot: int, until: int, why: str) -> None:
        r = self._ranges[slot]
        missing = OffsetRange(r.topic, r.partition, int(self._next[slot]), until)
        report_loss([missing], why, fail=self._config.fail_on_data_loss)
        self._next[slot] = until
        if until >= r.until:
            self._close(iter([slot]))

    def _give_up(self) -> None:
        """Nothing came for the whole timeout: find out why, and say it."""
        for slot in sorted(self._open):
            r = self._ranges[slot]
            if self._exists(r) is False:
                self._lost(slot, r.until, "the topic or partition does not exist")
            elif slot in self._ends:
                self._lost(slot, r.until, f"the log of this partition ends at {self._ends[slot]}")
        if self._open:
            waiting = ", ".join(str(self._remaining(slot)) for slot in sorted(self._open))
            error = self._consumer.last_error
            reason = error.str() if error else "it reported no error"
            raise BrokerError(
                f"Kafka gave nothing of {waiting} for {self._config.timeout_ms} ms"
                f" (kafkaConsumer.pollTimeoutMs): {reason}."
            )

    def _remaining_count(self) -> int:
        return int(np.maximum(self._until - self._next, 0).sum())

    def _remaining(self, slot: int) -> OffsetRange:
        r = self._ranges[slot]
        return OffsetRange(r.topic, r.partition, int(self._next[slot]), r.until)

    def _exists(self, r: OffsetRange) -> bool | None:
        """Whether the partition exists; None where no broker can tell."""
        try:
            topics = self._consumer.kafka.list_topics(r.topic, timeout=5).topics
        except KafkaException:
            return None
        topic = topics.get(r.topic)
        if topic is None or (topic.error is not None and topic.error.code() not in _GONE):
            return None
        return r.partition in topic.partitions


def report_loss(missing: Sequence[OffsetRange], why: str, *, fail: bool) -> None:
    """Raise for ranges that are gone, or log them where the user chose to go on.

    Raises:
        DataLossError: ``fail`` is set.
    """
    ranges = ", ".join(map(str, missing))
    if fail:
        raise DataLossError(
            f"Offsets {ranges} are gone from Kafka ({why}); to go on without them"
            " set the option failOnDataLoss to false."
        )
    _LOG.warning("Offsets %s are gone from Kafka (%s) and are passed over.", ranges, why)
