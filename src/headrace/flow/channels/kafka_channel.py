"""A topic as a channel: what is not to be read of it, the ledger tells those that read."""

import logging
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.control.ranges import TopicPartition
from headrace.errors import BrokerError, LedgerError, SourceError
from headrace.flow.channels.columns import as_output
from headrace.flow.channels.given import option_text
from headrace.flow.channels.kafka_queue import KafkaQueue
from headrace.flow.channels.protocol import WrittenBatch
from headrace.flow.channels.written import lineage
from headrace.kafka.attempts import known_id, produce, tag
from headrace.kafka.client.option_values import redact
from headrace.kafka.kafka_options import KafkaOptions, parse_options
from headrace.kafka.lookup import Lookup
from headrace.kafka.topic_log import lookup_with
from headrace.ledger import Ledger
from headrace.source.log import Topic

_LOG: Final = logging.getLogger("headrace.flow")

_TRIES: Final = 3
_RAN_BEFORE: Final = "a task of it ran before"


class _RanTwiceError(Exception):
    """A task may have produced its records twice."""


@dataclass(frozen=True, repr=False)
class KafkaChannel:
    """A topic that stages write and read; made by `kafka`.

    Attributes:
        topic: Its name; it is not made.
        servers: The brokers' addresses.
        options: Of the source that reads it; those that begin with ``kafka.`` are of both clients.
    """

    topic: str
    servers: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return f"KafkaChannel({self.topic!r}, {self.servers!r}, {redact(self.options)!r})"

    @property
    def where(self) -> str:
        """The topic and its brokers."""
        return f"the topic {self.topic} at {self.servers}"

    @property
    def has_one_writer(self) -> bool:
        """Any number of stages may write a topic."""
        return False

    @property
    def source(self) -> str:
        """Kafka's."""
        return "kafka"

    def write(self, df: DataFrame, batch: WrittenBatch, ledger: Ledger) -> None:
        """Write a batch that stages read once; see `headrace.flow.channels.Channel.write`.

        The ledger is told where the topic ends, then tasks produce records that are marked with
        this attempt, then the ledger is told that it is done. Stages that read do not pass the
        place at which an undecided attempt began, and leave out those that were given up. Readers
        that are not Headrace's see the records of attempts that were given up as well.

        Raises:
            OptionError: the columns are others, or an option is wrong.
            BrokerError: the brokers cannot be reached, or do not take a record.
            SourceError: there is no such topic.
            LedgerError: the ledger cannot be written, or another process has the batch by now.
        """
        output = as_output(df, self.where)
        options = self._parsed()
        for tries in range(1, _TRIES + 1):
            try:
                self._attempt(output, options, batch.key, ledger)
            except (PySparkException, _RanTwiceError) as error:
                # Of a task that ran twice, both may have produced: all of it is begun anew.
                if _RAN_BEFORE not in str(error) or tries == _TRIES:
                    raise
                _LOG.warning("Batch %s is written to %s anew: %s.", batch.key, self.where, error)
            else:
                return

    def reach(self) -> None:
        """See that it can be written; see `headrace.flow.channels.Channel.reach`.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
            SourceError: there is no such topic, or the brokers are too old.
        """
        known_id(self.topic, self._found(lookup_with(self._parsed())))

    def _found(self, lookup: Lookup) -> Topic:
        topic = lookup.topics([self.topic]).get(self.topic)
        if topic is None:
            raise SourceError(
                f"Stages cannot write {self.where}, which is not there; make it, or name"
                " another one."
            )
        return topic

    def _attempt(self, output: DataFrame, options: KafkaOptions, key: str, ledger: Ledger) -> None:
        lookup = lookup_with(options)
        topic = self._found(lookup)
        topic_id = known_id(self.topic, topic)
        ends = lookup.latest(TopicPartition(self.topic, number) for number in topic.partitions)
        attempt = secrets.token_hex(8)
        written = ledger.written_outputs(topic_id, lineage(key, ledger))
        starts = {tp.partition: end for tp, end in ends.items()}
        if written or not ledger.begin_output(topic_id, key, attempt, starts):
            _LOG.info("Batch %s is in %s already.", key, self.where)
            return
        try:
            _produced(output, options.client, self.topic, tag(key, attempt))
        except BaseException:
            ledger.give_up_output(topic_id, attempt)
            raise
        if not ledger.finish_output(topic_id, key, attempt):
            raise LedgerError(
                f"Batch {key} was taken over by another process while it was written to"
                f" {self.where}; of this attempt nothing is read."
            )

    def reading(self, ledger_url: str) -> dict[str, str]:
        """The topic's options, and the ledger that knows what is not to be read of it."""
        return self._given() | {"headrace.channel": ledger_url}

    def queue(self, gate: str, ledger: Ledger) -> KafkaQueue:
        """What waits, as lag times the size of some records: `headrace.flow.channels.kafka_queue`.

        Raises:
            OptionError: an option is wrong.
        """
        return KafkaQueue(self._parsed(ledger), gate, ledger)

    def _given(self) -> dict[str, str]:
        own = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        return {**self.options, **own}

    def _parsed(self, ledger: Ledger | None = None) -> KafkaOptions:
        of_ledger = {} if ledger is None else {"headrace.channel": ledger.url}
        of_client = {
            name: value
            for name, value in self._given().items()
            if name.lower().startswith(("kafka.", "fetchoffset.", "kafkaconsumer."))
        }
        return parse_options(of_client | of_ledger | {"subscribe": self.topic}, streaming=True)


def kafka(topic: str, servers: str, **options: object) -> KafkaChannel:
    """A channel that is a topic, which must be there.

    Args:
        topic: Its name.
        servers: The brokers, ``host:port,host:port``.
        **options: Of ``format("headrace-kafka")`` for the stages that read it; those that begin
            with ``kafka.`` (``**{"kafka.security.protocol": "SSL"}``) for those that write it, too.

    Raises:
        OptionError: One of the options for the brokers is wrong.
    """
    given = {name: option_text(value) for name, value in options.items()}
    channel = KafkaChannel(topic, servers, given)
    channel._parsed()
    return channel


def _produced(output: DataFrame, client: Mapping[str, object], topic: str, marked: str) -> None:
    """Have tasks produce the records."""

    def produced_by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101  (it runs in a task)
        if task.attemptNumber():
            # Spark tells how the last run of a task has ended: where what is written cannot be
            # computed, that is to be why.
            deque(batches, maxlen=0)
            raise RuntimeError(f"The attempt {marked} to write {topic} ends: {_RAN_BEFORE}.")
        refused = None
        try:
            produce(client, topic, marked, batches)
        except BrokerError as error:
            # An answer, for after an exception the task would run again, and hide it.
            refused = str(error)
            deque(batches, maxlen=0)
        ran = {
            "stage": pa.array([task.stageId()], pa.int32()),
            "refused": pa.array([refused], pa.string()),
        }
        yield pa.record_batch(ran)

    rows = output.mapInArrow(produced_by_task, "stage int, refused string").collect()
    for row in rows:
        if row["refused"] is not None:
            raise BrokerError(row["refused"])
    # Where output of an earlier stage was lost, tasks run again in a new attempt of their stage,
    # which counts their runs anew.
    tracker = output.sparkSession.sparkContext.statusTracker()
    for stage in {row["stage"] for row in rows}:
        info = tracker.getStageInfo(stage)
        if info is not None and info.currentAttemptId > 0:
            raise _RanTwiceError(f"The attempt {marked} to write {topic} ends: {_RAN_BEFORE}.")
