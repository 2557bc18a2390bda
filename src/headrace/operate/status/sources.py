"""Answers of gates' sources: how much waits there, how old it is, and where each log begins.

The ledger knows a gate's lag as its newest batch found it. For a gate that plans none any more, and
for one that lags, the broker or the journal is asked, without secrets, in threads of its own.
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
    """Access to the records of a batch: its source's connector, and the stream's options."""

    connector: "Connector"
    options: dict[str, str]


def source_access(
    ledger: Ledger, gate_of: Mapping[str, str], options: Mapping[str, str]
) -> dict[str, SourceAccess]:
    """Return the access to each batch's records, by the batch's key; ``gate_of`` has its gate.

    An address among the options replaces the ledger's.
    """
    source_of = {gate.name: gate.source for gate in ledger.gates.all()}
    addresses = {
        key: (source_of[gate], ledger.batches.servers(key)) for key, gate in gate_of.items()
    }
    known = {}
    for source, servers in set(addresses.values()):
        connector = connector_of(source)
        known[source, servers] = SourceAccess(connector, connector.located(options, servers))
    return {key: known[address] for key, address in addresses.items()}


_Place = tuple[TopicPartition, str]
"""A partition, and which of its records: the next to be read, or its first."""

ASK_AGAIN_S: Final = 10.0
"""Shortest interval at which a source is asked (s); all together, no more than four in a second."""

_PER_S: Final = 4.0

WAIT_FOR_SOURCES_S: Final = 3.0
"""Time for which a caller waits for the answers (s); a later one is there at a later look."""

MOST_AT_ONCE: Final = 8
"""Sources that are asked at the same time."""

MOST_RECORDS: Final = 100
"""Partitions of a gate whose next record is read, for its time: those that lag most."""


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """One partition, as its source said.

    Attributes:
        position: Up to where the gate has begun to read.
        end: How far the log is written.
        beginning: Where the log begins.
        next_ms: The timestamp of the next record to be read; None where there is none, or not read.
        first_ms: The timestamp of the first record that is there; None where that is not read, as
            nothing was deleted yet.
    """

    position: int
    end: int
    beginning: int
    next_ms: int | None = None
    first_ms: int | None = None

    @property
    def lag(self) -> int:
        """The records that no batch has begun yet."""
        return max(self.end - max(self.position, self.beginning), 0)


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """Answer of a gate's source, and when it was asked (ms since the epoch)."""

    asked_ms: int
    partitions: Mapping[TopicPartition, PartitionAnswer] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """The records that no batch has begun yet."""
        return sum(each.lag for each in self.partitions.values())

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the oldest record to be read; None where none is, or it is unknown."""
        times = [each.next_ms for each in self.partitions.values() if each.next_ms is not None]
        return min(times, default=None)

    def retention_left_s(self) -> float | None:
        """Seconds until the log's beginning reaches what is to be read next, where it is nearest.

        A log that deletes by age deletes the record to be read next as long after its first one as
        it is younger than that one. None while nothing was deleted yet, or nothing waits; 0 where
        records were deleted before they were read.
        """
        left = []
        for each in self.partitions.values():
            if each.position < each.beginning:
                left.append(0.0)
            elif each.next_ms is not None and each.first_ms is not None:
                left.append(max(each.next_ms - each.first_ms, 0) / 1000)
        return min(left, default=None)


class Sources:
    """Asks the sources of gates, and keeps the newest answer of each.

    A source that does not answer, or wants secrets, is asked again later.

    Args:
        with_times: Whether the records are read that are next, for their times.
    """

    def __init__(self, *, with_times: bool = True) -> None:
        self._with_times = with_times
        self._answers: dict[str, SourceAnswer] = {}
        self._asked_s: dict[str, float] = {}
        self._running: dict[str, threading.Thread] = {}

    def answers(self) -> Mapping[str, SourceAnswer]:
        """The newest answers, by gate."""
        return dict(self._answers)

    def ask(self, ledger: Ledger, gates: Iterable[str], wait_s: float = 0) -> None:
        """Ask the sources of these gates, and wait so long for those that were never asked."""
        wanted = [name for name in gates if self._is_due(name)]
        # Ask first the sources that were asked the longest ago.
        wanted.sort(key=lambda name: self._asked_s.get(name, 0))
        free = MOST_AT_ONCE - sum(each.is_alive() for each in self._running.values())
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
                # It cannot be reached: an old answer would be taken for a new one.
                self._answers.pop(gate.name, None)

        # Threads that nobody waits for in the end: a broker that hangs holds up nothing.
        self._running[gate.name] = threading.Thread(target=ask, name="headrace-source", daemon=True)
        self._running[gate.name].start()


def _answer(
    source: str, servers: str | None, begun: list[PlannedRange], *, with_times: bool
) -> SourceAnswer | None:
    """Return a source's answer; None if it has nothing left of the ranges that the gate read."""
    asked_ms = wall_clock_ms()
    connector = connector_of(source)
    options = connector.located({}, servers)
    ends = connector.ends(options, begun) if begun else {}
    if not ends:
        return None
    with closing(connector.log_of(options, [each.offsets for each in begun])) as log:
        begins = log.earliest(list(ends))
    found = {
        each.offsets.topic_partition: PartitionAnswer(
            each.offsets.until,
            ends[each.offsets.topic_partition],
            begins.get(each.offsets.topic_partition, 0),
        )
        for each in begun
        if each.offsets.topic_partition in ends
    }
    most = MOST_RECORDS if with_times else 0
    worst = sorted(found, key=lambda each: -found[each].lag)[:most]
    wanted = dict[_Place, int]()
    for each in worst:
        known = found[each]
        if known.lag:
            wanted[each, "next"] = max(known.position, known.beginning)
            if known.beginning:
                wanted[each, "first"] = known.beginning
    times = _times(connector, options, wanted) if wanted else {}
    return SourceAnswer(
        asked_ms,
        {
            each: PartitionAnswer(
                known.position,
                known.end,
                known.beginning,
                times.get((each, "next")),
                times.get((each, "first")),
            )
            for each, known in found.items()
        },
    )


def _times(
    connector: "Connector", options: Mapping[str, str], wanted: Mapping[_Place, int]
) -> dict[_Place, int]:
    from headrace.gate import read_directly  # noqa: PLC0415  (it brings pyspark)

    found = dict[_Place, int]()
    # One read has one range of a partition at most.
    for which in ("next", "first"):
        ranges = [
            OffsetRange(each.topic, each.partition, at, at + 1)
            for (each, what), at in wanted.items()
            if what == which
        ]
        for records in read_directly(connector, options, ranges, {}):
            for row in records.select(["topic", "partition", "timestamp"]).to_pylist():
                place = TopicPartition(row["topic"], row["partition"])
                found[place, which] = round(row["timestamp"].timestamp() * 1000)
    return found


def begun_ranges(ledger: Ledger, history: GateHistory) -> list[PlannedRange]:
    """Up to where the gate has begun to read, in the topics of its newest batch."""
    found = {each.offsets.topic_partition: each for each in history.ranges}
    for topic, topic_id in {(each.offsets.topic, each.topic_id) for each in history.ranges}:
        for number, until in ledger.receivers.stream_rate(
            history.gate.name, topic_id or ""
        ).begun.items():
            offsets = OffsetRange(topic, number, 0, until)
            known = found.get(offsets.topic_partition)
            if until and (known is None or known.offsets.until < until):
                found[offsets.topic_partition] = PlannedRange(offsets, topic_id=topic_id)
    return list(found.values())
