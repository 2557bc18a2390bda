"""What waits in a topic for one stage: its lag, times the size of some of the records.

Kafka does not say how large records are. So some that wait are read every few seconds, and all
count as if they had their mean size: as exact as these are like the others. Control records and
what compaction has removed count, too.
"""

from typing import Final

from headrace.control.hop import InputQueue
from headrace.control.ranges import TopicPartition
from headrace.kafka.log import KafkaLog
from headrace.kafka.options import KafkaOptions
from headrace.ledger import Ledger
from headrace.source.log import Topic
from headrace.source.positions import Positions

_LOOKS_PER_SAMPLE: Final = 40
"""Looks for which the topic's partitions and the size of its records are taken as they were."""

_ASSUMED_BYTES: Final = 1_000
"""The size of a record while none could be read: too large, and a stage is slowed down for nothing.
(What a batch assumes, for a cap in bytes that must not be passed, is a thousand times this.)"""


class KafkaQueue:
    """The queue of one stage on one topic; see `headrace.flow.channels.ChannelQueue`.

    Records that a stage is still writing do not wait yet. Until one of those that wait could be
    read, each counts as 1 kB.

    Args:
        options: How the topic is read.
        gate: The reading stage's.
        ledger: That gate's.
    """

    def __init__(self, options: KafkaOptions, gate: str, ledger: Ledger) -> None:
        self._log = KafkaLog(options)
        self._gate = gate
        self._ledger = ledger
        self._looks = 0
        self._record_bytes: float = _ASSUMED_BYTES
        self._is_measured = False
        self._topics: dict[str, Topic] = {}
        self._earliest: Positions = {}
        self._before: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] | None = None
        self._left_records: int | None = None
        self._arrived_bytes = 0.0

    def look(self) -> InputQueue:
        """What waits now.

        Raises:
            BrokerError: the brokers cannot be reached.
            LedgerError: the ledger cannot be read.
        """
        samples = self._looks % _LOOKS_PER_SAMPLE == 0 or not self._topics
        self._looks += 1
        if samples:
            self._topics = dict(self._log.topics())
            self._earliest = self._log.earliest(self._log.partitions(self._topics))
        begun = self._positions()
        ends = dict(self._log.decided(self._log.latest(begun)))
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
        """Let go of the brokers."""
        self._log.close()

    def _positions(self) -> dict[TopicPartition, int]:
        """Where the stage goes on in each partition."""
        found: dict[TopicPartition, int] = {}
        for topic in self._topics.values():
            known = self._ledger.stream_rate(self._gate, topic.topic_id or "").begun
            for tp, earliest in self._earliest.items():
                found[tp] = max(known.get(tp.partition, 0), earliest)
        return found

    def _compare(self, begun: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Take in what has changed since the last look."""
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
