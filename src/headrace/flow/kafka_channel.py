"""Channels between stages: Kafka topics in which stages skip the records of aborted attempts."""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from headrace.core.options import option_text
from headrace.core.ranges import Positions, TopicPartition
from headrace.errors import BrokerError, LedgerError, OptionError, SourceError
from headrace.gate import (
    InputQueue,
    KafkaLog,
    KafkaOptions,
    Ledger,
    Lookup,
    Topic,
    above,
    known_id,
    lookup_with,
    parse_options,
    part_key,
    part_of,
    produce,
    redact,
    tag,
)
from headrace.spark_versions import is_remote
from headrace.task_link import LinkAddress, TaskLink

_LOG: Final = logging.getLogger("headrace.flow")

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_HEADER_FIELDS: Final = [("key", StringType()), ("value", BinaryType())]

_TRIES: Final = 3
"""Maximum number of attempts to write a batch, if Spark may have run a task twice."""

_RAN_BEFORE: Final = "one of its tasks ran before"
"""Text by which the driver recognizes `_RanTwiceError`; Spark passes on only an error's text."""

POLLS_PER_SAMPLE: Final = 40
"""The topic's partitions and a sample of its records are read once in this many polls."""

_ASSUMED_BYTES: Final = 1_000
"""Assumed size of a record (bytes) until a sample of records is read. If the value is too large,
stages are throttled without need. (For a batch with a limit in bytes, the planner assumes a
thousand times this size, so that the batch stays below its limit.)"""


class KafkaQueue:
    """Input queue of a stage: the records of a topic that the stage has not read. Not thread-safe.

    The size of the queue is the stage's lag times a mean record size (bytes). Kafka does not report
    the size of records, so every `POLLS_PER_SAMPLE`-th poll reads a sample of waiting records.
    Before the first sample, a record counts as 1 kB. The lag includes control records and compacted
    records. Records of an unfinished attempt do not count yet.
    """

    def __init__(self, options: KafkaOptions, gate: str, ledger: Ledger) -> None:
        self._log = KafkaLog(options)
        self._gate = gate
        self._ledger = ledger
        self._polls = 0
        self._record_bytes: float = _ASSUMED_BYTES
        self._is_measured = False
        self._topics: dict[str, Topic] = {}
        self._earliest: Positions = {}
        self._before: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] | None = None
        self._left_records: int | None = None
        self._arrived_bytes = 0.0

    def measure(self) -> InputQueue:
        """Measure the queue now, except for ``takes_bytes_per_s``, which is None in the result.

        Raise BrokerError if the brokers cannot be reached, and LedgerError if the ledger cannot be
        read.
        """
        samples = self._polls % POLLS_PER_SAMPLE == 0 or not self._topics
        self._polls += 1
        if samples:
            self._topics = dict(self._log.topics())
            self._earliest = self._log.earliest(self._log.partitions(self._topics))
        begun = self._positions()
        ends = dict(self._log.readable_until(self._log.latest(begun)))
        ends = {tp: max(end, begun[tp]) for tp, end in ends.items()}
        if ends != begun and (samples or not self._is_measured):
            for size in self._log.sizes(begun, ends).values():
                self._record_bytes, self._is_measured = size, True
        self._compare(begun, ends)
        waiting = sum(end - begun[tp] for tp, end in ends.items())
        left = waiting if self._left_records is None else self._left_records
        return InputQueue(
            waiting_bytes=round(waiting * self._record_bytes),
            left_bytes=round(left * self._record_bytes),
            arrived_bytes=round(self._arrived_bytes),
        )

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._log.close()

    def _positions(self) -> dict[TopicPartition, int]:
        """Return, for each partition, the offset at which the stage's next batch begins."""
        positions: dict[TopicPartition, int] = {}
        for topic in self._topics.values():
            begun = self._ledger.receivers.stream_rate(self._gate, topic.topic_id or "").begun
            for tp, earliest in self._earliest.items():
                positions[tp] = max(begun.get(tp.partition, 0), earliest)
        return positions

    def _compare(self, begun: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Update the number of bytes that arrived, and the number of records that still wait.

        For each partition, ``begun`` has the offset at which the next batch begins, and ``ends``
        has the offset up to which records can be read.
        """
        if self._before is None:
            new = sum(end - begun[tp] for tp, end in ends.items())
        else:
            begun_before, ends_before = self._before
            new = sum(max(0, end - ends_before.get(tp, begun[tp])) for tp, end in ends.items())
            if any(begun[tp] > before for tp, before in begun_before.items() if tp in begun):
                self._left_records = sum(
                    max(0, end - begun[tp]) for tp, end in ends_before.items() if tp in begun
                )
        self._arrived_bytes += new * self._record_bytes
        self._before = (begun, ends)


class _RanTwiceError(Exception):
    """Spark may have run a task twice, so its records may be in the topic twice."""


@dataclass(frozen=True, repr=False)
class KafkaChannel:
    """Kafka topic between stages: each reading stage gets the output of every batch once.

    Use `kafka` to create a channel. A channel can be pickled, opens no connection until it is used,
    and shows no secrets. Two channels are equal if they have the same topic and servers.
    """

    topic: str
    servers: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return f"KafkaChannel({self.topic!r}, {self.servers!r}, {redact(self.options)!r})"

    @property
    def location(self) -> str:
        """Topic and brokers, for messages. Two different locations may name the same topic."""
        return f"the topic {self.topic} at {self.servers}"

    def identity(self) -> str:
        """Request the topic's id from the brokers, and return it in the form that the ledger uses.

        Raise HeadraceError if the brokers cannot be reached, or if the topic or its id is missing.
        """
        return known_id(self.topic, self._found(lookup_with(self._parsed())))

    def write(self, df: DataFrame, batch_key: str, ledger: Ledger) -> None:
        """Write a batch's output to the topic, once for all runs of the batch.

        First, the ledger records the topic's end offsets. Then Spark tasks produce the records,
        each with the id of this attempt. Finally, the ledger marks the attempt as finished. A stage
        that reads the topic stops at the start of an unfinished attempt, and skips aborted
        attempts. Other readers see the records of aborted attempts too.

        When this method returns, the records are durable. Reading stages get the records of exactly
        one call per batch, even if another process calls this with another ``df``. If this method
        raises, reading stages get no records of this call.

        ``df`` has the columns of Spark's Kafka sink: ``value`` (binary or string), and optionally
        ``key`` (binary or string) and ``headers``. ``batch_key`` is equal for all runs of the same
        ranges. ``ledger`` is the ledger of the writing stage. Raise OptionError if ``df`` has other
        columns or lacks ``value``. Raise LedgerError if the ledger cannot be written, or if another
        process has taken over the batch. Raise BrokerError if the brokers refuse a record.
        """
        output = _output_columns(df, self.location)
        options = self._parsed()
        for tries in range(1, _TRIES + 1):
            try:
                self._attempt(output, options, batch_key, ledger)
            except (PySparkException, _RanTwiceError) as error:
                # Both runs of a task may have produced records, so the attempt was aborted.
                if _RAN_BEFORE not in str(error) or tries == _TRIES:
                    raise
                _LOG.warning(
                    "Batch %s is written to %s again: %s.", batch_key, self.location, error
                )
            else:
                return

    def _found(self, lookup: Lookup) -> Topic:
        topic = lookup.topics([self.topic]).get(self.topic)
        if topic is None:
            raise SourceError(
                f"Stages cannot write {self.location}, because the topic does not exist; create"
                " it, or name another topic."
            )
        return topic

    def _attempt(self, output: DataFrame, options: KafkaOptions, key: str, ledger: Ledger) -> None:
        lookup = lookup_with(options)
        topic = self._found(lookup)
        topic_id = known_id(self.topic, topic)
        ends = lookup.latest(TopicPartition(self.topic, number) for number in topic.partitions)
        attempt = secrets.token_hex(8)
        written = ledger.outputs.written(topic_id, _ancestry(key))
        starts = {tp.partition: end for tp, end in ends.items()}
        if written or not ledger.outputs.begin(topic_id, key, attempt, starts):
            _LOG.info("Batch %s is already written to %s.", key, self.location)
            return
        try:
            _produced(output, options.client, self.topic, tag(key, attempt))
        except BaseException:
            ledger.outputs.abort(topic_id, attempt)
            raise
        if not ledger.outputs.finish(topic_id, key, attempt):
            raise LedgerError(
                f"Batch {key} was taken over by another process while it was written to"
                f" {self.location}; stages skip the records of this attempt."
            )

    def read_options(self, ledger_url: str) -> dict[str, str]:
        """Return the source options of a stage that reads the channel.

        One option is the URL of the ledger, in which the aborted attempts are recorded.
        """
        return self._raw_options() | {"headrace.channel": ledger_url}

    def queue(self, gate: str, ledger: Ledger) -> KafkaQueue:
        """Return the input queue of the stage with this gate; `OptionError` for a wrong option."""
        return KafkaQueue(self._parsed(ledger), gate, ledger)

    def _raw_options(self) -> dict[str, str]:
        own = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        return {**self.options, **own}

    def _parsed(self, ledger: Ledger | None = None) -> KafkaOptions:
        of_ledger = {} if ledger is None else {"headrace.channel": ledger.url}
        of_client = {
            name: value
            for name, value in self._raw_options().items()
            if name.lower().startswith(("kafka.", "fetchoffset.", "kafkaconsumer."))
        }
        return parse_options(of_client | of_ledger | {"subscribe": self.topic}, streaming=True)


def kafka(topic: str, servers: str, **options: object) -> KafkaChannel:
    """Return a channel for an existing Kafka topic.

    Args:
        topic: The name of the topic.
        servers: The brokers, ``host:port,host:port``.
        **options: Options of ``format("headrace-kafka")`` for stages that read the channel. Options
            that begin with ``kafka.`` (``**{"kafka.security.protocol": "SSL"}``) also apply to
            stages that write it.
    """
    texts = {name: option_text(value) for name, value in options.items()}
    channel = KafkaChannel(topic, servers, texts)
    channel._parsed()  # raises for a wrong option
    return channel


def _output_columns(df: DataFrame, location: str) -> DataFrame:
    """Return a DataFrame with the columns key, value (binary) and headers.

    If ``df`` has no column key or headers, this column is null in the result.

    Raise OptionError if ``df`` has other columns or types, or has no column ``value``.
    """
    types = {field.name: field.dataType for field in df.schema.fields}
    if len(types) < len(df.columns):
        raise _wrong(location, "it names a column twice")
    for name, kind in types.items():
        if not _is_allowed(name, kind):
            raise _wrong(location, f"its column {name!r} is {kind.simpleString()}")
    if "value" not in types:
        raise _wrong(location, "it has no column 'value'")
    return df.select(
        *(
            (sql.col(name) if name in types else sql.lit(None)).cast("binary").alias(name)
            for name in ("key", "value")
        ),
        _headers(types),
    )


def _is_allowed(name: str, kind: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(kind, BinaryType | StringType)
    if name != "headers" or not isinstance(kind, ArrayType):
        return False
    pair = kind.elementType
    return (
        isinstance(pair, StructType)
        and [_typed(member) for member in pair.fields] == _HEADER_FIELDS
    )


def _typed(field: StructField) -> tuple[str, DataType]:
    return field.name, field.dataType


def _headers(types: dict[str, DataType]) -> Column:
    if "headers" not in types:
        return sql.lit(None).cast(_HEADERS).alias("headers")
    # A record without headers has null, as Kafka's source returns it.
    headers = sql.col("headers")
    return sql.when(sql.size(headers) > 0, headers).cast(_HEADERS).alias("headers")


def _wrong(location: str, what: str) -> OptionError:
    return OptionError(
        f"The DataFrame to write to {location} does not have a channel's columns: {what}; select"
        f" value (binary or string), and optionally key (binary or string) and headers"
        f" ({_HEADERS})."
    )


def _ancestry(key: str) -> Iterator[str]:
    """Yield the keys of a part of a batch, of each larger part around it, and of the batch.

    The part's output has been written if the output of at least one of these keys has been written.
    """
    batch, path = part_of(key)
    return (part_key(batch, part) for part in (path, *above(path)))


class Claims:
    """Partitions that the tasks of an attempt have claimed.

    A second run of a task is detected because its partition is claimed already. With Spark Connect,
    tasks call `take` over a network link.
    """

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._taken: set[int] = set()

    def take(self, partition: int) -> bool:
        """Claim a partition for a task; return False if an earlier task has claimed it already."""
        with self._changing:
            is_first = partition not in self._taken
            self._taken.add(partition)
            return is_first


@dataclass(frozen=True, repr=False)
class _Producing:
    """Function of a Spark task that produces the task's records to Kafka.

    The function raises `_RanTwiceError` if an earlier run of the task may have produced records.
    """

    client: Mapping[str, object]
    topic: str
    marked: str
    claims: LinkAddress | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101  (it runs in a task)
        if task.attemptNumber() or (self.claims and not self.claims.ask(task.partitionId())):
            # Spark reports the error of a task's last run. So first compute the records: an error
            # of the computation must be reported, not `_RanTwiceError`.
            deque(batches, maxlen=0)
            raise _ran_before(self.topic, self.marked)
        refused = None
        try:
            produce(self.client, self.topic, self.marked, batches)
        except BrokerError as error:
            # Returned, because after an exception Spark would run the task again, and the second
            # run's error would hide this one.
            refused = str(error)
            deque(batches, maxlen=0)
        ran = {
            "stage": pa.array([task.stageId()], pa.int32()),
            "refused": pa.array([refused], pa.string()),
        }
        yield pa.record_batch(ran)


def _ran_before(topic: str, marked: str) -> _RanTwiceError:
    return _RanTwiceError(f"The attempt {marked} to write {topic} is aborted: {_RAN_BEFORE}.")


def _produced(output: DataFrame, client: Mapping[str, object], topic: str, marked: str) -> None:
    """Produce a DataFrame's records to a topic, in Spark tasks.

    Raise `_RanTwiceError` if a task may have run twice, and BrokerError if a broker refuses a
    record.
    """
    spark = output.sparkSession
    if is_remote(spark):
        with TaskLink(spark, Claims().take) as link:
            _collected(output, _Producing(client, topic, marked, link.address))
        return
    stages = _collected(output, _Producing(client, topic, marked, None))
    # If an earlier stage's output was lost, tasks run again in a new attempt of their stage, with
    # attempt numbers from 0. So the tasks cannot detect the second run.
    tracker = spark.sparkContext.statusTracker()
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is not None and info.currentAttemptId > 0:
            raise _ran_before(topic, marked)


def _collected(output: DataFrame, producing: _Producing) -> set[int]:
    """Run the tasks that produce a DataFrame's records; return the ids of their Spark stages.

    Raise BrokerError if a broker refused a record.
    """
    rows = output.mapInArrow(producing, "stage int, refused string").collect()
    for row in rows:
        if row["refused"] is not None:
            raise BrokerError(row["refused"])
    return {row["stage"] for row in rows}
