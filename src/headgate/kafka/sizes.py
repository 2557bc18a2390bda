"""How large the records are that a batch would read, for a cap in bytes."""

from collections.abc import Mapping
from typing import Final

from headgate.control import OffsetRange, TopicPartition
from headgate.kafka.consumers import ClientConfig
from headgate.kafka.positions import Positions
from headgate.kafka.reader import ReaderConfig, read_ranges

_RECORDS: Final = 40
_PARTITIONS: Final = 3


class RecordSizes:
    """The mean size of each topic's records, sampled where the next batch begins.

    Args:
        client: librdkafka's settings.
        timeout_ms: how long a broker may give nothing (ms).
    """

    def __init__(self, client: ClientConfig, timeout_ms: int) -> None:
        self._config = ReaderConfig(client, ("key", "value"), False, timeout_ms)
        self._mean_bytes: dict[str, float] = {}

    def measure(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Key and value, in bytes, by topic; a topic of which no record was ever seen is left out.

        Some records of the partitions that are furthest behind are read, for they make up most of
        the batch.

        Raises:
            BrokerError: the brokers cannot be reached.
        """
        for topic, partitions in _by_topic(current, latest).items():
            furthest = sorted(partitions, key=lambda r: -r.count)[:_PARTITIONS]
            sample = [
                OffsetRange(r.topic, r.partition, r.start, min(r.until, r.start + _RECORDS))
                for r in furthest
            ]
            records = size_bytes = 0
            for batch in read_ranges(self._config, sample):
                records += batch.num_rows
                size_bytes += batch.nbytes
            if records:
                self._mean_bytes[topic] = size_bytes / records
        return self._mean_bytes


def _by_topic(current: Positions, latest: Positions) -> dict[str, list[OffsetRange]]:
    topics: dict[str, list[OffsetRange]] = {}
    for (topic, partition), until in latest.items():
        start = current[TopicPartition(topic, partition)]
        if start < until:
            topics.setdefault(topic, []).append(OffsetRange(topic, partition, start, until))
    return topics
