"""Replays: options, offsets and checks for a read of exactly the ranges of a batch.

A failed batch is read again, whole or in parts. Each step from the batch's row to the tasks checks
that it passes on all requested ranges. If a step omitted a range, the handler could succeed
without these records, and they would count as processed.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.ranges import (
    OffsetRange,
    hulls,
    lists_of,
    merge,
    nested,
    shared_offsets,
)
from headrace.errors import OptionError, SourceError
from headrace.gate.source.source_options import RANGES
from headrace.gate.source.stream_offset import StreamOffset, planned_ids

if TYPE_CHECKING:
    from headrace.gate.ledger.records import PlannedRange


def replay_bounds(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Return the options of a bounded read of exactly these ranges.

    Kafka's options hold only one range per partition, from the first offset to the last.
    ``headrace.ranges`` holds the exact ranges within it. ``failOnDataLoss`` is always true here,
    because no record of a repeated batch may disappear.

    OptionError is raised if two ranges share an offset.
    """
    exact = _disjoint(ranges)
    bounds = hulls(exact)
    return {
        "startingOffsets": json.dumps(nested({r.topic_partition: r.start for r in bounds})),
        "endingOffsets": json.dumps(nested({r.topic_partition: r.until for r in bounds})),
        RANGES: json.dumps(lists_of(r for r in exact if r.count)),
        "failOnDataLoss": "true",
    }


def assigned(ranges: Iterable[OffsetRange]) -> str:
    """Return the partitions of these ranges as JSON for Kafka's option ``assign``."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted({r.topic_partition for r in ranges}):
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def exactly(wanted: Sequence[OffsetRange], bounded: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the wanted ranges, sorted, or all ``bounded`` ranges if none are wanted.

    OptionError is raised if a wanted range is not within one of the ``bounded`` ranges.
    """
    if not wanted:
        return list(bounded)
    for offsets in wanted:
        if not any(bounds.contains(offsets) for bounds in bounded):
            raise OptionError(
                f"{RANGES} has the range {offsets}, which is outside of the read"
                f" ({', '.join(map(str, bounded)) or 'no offsets'}); set startingOffsets and"
                " endingOffsets so that they enclose the range."
            )
    return sorted(wanted)


def check_all_planned(
    ranges: Iterable[OffsetRange], tasks: Iterable[Iterable[OffsetRange]]
) -> None:
    """Raise `SourceError` unless the tasks together read exactly these ranges, without overlaps."""
    planned = [offsets for task in tasks for offsets in task]
    if merge(planned) != merge(r for r in ranges if r.count) or shared_offsets(planned):
        raise SourceError(
            f"The tasks of a batch should read {', '.join(map(str, ranges))}, but would read"
            f" {', '.join(map(str, planned)) or 'nothing'}; the batch is not read. Please report"
            " this."
        )


def replay_end(ranges: "Sequence[PlannedRange]", following: Path) -> dict[str, Any]:
    """Return the offset that Spark's checkpoint needs so that a batch has exactly these ranges.

    ``following`` is the file that will contain the offset of the query's next batch. OptionError is
    raised if two ranges share an offset.
    """
    exact = _disjoint(planned.offsets for planned in ranges)
    return StreamOffset(
        positions={r.topic_partition: r.until for r in hulls(exact)},
        ranges=tuple(r for r in exact if r.count),
        topic_ids=planned_ids(ranges),
        replay=str(following),
    ).to_json()


def next_replay(end: StreamOffset) -> dict[str, Any] | None:
    """Read a replay query's next offset from the file that ``end`` names; None without a file.

    SourceError is raised if the file does not contain an offset.
    """
    try:
        text = Path(end.replay).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return StreamOffset.from_json(json.loads(text)).to_json()
    except (json.JSONDecodeError, AttributeError) as error:
        raise SourceError(
            f"The file {end.replay} does not contain the offset of the next batch to read again;"
            " start the query again."
        ) from error


def _disjoint(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    exact = sorted(ranges)
    if (shared := shared_offsets(exact)) is not None:
        raise OptionError(
            f"A batch is to be read again, but two of its ranges share the offsets {shared}; the"
            " batch is not read."
        )
    return exact
