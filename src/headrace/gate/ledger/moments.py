"""Snapshots of all gates, the comparison of two snapshots, and totals of batches.

Status command, web pages and metrics use these queries: a fixed number of statements for any number
of gates. The dashboard reads the revision twice a second, and then only the gates that have
changed.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import QUERY_STOPPED
from headrace.gate.ledger.receivers import ReceiverRecord, receiver_records
from headrace.gate.ledger.records import (
    BatchRecord,
    PlannedRange,
    RateSample,
    Unresolved,
    batch_from,
    range_from,
)
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.transitions import Status

_SQL: Final = statements("moment")

Names = Collection[str] | None
"""Names of gates; None for all gates."""

OpenBatches = Mapping[tuple[str, Status], tuple[int, int]]
"""For each gate and status: the number of batches, and the time at which the oldest was planned
(ms)."""


BUCKETS_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Upper bounds (ms) of the buckets of batch durations. Longer durations are in one more bucket."""


Kind = tuple[str, str, int]
"""Key of a group of batches: status, reason, and the index of their duration's bucket in
`BUCKETS_MS` (-1 without a duration)."""

Sums = tuple[int, ...]
"""Totals of a group of batches: number of batches, records (or planned offsets if records were not
counted), dead letters, repeated attempts, and total duration (ms)."""

Counts = dict[Kind, Sums]


@dataclass(frozen=True, slots=True)
class Revision:
    """Values that change whenever a gate changes, for a comparison with an earlier revision.

    Attributes:
        gates: For each gate, a tuple that differs after every change of the gate.
        unresolved: Unresolved failures by gate; a gate without failures has no entry.
        elsewhere: Tuple that differs after each report of a receiver or of a flow's stage.
        acted: Id of the newest action of an operator; None before the first action.
    """

    gates: Mapping[str, tuple[Any, ...]]
    unresolved: Mapping[str, Unresolved]
    elsewhere: tuple[Any, ...]
    acted: int | None


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Activity of a gate in one period: totals and extremes of the batches planned in it.

    Attributes:
        time_ms: Time at which the period's first batch was planned (ms since the epoch).
        lag: Highest lag of the period's batches; None if unknown.
        duration_ms: Longest duration of a batch of the period (ms); None if no batch has ended.
        rate_per_s: Lowest rate that was in force in the period (records/s); None if there was none.
        capacity_per_s: Average processing rate (records/s); None if no rate was reported.
        checkpoint_id: Id of the batches' checkpoint; if there are several checkpoints, the smallest
            id.
    """

    time_ms: int
    lag: int | None
    duration_ms: int | None
    records: int
    rate_per_s: float | None
    capacity_per_s: float | None
    failed: int
    checkpoint_id: str
    batches: int


class MomentStore(Store):
    """Queries on all gates at one moment, and on the history of one gate.

    The cost of a method depends on the number of returned rows, not on the length of the history.
    """

    def revision(self) -> Revision:
        """Return the revision of all gates, from four statements for any number of gates."""
        rows = self._database.rows(_SQL["revision"])
        elsewhere = tuple(self._database.rows(_SQL["elsewhere"])[0])
        return Revision(
            gates={row.name: tuple(row) for row in rows},
            unresolved=self.unresolved(None),
            elsewhere=elsewhere[:2],
            acted=elsewhere[2],
        )

    def newest_batches(
        self, names: Names, limit: int
    ) -> Mapping[str, tuple[tuple[BatchRecord, ...], tuple[RateSample, ...]]]:
        """Return the newest batches and rate samples of each gate, newest first.

        The result has at most ``limit`` batches and ``limit`` rate samples for each gate, read with
        two statements for all gates together. A gate without a batch has no entry.
        """
        of = {"names": names, "skip": limit - 1}
        batches: dict[str, list[BatchRecord]] = defaultdict(list)
        samples: dict[str, list[RateSample]] = defaultdict(list)
        for row in self._database.rows(_SQL["newest_batches"], **of):
            batches[row.gate].append(batch_from(row._mapping))
        for row in self._database.rows(_SQL["newest_samples"], **of):
            samples[row.gate].append(RateSample(**row._asdict()))
        return {
            name: (tuple(records[:limit]), tuple(samples[name][:limit]))
            for name, records in batches.items()
        }

    def newest_ranges(self, names: Names) -> Mapping[str, tuple[PlannedRange, ...]]:
        """Return the ranges of each gate's newest batch, sorted by topic, partition and offset."""
        by_gate: dict[str, list[PlannedRange]] = defaultdict(list)
        for row in self._database.rows(_SQL["newest_ranges"], names=names):
            by_gate[row.name].append(range_from(row[1:]))
        return {name: tuple(ranges) for name, ranges in by_gate.items()}

    def unresolved(self, names: Names) -> Mapping[str, Unresolved]:
        """Return the numbers of failures that need attention, by gate.

        A gate without such failures has no entry.
        """
        counts = defaultdict[str, Counter[str]](Counter)
        for name in ("count_unresolved", "count_letters"):
            for row in self._database.rows(_SQL[name], names=names, query_stopped=QUERY_STOPPED):
                counts[row.gate][row.status] = row.number
        return {
            name: Unresolved(
                failed=numbers[Status.FAILED] + numbers[Status.BACKFILLING],
                dead=numbers[Status.DEAD],
                letters=numbers["waiting"],
            )
            for name, numbers in counts.items()
        }

    def isolating(self, names: Names) -> Mapping[str, BatchRecord]:
        """Return, by gate, the newest batch that is running in parts.

        Batches of the live stream and of backfills count. A batch interrupted by a crash also
        counts until its status changes.
        """
        rows = self._database.rows(_SQL["in_parts"], names=names)
        batches = [batch_from(row._mapping) for row in rows]
        return {batch.gate: batch for batch in sorted(batches, key=lambda it: it.created_time_ms)}

    def with_details(self, names: Names) -> set[str]:
        """Return the names of the gates that have a loss or a dead letter."""
        return {row.name for row in self._database.rows(_SQL["with_details"], names=names)}

    def receivers(self, names: Names = None) -> tuple[ReceiverRecord, ...]:
        """Return the receivers of gates, by journal and lane, including inactive receivers."""
        return receiver_records(
            self._database.rows(statements("receiver")["receivers"], names=names)
        )

    def series(
        self, gate_name: str, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[SeriesPoint, ...]:
        """Return a gate's activity between two times, with one point per period that has batches.

        Args:
            gate_name: Name of the gate.
            since_ms: Start time (ms since the epoch).
            until_ms: End time, excluded (ms since the epoch).
            bucket_ms: Length of a period (ms); 1 gives each batch its own point.
        """
        values = {
            "gate": gate_name,
            "since_ms": since_ms,
            "until_ms": until_ms,
            "bucket_ms": bucket_ms,
        }
        sampled = {
            row.time_ms // bucket_ms * bucket_ms: row
            for row in self._database.rows(_SQL["series_of_samples"], **values)
        }
        points = []
        buckets = sorted(sampled)
        place = 0
        for row in self._database.rows(_SQL["series"], **values):
            # A sample is written at its batch's end: the first sample at or after the batch's time
            # is the batch's own, or a sample of the same bucket.
            while place < len(buckets) and buckets[place] < row.time_ms // bucket_ms * bucket_ms:
                place += 1
            sample = sampled[buckets[place]] if place < len(buckets) else None
            durations = [row.duration_ms, None if sample is None else sample.duration_ms]
            measured = [duration for duration in durations if duration is not None]
            points.append(
                SeriesPoint(
                    time_ms=row.time_ms,
                    lag=row.lag,
                    duration_ms=max(measured) if measured and row.duration_ms is not None else None,
                    records=int(row.records),
                    rate_per_s=row.rate_per_s,
                    capacity_per_s=None if sample is None else sample.capacity_per_s,
                    failed=int(row.failed),
                    checkpoint_id=row.checkpoint_id,
                    batches=row.batches,
                )
            )
        return tuple(points)

    def oldest_ms(self, gate_name: str, since_ms: int = 0) -> int | None:
        """Return when a gate's oldest batch since ``since_ms`` was created (ms), or None."""
        oldest: int | None = self._database.scalar(
            _SQL["oldest"], gate=gate_name, since_ms=since_ms
        )
        return oldest

    def open_batches(self) -> OpenBatches:
        """Return the count and oldest created time of unfinished batches, by gate and status."""
        rows = self._database.rows(_SQL["open_batches"])
        return {(row.gate, Status(row.status)): (row.number, row.oldest_ms) for row in rows}

    def waiting_letters(self) -> Mapping[str, int]:
        """Return the number of waiting dead letters by gate; other gates have no entry."""
        return {row.gate: row.number for row in self._database.rows(_SQL["count_letters"])}

    def counts(self, bounds: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, bool], Counts]:
        """Return the totals of batches, by gate and by age: True for old batches, False for new.

        ``bounds`` has a tuple for each gate: its name, the earliest created time that counts, and
        the time before which a batch is old (ms).
        """
        by_gate = defaultdict[tuple[str, bool], Counts](dict)
        for row in self._database.rows(_SQL["counts"], bounds=json.dumps(bounds)):
            by_gate[row.gate, bool(row.is_old)] |= _counts([row[2:]])
        return by_gate

    def partitions(self) -> Sequence[Any]:
        """Return one row for each partition that a gate's newest batch reads.

        The columns are the gate, the topic, the partition, the end of the batch's range, the end
        of the log when the batch was planned, and the topic id.
        """
        return self._database.rows(_SQL["partitions"])

    def newest_at_ms(self, gate_name: str, checkpoint_id: str, limit: int) -> int:
        """Return the time (ms) at which the log ended at the offset that a gate reads next.

        A batch's lag is the number of unread offsets when the batch was planned. If the batch and
        all later batches have planned at least this number of offsets, the gate has reached the end
        that the log had at that time. The result is the time of the newest batch for which this is
        true. If it is true for none of the checkpoint's newest ``limit`` batches, the result is the
        time of the oldest of them, as an upper bound.
        """
        values = {"gate": gate_name, "checkpoint_id": checkpoint_id, "limit": limit}
        row: Any = self._database.rows(_SQL["newest_at"], **values)[0]
        found_ms: int = row.oldest_ms or 0 if row.newest_ms is None else row.newest_ms
        return found_ms


def count_pruned(connection: Connection, gate_name: str, keys: Sequence[str]) -> None:
    """Add the totals of batches to their gate's row, before the batches are deleted.

    Without this, the totals of a gate would fall after a deletion, and a monitoring system would
    see a counter reset.
    """
    values = {"gate": gate_name, "keys": keys}
    totals_so_far = pruned_counts(execute(connection, _SQL["pruned_totals"], values).scalar())
    add_up(totals_so_far, _counts(execute(connection, _SQL["counts_of"], values)))
    totals = json.dumps(
        [[*kind, *sums] for kind, sums in totals_so_far.items()], separators=(",", ":")
    )
    execute(connection, _SQL["keep_pruned_totals"], {"gate": gate_name, "totals": totals})


def pruned_counts(totals: str | None) -> Counts:
    """Parse the stored text with the totals of deleted batches; None means no totals."""
    return _counts(json.loads(totals or "[]"))


def add_up(counts: Counts, more: Counts) -> None:
    """Add the totals ``more`` to the totals ``counts``, in place."""
    for kind, sums in more.items():
        before = counts.get(kind, (0,) * len(sums))
        counts[kind] = tuple(total + added for total, added in zip(before, sums, strict=True))


def _counts(rows: Iterable[Any]) -> Counts:
    return {
        (status, reason, bucket): tuple(int(number or 0) for number in sums)
        for status, reason, bucket, *sums in rows
    }
