"""Warns of failed batches that Kafka is about to forget."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.backfill.monitor import OpenBatch
from headrace.control.ranges import OffsetRange, TopicPartition

Earliest = Mapping[TopicPartition, int]

_LEFT: Final = 0.5
"""Of the way from where the log began to a range: what is left of it when it is warned of."""


def near_retention(
    ranges: Iterable[OffsetRange], first: Earliest, now: Earliest
) -> tuple[OffsetRange, ...]:
    """Those ranges to which retention has come half the way since their batch was first looked at.

    At the pace it has had it reaches them in less time than has gone by since. That is all that can
    be said from where a log begins: how old a record is and how long the topic keeps it says when
    it *may* go, but a log also loses whole segments by size, or because somebody deletes records.
    So there is no warning while nothing is deleted, however close a range is to the beginning; and
    none in time where one segment, deleted at a stroke, is longer than the way.

    Args:
        ranges: Of a batch.
        first: The earliest offset of each partition when the batch was first looked at.
        now: The same as it is now. Partitions that are not in both are left out.
    """
    return tuple(
        each
        for each in ranges
        if (tp := each.topic_partition) in first
        and tp in now
        and first[tp] < now[tp]
        and each.start - now[tp] <= _LEFT * (each.start - first[tp])
    )


class RetentionWatch:
    """Remembers, for the batches that are open, where the logs began; warns of each batch once."""

    def __init__(self) -> None:
        self._first: dict[str, Earliest] = {}
        self._warned: set[str] = set()

    def look(
        self, batches: Sequence[OpenBatch], earliest: Earliest
    ) -> list[tuple[OpenBatch, tuple[OffsetRange, ...]]]:
        """The batches to warn of now, with the ranges that retention nears.

        Args:
            batches: All that are open; what is not among them is forgotten.
            earliest: The earliest offset there is of each of their partitions.
        """
        self._first = {
            batch.schedule_id: self._first.get(batch.schedule_id) or _own(batch, earliest)
            for batch in batches
        }
        self._warned &= self._first.keys()
        found = []
        for batch in batches:
            if batch.schedule_id in self._warned:
                continue
            first = self._first[batch.schedule_id]
            near = near_retention((each.offsets for each in batch.ranges), first, earliest)
            if near:
                self._warned.add(batch.schedule_id)
                found.append((batch, near))
        return found


def _own(batch: OpenBatch, earliest: Earliest) -> Earliest:
    partitions = {each.offsets.topic_partition for each in batch.ranges}
    return {tp: earliest[tp] for tp in partitions if tp in earliest}
