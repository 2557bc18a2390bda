"""Asks brokers and journals for the waiting records of gates: their number, age and retention.

The ledger knows a gate's lag only as of its newest batch. So the broker or the journal is asked if
a gate plans no batch, or lags. The requests carry no secrets and run in threads of their own.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError
from headrace.gate import GateRecord, Ledger, PlannedRange, connector_of
from headrace.operate.status.states import GateHistory

if TYPE_CHECKING:
    from headrace.gate import Connector


class SourceAccess(NamedTuple):
    """Access to a batch's records in the source: connector and source options."""

    connector: "Connector"
    options: dict[str, str]


def source_access(
    ledger: Ledger, gate_of: Mapping[str, str], options: Mapping[str, str]
) -> dict[str, SourceAccess]:
    """Return the access to each batch's records in the source, by batch key.

    ``gate_of`` maps batch keys to gates. The source's address comes from ``options``, or else from
    the ledger.
    """
    source_of = {gate.name: gate.source for gate in ledger.gates.all()}
    addresses = {
        key: (source_of[gate], ledger.batches.servers(key)) for key, gate in gate_of.items()
    }
    access = {}
    for source, servers in set(addresses.values()):
        connector = connector_of(source)
        access[source, servers] = SourceAccess(connector, connector.located(options, servers))
    return {key: access[address] for key, address in addresses.items()}


_Place = tuple[TopicPartition, str]
"""A partition, and a name for one of its records: ``next`` is the next record to read, and
``first`` is the log's first record."""

ASK_AGAIN_S: Final = 10.0
"""Shortest interval between two requests for the same gate (s)."""

_PER_S: Final = 4.0
"""Largest rate of requests for all gates together (1/s)."""

WAIT_FOR_SOURCES_S: Final = 3.0
"""Time for which a caller waits for answers (s). A later answer is returned by the next call."""

MOST_AT_ONCE: Final = 8
"""Largest number of gates whose sources are asked at the same time."""

MOST_RECORDS: Final = 100
"""Timestamps are read for at most this many partitions of a gate: those with the largest lags."""


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """Answer of a gate's source about one partition.

    Attributes:
        position: Offset after the last offset that the gate's batches have begun.
        end: Offset after the log's last record.
        beginning: First offset that the log still has.
        next_ms: Timestamp of the next record to read (ms since the epoch); None if no record waits,
            or if the timestamp was not read.
        first_ms: Timestamp of the log's first record (ms since the epoch); None if it was not read,
            because the log has not deleted a record yet.
    """

    position: int
    end: int
    beginning: int
    next_ms: int | None = None
    first_ms: int | None = None

    @property
    def lag(self) -> int:
        """Number of the partition's records that no batch has begun."""
        return max(self.end - max(self.position, self.beginning), 0)


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """Answer of a gate's source about all partitions; ``asked_ms`` is the time of the request."""

    asked_ms: int
    partitions: Mapping[TopicPartition, PartitionAnswer] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Number of records of all partitions that no batch has begun."""
        return sum(partition.lag for partition in self.partitions.values())

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest record to read (ms since the epoch); None if not known."""
        times = [
            partition.next_ms
            for partition in self.partitions.values()
            if partition.next_ms is not None
        ]
        return min(times, default=None)

    def retention_left_s(self) -> float | None:
        """Return the time (s) until retention deletes a record that waits to be read.

        A log's first record is due for deletion now, and retention by age deletes the next record
        to read ``next_ms - first_ms`` later. Return the shortest of these times over all
        partitions; 0 if records were deleted before they were read; None if no record waits, or if
        no log has deleted a record yet.
        """
        left = []
        for partition in self.partitions.values():
            if partition.position < partition.beginning:
                left.append(0.0)
            elif partition.next_ms is not None and partition.first_ms is not None:
                left.append(max(partition.next_ms - partition.first_ms, 0) / 1000)
        return min(left, default=None)


class Sources:
    """Asks the sources of gates in threads, and keeps each gate's newest answer.

    A source that does not answer, because it is unreachable or requires secrets, is asked again
    later. With ``with_times``, timestamps of records are read from the sources too.
    """

    def __init__(self, *, with_times: bool = True) -> None:
        self._with_times = with_times
        self._answers: dict[str, SourceAnswer] = {}
        self._asked_s: dict[str, float] = {}
        self._running: dict[str, threading.Thread] = {}

    def answers(self) -> Mapping[str, SourceAnswer]:
        """Return the newest answer of each gate's source, by gate."""
        return dict(self._answers)

    def ask(self, ledger: Ledger, gates: Iterable[str], wait_s: float = 0) -> None:
        """Ask the sources of gates. Wait up to ``wait_s`` for gates that have no answer yet."""
        wanted = [name for name in gates if self._is_due(name)]
        # The slots are few, so the sources with the oldest request come first.
        wanted.sort(key=lambda name: self._asked_s.get(name, 0))
        free = MOST_AT_ONCE - sum(thread.is_alive() for thread in self._running.values())
        for name in wanted[: max(free, 0)]:
            gate = ledger.gates.get(name)
            if gate is not None:
                self._asked_s[name] = time.monotonic()
                self._start(ledger, gate)
        deadline = time.monotonic() + wait_s
        for name in wanted:
            if name in self._running and name not in self._answers:
                self._running[name].join(max(deadline - time.monotonic(), 0))

    def _is_due(self, name: str) -> bool:
        running = name in self._running and self._running[name].is_alive()
        again_s = max(ASK_AGAIN_S, len(self._asked_s) / _PER_S)
        return not running and time.monotonic() - self._asked_s.get(name, -3600) >= again_s

    def _start(self, ledger: Ledger, gate: GateRecord) -> None:
        batches = ledger.batches.newest(gate.name, 1)
        if not batches:
            return
        ranges = ledger.batches.ranges(batches[0].batch_key)
        begun = begun_ranges(ledger, GateHistory(gate, batches, ranges=ranges))
        servers = ledger.batches.servers(batches[0].batch_key)

        def ask() -> None:
            try:
                answer = _answer(gate.source, servers, begun, with_times=self._with_times)
            except HeadraceError:
                answer = None
            if answer is not None:
                self._answers[gate.name] = answer
            else:
                # The source is unreachable: an old answer would look like a new one.
                self._answers.pop(gate.name, None)

        # A daemon thread: a broker that hangs does not delay the end of the program.
        self._running[gate.name] = threading.Thread(target=ask, name="headrace-source", daemon=True)
        self._running[gate.name].start()


def _answer(
    source: str, servers: str | None, begun: list[PlannedRange], *, with_times: bool
) -> SourceAnswer | None:
    """Ask a source about the partitions of ``begun``; return None if the source has none."""
    asked_ms = wall_clock_ms()
    connector = connector_of(source)
    options = connector.located({}, servers)
    ends = connector.ends(options, begun) if begun else {}
    if not ends:
        return None
    with closing(connector.log_of(options, [place.offsets for place in begun])) as log:
        begins = log.earliest(list(ends))
    partitions = {
        place.offsets.topic_partition: PartitionAnswer(
            place.offsets.until,
            ends[place.offsets.topic_partition],
            begins.get(place.offsets.topic_partition, 0),
        )
        for place in begun
        if place.offsets.topic_partition in ends
    }
    most = MOST_RECORDS if with_times else 0
    worst = sorted(partitions, key=lambda place: -partitions[place].lag)[:most]
    wanted = dict[_Place, int]()
    for place in worst:
        answer = partitions[place]
        if answer.lag:
            wanted[place, "next"] = max(answer.position, answer.beginning)
            if answer.beginning:
                wanted[place, "first"] = answer.beginning
    times = _times(connector, options, wanted) if wanted else {}
    return SourceAnswer(
        asked_ms,
        {
            place: PartitionAnswer(
                answer.position,
                answer.end,
                answer.beginning,
                times.get((place, "next")),
                times.get((place, "first")),
            )
            for place, answer in partitions.items()
        },
    )


def _times(
    connector: "Connector", options: Mapping[str, str], wanted: Mapping[_Place, int]
) -> dict[_Place, int]:
    from headrace.gate import read_directly  # noqa: PLC0415  (it brings pyspark)

    times = dict[_Place, int]()
    # A read accepts one range of a partition at most, so each kind of record has its own read.
    for which in ("next", "first"):
        ranges = [
            OffsetRange(partition.topic, partition.partition, at, at + 1)
            for (partition, record), at in wanted.items()
            if record == which
        ]
        for records in read_directly(connector, options, ranges, {}):
            for row in records.select(["topic", "partition", "timestamp"]).to_pylist():
                place = TopicPartition(row["topic"], row["partition"])
                times[place, which] = round(row["timestamp"].timestamp() * 1000)
    return times


def begun_ranges(ledger: Ledger, history: GateHistory) -> list[PlannedRange]:
    """For each partition of the newest batch's topics, return the begun range that ends last."""
    ranges = {planned.offsets.topic_partition: planned for planned in history.ranges}
    for topic, topic_id in {
        (planned.offsets.topic, planned.topic_id) for planned in history.ranges
    }:
        for number, until in ledger.receivers.stream_rate(
            history.gate.name, topic_id or ""
        ).begun.items():
            offsets = OffsetRange(topic, number, 0, until)
            furthest = ranges.get(offsets.topic_partition)
            if until and (furthest is None or furthest.offsets.until < until):
                ranges[offsets.topic_partition] = PlannedRange(offsets, topic_id=topic_id)
    return list(ranges.values())
