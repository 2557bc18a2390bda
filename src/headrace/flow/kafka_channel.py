"""Channels between stages: topics, and the ledger says which attempts their readers skip."""

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
_RAN_BEFORE: Final = "a task of it ran before"

POLLS_PER_SAMPLE: Final = 40
"""Polls for which the topic's partitions and the size of its records are taken as they were."""

_ASSUMED_BYTES: Final = 1_000
"""The size of a record while none could be read: too large, and a stage is slowed down for nothing.
(What a batch assumes, for a cap in bytes that must not be passed, is a thousand times this.)"""


class KafkaQueue:
    """Records that wait on a topic for one stage, which reads it. For one thread.

    Their bytes are the stage's lag, times the mean size of some of the records.

    Kafka does not say how large records are. So some that wait are read at every
    `POLLS_PER_SAMPLE`-th poll, and all count as if they had their mean size: as exact as these are
    like the others. Until one could be read, each counts as 1 kB. Control records and what
    compaction has removed count, too. Records that a stage is still writing do not wait yet.
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
        """Measure the queue now; its rate is not known here (``takes_bytes_per_s`` is None).

        Raises:
            BrokerError: The brokers cannot be asked.
            LedgerError: The ledger cannot be read.
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
        """Release the connections to the brokers."""
        self._log.close()

    def _positions(self) -> dict[TopicPartition, int]:
        """Return the offset where the stage goes on in each partition."""
        found: dict[TopicPartition, int] = {}
        for topic in self._topics.values():
            known = self._ledger.receivers.stream_rate(self._gate, topic.topic_id or "").begun
            for tp, earliest in self._earliest.items():
                found[tp] = max(known.get(tp.partition, 0), earliest)
        return found

    def _compare(self, begun: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Count what has changed since the last measurement."""
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
    """A task may have produced its records twice."""


@dataclass(frozen=True, repr=False)
class KafkaChannel:
    """Topic that stages write, and of which each stage that reads it has all, once.

    `kafka` returns one. It is a value: it can be pickled, opens nothing until it is used, and shows
    no secret. Two are equal if they have one location, however they are read.
    """

    topic: str
    servers: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return f"KafkaChannel({self.topic!r}, {self.servers!r}, {redact(self.options)!r})"

    @property
    def location(self) -> str:
        """The topic and its brokers, for people; which brokers are one cluster, only they know."""
        return f"the topic {self.topic} at {self.servers}"

    def identity(self) -> str:
        """Return the topic's id, as the ledger has it; the brokers are asked.

        Raises:
            HeadraceError: They cannot be reached, or have no such topic, or give it no id.
        """
        return known_id(self.topic, self._found(lookup_with(self._parsed())))

    def write(self, df: DataFrame, batch_key: str, ledger: Ledger) -> None:
        """Write what a batch has made, in the writing stage's handler.

        The ledger notes where the topic ends, then tasks produce records that are marked with this
        attempt, then the ledger notes that the attempt is done. Stages that read do not pass the
        offset at which an undecided attempt began, and skip aborted ones. Readers that are not
        Headrace's see the records of aborted attempts as well.

        When it returns, no crash loses the records. However often it is called for one batch, by
        whatever process, and whatever ``df`` has then, stages have the records of one call, each
        once. If it raises, they have nothing of this call.

        Args:
            df: The columns of Spark's Kafka sink: ``value`` (binary or string), and where wanted
                ``key`` (the same) and ``headers``.
            batch_key: The same for every run of the same ranges, another for every other batch.
            ledger: The writing stage's ledger.

        Raises:
            OptionError: ``df`` has other columns, or lacks the value.
            LedgerError: The ledger cannot be written, or another process has the batch by now.
            BrokerError: The brokers do not take a record.
        """
        output = _output_columns(df, self.location)
        options = self._parsed()
        for tries in range(1, _TRIES + 1):
            try:
                self._attempt(output, options, batch_key, ledger)
            except (PySparkException, _RanTwiceError) as error:
                # Both runs of a task may have produced: the whole attempt is aborted.
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
                f"Stages cannot write {self.location}, which is not there; make it, or name"
                " another one."
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
            _LOG.info("Batch %s is in %s already.", key, self.location)
            return
        try:
            _produced(output, options.client, self.topic, tag(key, attempt))
        except BaseException:
            ledger.outputs.abort(topic_id, attempt)
            raise
        if not ledger.outputs.finish(topic_id, key, attempt):
            raise LedgerError(
                f"Batch {key} was taken over by another process while it was written to"
                f" {self.location}; of this attempt nothing is read."
            )

    def read_options(self, ledger_url: str) -> dict[str, str]:
        """Return the options with which a stage reads the topic, each batch once.

        They name the ledger that knows which attempts are aborted.
        """
        return self._raw_options() | {"headrace.channel": ledger_url}

    def queue(self, gate: str, ledger: Ledger) -> KafkaQueue:
        """Return the queue of the stage with this gate; raises `OptionError` for a wrong option."""
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
    """Return a channel that is a topic, which must be there.

    Args:
        topic: Its name.
        servers: The brokers, ``host:port,host:port``.
        **options: Of ``format("headrace-kafka")`` for the stages that read it; those that begin
            with ``kafka.`` (``**{"kafka.security.protocol": "SSL"}``) for those that write it, too.
    """
    texts = {name: option_text(value) for name, value in options.items()}
    channel = KafkaChannel(topic, servers, texts)
    channel._parsed()  # which raises for a wrong option
    return channel


def _output_columns(df: DataFrame, location: str) -> DataFrame:
    """Return the columns key and value, both binary, and headers; a missing one is null."""
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
    return isinstance(pair, StructType) and [_typed(each) for each in pair.fields] == _HEADER_FIELDS


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
        f"What is to be written to {location} is not what a channel takes: {what}; it takes value"
        f" (binary or string) and, if wanted, key (the same) and headers ({_HEADERS}): select"
        " these."
    )


def _ancestry(key: str) -> Iterator[str]:
    """Yield a part, the parts that it is within, and its batch: each of them may be written."""
    batch, path = part_of(key)
    return (part_key(batch, part) for part in (path, *above(path)))


class Claims:
    """Which partitions of an attempt have a task already; over Spark Connect tasks ask for it."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._taken: set[int] = set()

    def take(self, partition: int) -> bool:
        """Whether a task is the first of its partition."""
        with self._changing:
            is_first = partition not in self._taken
            self._taken.add(partition)
            return is_first


@dataclass(frozen=True, repr=False)
class _Producing:
    """Function of each task: produces its records, unless it may have done so before."""

    client: Mapping[str, object]
    topic: str
    marked: str
    claims: LinkAddress | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101  (it runs in a task)
        if task.attemptNumber() or (self.claims and not self.claims.ask(task.partitionId())):
            # Spark reports how the last run of a task ended. If the records cannot be computed, it
            # must report that.
            deque(batches, maxlen=0)
            raise _ran_before(self.topic, self.marked)
        refused = None
        try:
            produce(self.client, self.topic, self.marked, batches)
        except BrokerError as error:
            # Returned, for after an exception the task would run again, and hide it.
            refused = str(error)
            deque(batches, maxlen=0)
        ran = {
            "stage": pa.array([task.stageId()], pa.int32()),
            "refused": pa.array([refused], pa.string()),
        }
        yield pa.record_batch(ran)


def _ran_before(topic: str, marked: str) -> _RanTwiceError:
    return _RanTwiceError(f"The attempt {marked} to write {topic} ends: {_RAN_BEFORE}.")


def _produced(output: DataFrame, client: Mapping[str, object], topic: str, marked: str) -> None:
    """Have tasks produce the records."""
    spark = output.sparkSession
    if is_remote(spark):
        with TaskLink(spark, Claims().take) as link:
            _collected(output, _Producing(client, topic, marked, link.address))
        return
    stages = _collected(output, _Producing(client, topic, marked, None))
    # If output of an earlier stage was lost, tasks run again in a new attempt of their stage, which
    # counts their runs from 0.
    tracker = spark.sparkContext.statusTracker()
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is not None and info.currentAttemptId > 0:
            raise _ran_before(topic, marked)


def _collected(output: DataFrame, producing: _Producing) -> set[int]:
    """The stages whose tasks have produced the records."""
    rows = output.mapInArrow(producing, "stage int, refused string").collect()
    for row in rows:
        if row["refused"] is not None:
            raise BrokerError(row["refused"])
    return {row["stage"] for row in rows}
