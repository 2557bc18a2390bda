"""The offset that Spark writes into a checkpoint: the native connector's JSON, and a little more.

``{"orders": {"0": 12, "1": 7}}`` is all the native connector writes, so a query may change from it
to Headrace on its own checkpoint. Keys that begin with ``@``, which no topic's name can, add data
that a batch needs when Spark runs it again after a crash:

``@gate``   the gate that limits this source: whose batch a progress event is.
``@checkpoint`` made when a fresh checkpoint starts; with the ranges it identifies a batch.
``@ledger`` names the gate as its ledger made it: which ledger this checkpoint was run with.
``@planned`` how many offsets this checkpoint has planned so far: what its ledger must know of.
``@ids``    the topics' ids, which tell a topic from a later one of the same name.
``@from``   where the batch really began, for partitions that did not begin where the batch before
            ended: at the very start, on a new partition, after a loss.
``@after``  where the log tells them, checksums of what the records before these offsets are in:
            what tells a journal's lane from one that was put back and written on.
``@gone``   the next offsets of topics that are gone, or that the query may not see for a while.
``@first``  set on the initial offset only, before any batch is planned.
``@replay`` set where batches are read once more, by a query of its own: the file in which the next
            one's end will be found.
``@ranges`` with ``@replay``: exactly what the batch reads, for it may have several ranges of one
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
"""See `headrace.gate.source.log.Log.checksums`."""
ChecksumsBefore = Mapping[tuple[TopicPartition, int], int]
"""The same, with the offsets before which the records are."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One end of a batch, in every partition of the source.

    Attributes:
        positions: the next offset to read, by partition.
        checkpoint_id: identifies the checkpoint's life.
        gate_id: the identity of the gate in its ledger; empty without a gate.
        planned: number of offsets that the checkpoint's batches have planned up to here.
        begins: start of the batch that ends here, in partitions where it is not the previous
            batch's end.
        after: checksums of what comes before the positions, where the log tells them.
        replay: in a replay of batches, the path of the file with the next one's end.
        ranges: in a replay, exactly what the batch that ends here reads.
        out_of_sight: the next offset to read in topics that are gone, or cannot be seen now.
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
        """As a dict of topics; the same offset always gives the same text."""
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
        """Parse the text of ``to_json`` or the native connector; anything else is refused."""
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
        """Return the ranges of the batch that ends here, by topic and partition; no empty ones.

        A partition without a known start is read from 0: the native connector, which may have
        planned the batch, began a new one at its earliest offset and wrote nothing.
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
        """Raise `OptionError` where this is an offset of another gate's checkpoint.

        A batch that the other gate has planned, and that did not end, would be run again under
        another key; and the other gate's history would have a gap.
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
        """The checksums before these positions, in topics of the same ids.

        A topic that was recreated since has none of the records they are of.
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
        """The end of the next batch."""
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
    """As ``flat``, without the negative numbers that stand for earliest and latest in options."""
    positions = flat(topics)
    if any(offset < 0 for offset in positions.values()):
        raise ValueError("an offset is negative")
    return positions


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def planned_ids(ranges: "Sequence[PlannedRange]") -> dict[str, str]:
    """The ids of these ranges' topics when they were planned, where that is known."""
    return {each.offsets.topic: each.topic_id for each in ranges if each.topic_id is not None}
