"""Offset of a source in Spark's checkpoint: the native connector's JSON, with additional keys.

The native connector writes only ``{"orders": {"0": 12, "1": 7}}``. So a query can change from the
native connector to Headrace and keep its checkpoint. The additional keys begin with ``@``, which no
topic's name contains. They have the data that a batch needs when Spark repeats it after a crash:

``@gate``   name of the gate that limits this source. It links a progress event to the gate.
``@checkpoint`` random id, made for a new checkpoint. Id and ranges together identify a batch.
``@ledger`` id of the gate in its ledger. It shows which ledger belongs to this checkpoint.
``@planned`` number of offsets that this checkpoint has planned so far. A ledger with fewer offsets
            lacks a batch; positions do not show this after a loss.
``@ids``    the topics' ids, which distinguish a topic from a later topic of the same name.
``@from``   start of the batch, for partitions that did not begin at the previous batch's end: at
            the very start, on a new partition, after a loss.
``@after``  checksums of the blocks before these offsets, if the log has checksums. They reveal
            that a journal's lane was restored from a copy, and new records were appended.
``@gone``   next offset to read in topics that are deleted, or that the query may not see now.
``@first``  true only in the initial offset, before any batch is planned.
``@replay`` only in a query that replays batches: path of the file that will contain the next
            batch's end.
``@ranges`` only with ``@replay``: exact ranges of the batch; a partition may have several.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.core.ranges import (
    OffsetRange,
    Positions,
    TopicPartition,
    flat,
    lists_of,
    nested,
    ranges_of_lists,
)
from headrace.errors import OptionError, SourceError

if TYPE_CHECKING:
    from headrace.gate.ledger.records import PlannedRange

Checksums = Mapping[TopicPartition, int]
"""Checksums by partition: see `headrace.gate.source.log.CheckedLog.checksums`."""
ChecksumsBefore = Mapping[tuple[TopicPartition, int], int]
"""Checksum of the records before an offset, by partition and offset."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Offset of a source in Spark's checkpoint: the end of one batch and the start of the next.

    Attributes:
        positions: Next offset to read, by partition.
        checkpoint_id: Random id of the checkpoint. Copies of the checkpoint have the same id.
        gate_id: Id of the gate in its ledger; empty without a gate.
        planned: Number of offsets that the checkpoint's batches have planned so far.
        begins: Start of the batch that ends here, in partitions that do not begin at the previous
            batch's end.
        after: Checksums of the records before the positions; empty if the log has no checksums.
        replay: In a query that replays batches, the path of the file that will contain the next
            batch's end; otherwise empty.
        ranges: In a query that replays batches, the exact ranges of the batch that ends here.
        out_of_sight: Next offset to read in topics that are deleted or not visible now.
    """

    positions: Positions
    gate: str | None = None
    checkpoint_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begins: Positions = field(default_factory=dict)
    after: Checksums = field(default_factory=dict)
    first: bool = False
    replay: str = ""
    ranges: tuple[OffsetRange, ...] = ()
    out_of_sight: Positions = field(default_factory=dict)
    gate_id: str = ""
    planned: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the offset as a dict for JSON; equal offsets give the same text."""
        extra: dict[str, Any] = {
            "@gate": self.gate,
            "@checkpoint": self.checkpoint_id,
            "@ledger": self.gate_id,
            "@planned": self.planned,
            "@ids": dict(sorted(self.topic_ids.items())),
            "@from": nested(self.begins),
            "@after": nested(self.after),
            "@gone": nested(self.out_of_sight),
            "@first": self.first,
            "@replay": self.replay,
            "@ranges": lists_of(self.ranges),
        }
        return {**nested(self.positions), **{key: value for key, value in extra.items() if value}}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> "StreamOffset":
        """Parse a dict as returned by `to_json`, or as written by the native connector.

        SourceError is raised for any other dict.
        """
        try:
            return cls(
                positions=_reached({k: v for k, v in offset.items() if not k.startswith("@")}),
                gate=_text(offset["@gate"]) if "@gate" in offset else None,
                checkpoint_id=_text(offset.get("@checkpoint", "")),
                gate_id=_text(offset.get("@ledger", "")),
                planned=int(offset.get("@planned", 0)),
                topic_ids={topic: _text(id_) for topic, id_ in offset.get("@ids", {}).items()},
                begins=_reached(offset.get("@from", {})),
                after=flat(offset.get("@after", {})),
                out_of_sight=_reached(offset.get("@gone", {})),
                first=offset.get("@first", False) is True,
                replay=_text(offset.get("@replay", "")),
                ranges=tuple(ranges_of_lists(offset.get("@ranges", []))),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise SourceError(
                f"The checkpoint's offset {offset!r} is not the offset of a Kafka source; start the"
                " query with the checkpoint it was started with, or with a new checkpoint."
            ) from error

    def ranges_from(self, start: "StreamOffset") -> list[OffsetRange]:
        """Return the non-empty ranges of the batch that ends here, by topic and partition.

        A partition without a known start is read from 0: the native connector does not write the
        start of a partition that is new in a batch.
        """
        if self.replay:
            return list(self.ranges)
        ranges = []
        for tp, until in sorted(self.positions.items()):
            begin = self.begins.get(tp, start.positions.get(tp, 0))
            if begin < until:
                ranges.append(tp.range(begin, until))
        return ranges

    def refuse_another_gate(self, gate: str | None) -> None:
        """Raise `OptionError` if this offset belongs to another gate's checkpoint.

        Otherwise an unfinished batch of the other gate would run again under another key, and the
        other gate's history would have a gap.
        """
        if gate is not None and self.gate is not None and gate != self.gate:
            raise OptionError(
                f"The query's checkpoint belongs to the gate {self.gate!r}, but its source has the"
                f" gate {gate!r}; read with the gate {self.gate!r}. Or start with a new checkpoint"
                f" at the old one's end: `headrace checkpoint offsets {shlex.quote(self.gate)}`"
                " prints its startingOffsets."
            )

    def after_of(self, topic_ids: Mapping[str, str]) -> ChecksumsBefore:
        """Return the checksums before these positions, for topics that still have the same id.

        A recreated topic has other records, so the checksums of the deleted topic do not apply.
        """
        return {
            (tp, self.positions[tp]): checksum
            for tp, checksum in self.after.items()
            if tp in self.positions and self.topic_ids.get(tp.topic) == topic_ids.get(tp.topic)
        }

    def moved(
        self,
        positions: Positions,
        begins: Positions,
        ids: Mapping[str, str],
        after: Checksums,
        out_of_sight: Positions,
    ) -> "StreamOffset":
        """Return the end of the batch that begins here.

        The result has the arguments as values. Its ``planned`` includes the offsets of the batch.
        """
        end = replace(
            self,
            positions=positions,
            begins=begins,
            topic_ids=ids,
            after=after,
            out_of_sight=out_of_sight,
            first=False,
        )
        counts = (offsets.count for offsets in end.ranges_from(self))
        return replace(end, planned=self.planned + sum(counts))


def _reached(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Parse the positions of a checkpoint. Raise ValueError for a negative offset.

    Only options may have negative offsets: -2 for the earliest and -1 for the latest.
    """
    positions = flat(topics)
    if any(offset < 0 for offset in positions.values()):
        raise ValueError("an offset is negative")
    return positions


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def planned_ids(ranges: "Sequence[PlannedRange]") -> dict[str, str]:
    """Return the planned ids of the ranges' topics, by name. Unknown ids are left out."""
    return {
        planned_range.offsets.topic: planned_range.topic_id
        for planned_range in ranges
        if planned_range.topic_id is not None
    }
