"""Reads the ranges of a batch once more: for its handler, or to keep one record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.gate.registration import concealed
from headrace.gate.replay_stream import ReplayStream, Use
from headrace.ledger import DeadLetter, ErrorReport, PlannedRange
from headrace.source.connector import Connector
from headrace.source.options import TOPIC_IDS
from headrace.source.replay import planned_ids


@dataclass(frozen=True)
class Replay:
    """Reads again what a gate's batches read.

    Attributes:
        spark: the session that reads.
        connector: of the stream's source.
        options: the stream's, as its reader was given them.
        derived: runs what is derived from the source, if that is what is written.
    """

    spark: SparkSession
    connector: Connector
    options: Mapping[str, str]
    derived: ReplayStream | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Where the source is."""
        return self.connector.servers(self.options)

    @property
    def passes_over_losses(self) -> bool:
        """Whether the stream goes on without what is gone from its source (failOnDataLoss)."""
        given = {name.lower(): value for name, value in self.options.items()}
        return given.get("failondataloss", "").strip().lower() == "false"

    def run(self, ranges: Sequence[PlannedRange], use: Use) -> None:
        """Have exactly the records in these ranges used, as the stream would have them.

        Of a topic that was recreated since they were planned nothing is used.

        Raises:
            Exception: what ``use`` raises, or Spark because a record has left Kafka.
        """
        if self.derived is None:
            use(self._read(ranges))
        else:
            self.derived.run(ranges, use)

    def close(self) -> None:
        """End what was started to read again; it is started anew when it is needed."""
        if self.derived is not None:
            self.derived.close()

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """What has left Kafka of these ranges.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        return self.connector.gone(self.options, ranges)

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Where the log begins in each of these partitions; of those that there are.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        return self.connector.beginnings(self.options, ranges)

    def letter(self, offset: PlannedRange, error: BaseException) -> DeadLetter | None:
        """The record at one offset, whole, with why it cannot be processed.

        Returns:
            None where there is no record, but a gap or a transaction's marker.
        """
        df = self._read([offset], includeHeaders="true")
        rows = df.withColumn("timestamp_ms", F.unix_millis("timestamp")).take(1)
        return _letter(rows[0], error) if rows else None

    def _read(self, ranges: Sequence[PlannedRange], **options: str) -> DataFrame:
        offsets = [each.offsets for each in ranges]
        chosen = self.connector.replay_options(self.options, offsets) | options
        chosen[TOPIC_IDS] = json.dumps(planned_ids(ranges))
        shown = concealed(self.spark, chosen)
        return self.spark.read.format(self.connector.format).options(**shown).load()


def _letter(row: Row, error: BaseException) -> DeadLetter:
    return DeadLetter(
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        key=None if row.key is None else bytes(row.key),
        value=None if row.value is None else bytes(row.value),
        headers=None
        if row.headers is None
        else tuple((h.key, None if h.value is None else bytes(h.value)) for h in row.headers),
        timestamp_ms=row.timestamp_ms,
        timestamp_type=row.timestampType,
        error=ErrorReport.of(error),
    )
