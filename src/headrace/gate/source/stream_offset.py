"""Offset in Spark's checkpoint: the native connector's JSON, with a few more keys.

The native connector writes only ``{"orders": {"0": 12, "1": 7}}``, so a query may change from the
native connector to Headrace on its own checkpoint. Keys that begin with ``@``, which no topic's
name can, add data that a batch needs when Spark runs the batch again after a crash:

``@gate``   the gate that limits this source; it assigns a progress event to a gate.
``@checkpoint`` random id of a fresh checkpoint; with the ranges it identifies a batch.
``@ledger`` id of the gate in its ledger; it identifies the ledger of this checkpoint.
``@planned`` number of offsets that this checkpoint has planned so far. A ledger with fewer offsets
            lacks a batch; positions do not show this after a loss.
``@ids``    the topics' ids, which distinguish a topic from a later topic of the same name.
``@from``   start of the batch, for partitions that did not begin at the previous batch's end: at
            the very start, on a new partition, after a loss.
``@after``  checksums of the blocks before these offsets, if the log has them. They distinguish a
            journal's lane from a lane that was restored from a copy and written on.
``@gone``   next offsets of topics that are gone, or that the query temporarily cannot see.
``@first``  set on the initial offset only, before any batch is planned.
``@replay`` set if a query of its own reads batches again: the file that will contain the next
            batch's end.
``@ranges`` with ``@replay``: exact ranges of the batch, which may have several ranges of one
            partition.
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
"""Checksums by partition and offset, each of the records before its offset."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One end of a batch, in every partition of the source.

    Attributes:
        positions: Next offset to read, by partition.
        checkpoint_id: Identity of a fresh checkpoint, which its copies keep.
        gate_id: Identity of the gate in its ledger; empty without a gate.
        planned: Number of offsets that the checkpoint's batches have planned so far.
        begins: Start of the batch that ends here, in partitions that do not begin at the previous
            batch's end.
        after: Checksums of the records before the positions, if the log has them.
        replay: In a replay of batches, the path of the file with the next batch's end.
        ranges: In a replay, exact ranges of the batch that ends here.
        out_of_sight: Next offset to read in topics that are gone, or cannot be seen now.
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
        """Return a dict of topics; the same offset always gives the same text."""
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
        """Parse the JSON of ``to_json`` or the native connector.

        SourceError is raised for any other JSON.
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
                f"The checkpoint's offset {offset!r} is not one of a Kafka source; start the query"
                " with the checkpoint it was started with, or with a new one."
            ) from error

    def ranges_from(self, start: "StreamOffset") -> list[OffsetRange]:
        """Return the non-empty ranges of the batch that ends here, by topic and partition.

        A partition without a known start is read from 0. The native connector may have planned the
        batch. For a new partition, its batch begins at the earliest offset, without a written
        start.
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

        An unfinished batch of the other gate would be run again under another key, and the other
        gate's history would have a gap.
        """
        if gate is not None and self.gate is not None and gate != self.gate:
            raise OptionError(
                f"The query's checkpoint belongs to the gate {self.gate!r}, and its source has the"
                f" gate {gate!r}; a batch's key depends on its gate, so read with the gate"
                f" {self.gate!r}, or start with a new checkpoint and with startingOffsets where"
                f" that one ended (`headrace checkpoint offsets {shlex.quote(self.gate)}` prints"
                " them)."
            )

    def after_of(self, topic_ids: Mapping[str, str]) -> ChecksumsBefore:
        """Return the checksums of the blocks before these positions, for topics with the same ids.

        A recreated topic has other records, so checksums of the earlier topic do not apply to it.
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
        """Return the end of the next batch."""
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
    """Parse positions as ``flat`` does; raise ValueError for a negative offset.

    In options, negative numbers mean earliest and latest.
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
    """Return the known ids of these ranges' topics at the time of the plan."""
    return {
        planned_range.offsets.topic: planned_range.topic_id
        for planned_range in ranges
        if planned_range.topic_id is not None
    }
