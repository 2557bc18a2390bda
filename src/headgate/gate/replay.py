"""Reads the ranges of a batch once more: for its handler, or to keep one record."""

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headgate.control.isolation import Ranges
from headgate.control.ranges import OffsetRange, TopicPartition
from headgate.kafka.positions import StreamOffset
from headgate.kafka.replay import earliest, gone, replay_options
from headgate.kafka.source import FORMAT
from headgate.ledger import DeadLetter, ErrorReport

Use = Callable[[DataFrame], None]
"""What is done with a batch; what it raises, the replay raises."""


@dataclass(frozen=True)
class Replay:
    """Reads again what a gate's batches read.

    Attributes:
        spark: the session that reads.
        options: the stream's, as its reader was given them.
        derived: the stream that is written, if that is not the source as it is read.
    """

    spark: SparkSession
    options: Mapping[str, str]
    derived: DataFrame | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The brokers that are asked first."""
        given = {name.lower(): value for name, value in self.options.items()}
        return given["kafka.bootstrap.servers"]

    def run(self, ranges: Ranges, use: Use) -> None:
        """Have exactly the records in these ranges used, as the stream would have them.

        Raises:
            Exception: what ``use`` raises, or Spark because a record has left Kafka.
        """
        if self.derived is None:
            use(self._read(ranges))
        else:
            _run_derived(self.derived, ranges, use)

    def gone(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """What has left Kafka of these ranges.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        return gone(self.options, ranges)

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Where the log begins in each of these partitions; of those that there are.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        return earliest(self.options, ranges)

    def letter(self, offset: OffsetRange, error: BaseException) -> DeadLetter | None:
        """The record at one offset, whole, with why it cannot be processed.

        Returns:
            None where there is no record, but a gap or a transaction's marker.
        """
        df = self._read([offset], includeHeaders="true")
        rows = df.withColumn("timestamp_ms", F.unix_millis("timestamp")).take(1)
        return _letter(rows[0], error) if rows else None

    def _read(self, ranges: Sequence[OffsetRange], **options: str) -> DataFrame:
        chosen = replay_options(self.options, ranges) | options
        return self.spark.read.format(FORMAT).options(**chosen).load()


def _run_derived(stream: DataFrame, ranges: Ranges, use: Use) -> None:
    """Run one batch of a stream in a query of its own, on these ranges.

    Only a streaming query can run what was derived from a stream. This one finds a checkpoint in
    which its first batch is planned, as after a crash, and nothing to do after that.
    """
    raised: list[Exception] = []

    def keep_what_it_raises(df: DataFrame, _batch_id: int) -> None:
        try:
            use(df)
        except Exception as error:  # noqa: BLE001  (raised again below, outside of the query)
            raised.append(error)

    folder = Path(tempfile.mkdtemp(prefix="headgate-replay-"))
    try:
        _plan_first_batch(folder, ranges)
        writer = stream.writeStream.foreachBatch(keep_what_it_raises)
        writer = writer.option("checkpointLocation", folder.as_uri()).trigger(availableNow=True)
        query = writer.queryName(f"headgate-replay-{uuid.uuid4().hex}").start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if raised:
        raise raised[0]


def _plan_first_batch(checkpoint: Path, ranges: Ranges) -> None:
    """Write the part of Spark's checkpoint that says which offsets its first batch ends at."""
    end = StreamOffset(
        positions={r.topic_partition: r.until for r in ranges},
        begins={r.topic_partition: r.start for r in ranges},
        replay=True,
    )
    times = {"batchWatermarkMs": 0, "batchTimestampMs": 0}
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(
        "\n".join(["v1", json.dumps(times), json.dumps(end.to_json())]), encoding="utf-8"
    )


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
