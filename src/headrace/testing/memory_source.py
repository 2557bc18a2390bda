"""Source that reads a `MemoryLog` without Spark, with the same code as every other source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final

import pyarrow as pa

from headrace.core.options import partitions_by_topic
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import OptionError
from headrace.gate import (
    ARROW_SCHEMA,
    Connector,
    Edge,
    Log,
    SourceFormat,
    SourceOptions,
    SourceTask,
    assigned,
    exactly_named,
    pack,
    parse_source_options,
    replay_bounds,
)
from headrace.testing.memory import MemoryLog

_FORMAT: Final = "headrace-memory"
_ASSIGN: Final = "assign"


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Access to a `MemoryLog` for a source's planner and tasks.

    It implements `headrace.gate.source.readers.Reading`.
    """

    memory: MemoryLog
    options: SourceOptions
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the log in messages."""
        return self.memory.name

    def log(self) -> MemoryLog:
        """Return the log that the planner reads."""
        return self.memory

    def packed(self, ranges: Sequence[OffsetRange], log: Log) -> list[tuple[OffsetRange, ...]]:
        """Return all ranges as the ranges of one task."""
        return pack(ranges, 1)

    def read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task, with the source's columns; the task runs in this process."""
        ids = {name: topic.topic_id for name, topic in self.memory.topics().items()}
        ranges = []
        for offsets in task.ranges:
            planned = task.topic_ids.get(offsets.topic)
            if planned is None or planned == ids[offsets.topic]:
                ranges.append(offsets)
            else:
                task.losses.pass_over(offsets, f"{offsets.topic} was recreated")
        rows = [row.asDict(recursive=True) for row in self.memory.read(ranges)]
        for row in rows:
            row["timestamp"] = row["timestamp"].astimezone(UTC)
        yield pa.RecordBatch.from_pylist(rows, ARROW_SCHEMA).select(list(self.columns))


def memory_connector(log: MemoryLog) -> Connector:
    """Return a connector through which sources read this log."""

    class MemorySource(SourceFormat):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def reading(self, columns: tuple[str, ...], *, streaming: bool) -> MemoryReading:
            return MemoryReading(_assigned(log, self.options), _parsed(self.options), columns)

    return Connector(
        name=log.source,
        source=MemorySource,
        check=_check,
        replay_options=_replay_options,
        log=lambda options: _assigned(log, options),
        servers=lambda _options: log.servers,
        located=_located,
    )


def _parsed(options: Mapping[str, str]) -> SourceOptions:
    raw = exactly_named(_FORMAT, options, streaming=False, both=[_ASSIGN])
    return parse_source_options(raw, streaming=False, stream_begins=Edge.EARLIEST)


def _check(options: Mapping[str, str]) -> None:
    _parsed(options)


def _replay_options(_options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    return {_ASSIGN: assigned(ranges), **replay_bounds(ranges)}


def _assigned(log: MemoryLog, options: Mapping[str, str]) -> MemoryLog:
    named = {name.lower(): value for name, value in options.items()}
    topics = named.get(_ASSIGN, "{}")
    wanted: list[TopicPartition] = [] if topics == "{}" else partitions_by_topic(_ASSIGN, topics)
    return log.assigned(wanted)


def _located(options: Mapping[str, str], servers: str | None) -> dict[str, str]:
    raise OptionError(
        f"{_FORMAT} can only be read by the test that created the log; no command can read"
        f" {servers}."
    )
