"""How large the records are that a batch would read, for a cap in bytes."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.control import OffsetRange, TopicPartition
from headrace.kafka.consumers import ClientConfig
from headrace.kafka.reader import ReaderConfig, read_ranges
from headrace.source.losses import Losses
from headrace.source.positions import Positions

_RECORDS: Final = 40
_PARTITIONS: Final = 3


class RecordSizes:
    """The mean size of each topic's records, sampled where the next batch begins.

    Args:
        client: librdkafka's settings.
        timeout_ms: how long a broker may give nothing (ms).
    """

    def __init__(self, client: ClientConfig, timeout_ms: int) -> None:
        self._config = ReaderConfig(
            client, ("topic", "key", "value"), Losses("Kafka", fail=False).pass_over, timeout_ms
        )
        self._mean_bytes: dict[str, float] = {}

    def measure(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Key and value, in bytes, by topic; a topic of which no record was ever seen is left out.

        Some records of the partitions that are furthest behind are read, for they make up most of
        the batch.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        records: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        for batch in read_ranges(self._config, _sample(current, latest)):
            for topic in pc.unique(batch["topic"]).to_pylist():
                of_topic = batch.filter(pc.equal(batch["topic"], topic))
                records[topic] += of_topic.num_rows
                size_bytes[topic] += _length(of_topic["key"]) + _length(of_topic["value"])
        self._mean_bytes |= {topic: size_bytes[topic] / n for topic, n in records.items()}
        return self._mean_bytes


def _sample(current: Positions, latest: Positions) -> list[OffsetRange]:
    """The next records of each topic's partitions that are furthest behind."""
    topics: dict[str, list[OffsetRange]] = {}
    for (topic, partition), until in latest.items():
        start = current[TopicPartition(topic, partition)]
        if start < until:
            topics.setdefault(topic, []).append(OffsetRange(topic, partition, start, until))
    return [
        OffsetRange(r.topic, r.partition, r.start, min(r.until, r.start + _RECORDS))
        for ranges in topics.values()
        for r in sorted(ranges, key=lambda r: -r.count)[:_PARTITIONS]
    ]


def _length(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0
