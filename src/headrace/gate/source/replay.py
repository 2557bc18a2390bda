"""Reads of exactly the ranges of a batch: their options, their offset in a query, their tasks.

A failed batch is read again, whole or in parts. Each layer between the batch's row and the tasks
checks that it hands all requested ranges to the next layer. Without the check the handler would get
an empty DataFrame, succeed, and the omitted records would count as processed.
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

    The offsets of Kafka's options hold one range per partition; ``headrace.ranges`` has the exact
    ranges between them. Missing offsets are an error, whatever the stream's ``failOnDataLoss``: no
    record of a repeated batch may disappear.

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
    """Return the partitions of these ranges, in the form of Kafka's option ``assign``."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted({r.topic_partition for r in ranges}):
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def exactly(wanted: Sequence[OffsetRange], bounded: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the wanted ranges within a bounded read's ranges; without any, all of these.

    OptionError is raised if a wanted range lies outside of the bounds.
    """
    if not wanted:
        return list(bounded)
    for offsets in wanted:
        if not any(bounds.contains(offsets) for bounds in bounded):
            raise OptionError(
                f"{RANGES} names {offsets}, outside of the bounds of the read,"
                f" {', '.join(map(str, bounded)) or 'which has no offsets'}; let startingOffsets"
                " and endingOffsets enclose it."
            )
    return sorted(wanted)


def check_all_planned(
    ranges: Iterable[OffsetRange], tasks: Iterable[Iterable[OffsetRange]]
) -> None:
    """Check that tasks read each of these ranges, and no offset twice.

    SourceError is raised otherwise.
    """
    planned = [offsets for task in tasks for offsets in task]
    if merge(planned) != merge(r for r in ranges if r.count) or shared_offsets(planned):
        raise SourceError(
            f"The tasks of a batch were to read {', '.join(map(str, ranges))}, and would read"
            f" {', '.join(map(str, planned)) or 'nothing'}; nothing is read. Please report this."
        )


def replay_end(ranges: "Sequence[PlannedRange]", following: Path) -> dict[str, Any]:
    """Return the end of a batch of exactly these ranges, for a query that reads batches again.

    ``following`` is the file that will contain the next batch's end. OptionError is raised if two
    ranges share an offset.
    """
    exact = _disjoint(planned.offsets for planned in ranges)
    return StreamOffset(
        positions={r.topic_partition: r.until for r in hulls(exact)},
        ranges=tuple(r for r in exact if r.count),
        topic_ids=planned_ids(ranges),
        replay=str(following),
    ).to_json()


def next_replay(end: StreamOffset) -> dict[str, Any] | None:
    """Return the end of the next batch to read, or None until it is requested.

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
            f"The file {end.replay} is to say what is read again, and does not; start the query"
            " again."
        ) from error


def _disjoint(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    exact = sorted(ranges)
    if (shared := shared_offsets(exact)) is not None:
        raise OptionError(
            f"A batch is to be read again, and two of its ranges have the offsets {shared}; nothing"
            " of it is read."
        )
    return exact
