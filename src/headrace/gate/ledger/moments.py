"""All gates at one moment, the changes since another moment, and totals of batches.

Status, pages and metrics read these: a few statements, however many gates there are. The dashboard
reads the revision twice a second, and only the changed gates after that.
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
"""Names of gates; None for all of them."""

OpenBatches = Mapping[tuple[str, Status], tuple[int, int]]
"""Number of a gate's batches with one status, and the oldest created time (ms), by gate and
status."""


BUCKETS_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Upper bounds of the buckets of a batch's duration (ms); longer durations are one more bucket."""


Kind = tuple[str, str, int]
"""Group of batches: their status, their reason, and the index in `BUCKETS_MS` of their duration,
or -1 without a duration."""

Sums = tuple[int, ...]
"""Totals of a group of batches: batches, records (offsets if records were not counted), dead
letters, repeated runs, and duration of the batches with a bucket (ms)."""

Counts = dict[Kind, Sums]


@dataclass(frozen=True, slots=True)
class Revision:
    """State of all gates, for comparison with the previous state.

    Attributes:
        gates: Value of each gate, by name, that differs after every change of the gate.
        unresolved: Unresolved failures of each gate; gates with none are left out.
        elsewhere: Value that differs after each report of a receiver or of a flow's stage.
        acted: Number of the newest action of an operator; None before the first.
    """

    gates: Mapping[str, tuple[Any, ...]]
    unresolved: Mapping[str, Unresolved]
    elsewhere: tuple[Any, ...]
    acted: int | None


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Activity of a gate in one time bucket.

    Attributes:
        time_ms: Time of the first batch's plan (ms since the epoch).
        lag: Highest lag of the batches; None if unknown.
        duration_ms: Longest duration of a batch; None if none has ended.
        rate_per_s: Lowest rate that was in force; None if there was none.
        capacity_per_s: Processing rate (records/s); None if none was reported.
        checkpoint_id: Identity of the batches' checkpoint; of several, one.
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
    """All gates of a ledger at one moment, and the history of one gate.

    A method's cost depends on the rows that it returns, not on the length of the history.
    """

    def revision(self) -> Revision:
        """Read the revision of all gates, with four statements for any number of gates."""
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
        """Return the newest live batches and rate samples of each gate, newest first.

        This takes two statements for any number of gates. Gates without a batch are left out.
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
        """Return the ranges of each gate's newest batch, by topic, partition and offset."""
        by_gate: dict[str, list[PlannedRange]] = defaultdict(list)
        for row in self._database.rows(_SQL["newest_ranges"], names=names):
            by_gate[row.name].append(range_from(row[1:]))
        return {name: tuple(ranges) for name, ranges in by_gate.items()}

    def unresolved(self, names: Names) -> Mapping[str, Unresolved]:
        """Return the numbers of unresolved batches and records of each gate that has some."""
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
        """Return the newest batch of each gate that is now run in parts, live or in a backfill.

        A batch that a crash has interrupted counts too, until another process takes it over.
        """
        rows = self._database.rows(_SQL["in_parts"], names=names)
        batches = [batch_from(row._mapping) for row in rows]
        return {batch.gate: batch for batch in sorted(batches, key=lambda it: it.created_time_ms)}

    def with_details(self, names: Names) -> set[str]:
        """Return the gates that have ever lost a record, or kept a dead letter."""
        return {row.name for row in self._database.rows(_SQL["with_details"], names=names)}

    def receivers(self, names: Names = None) -> tuple[ReceiverRecord, ...]:
        """Return the receivers of gates, by journal and lane, even if not seen lately."""
        return receiver_records(
            self._database.rows(statements("receiver")["receivers"], names=names)
        )

    def series(
        self, gate_name: str, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[SeriesPoint, ...]:
        """Return a gate's activity between two times, oldest first; one point per used bucket.

        Args:
            gate_name: The gate.
            since_ms: Start (ms since the epoch).
            until_ms: End, excluded.
            bucket_ms: Length of a bucket (ms); 1 gives each batch its own point.
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
        """Return the created time of the oldest batch of a gate since a time, or None."""
        oldest: int | None = self._database.scalar(
            _SQL["oldest"], gate=gate_name, since_ms=since_ms
        )
        return oldest

    def open_batches(self) -> OpenBatches:
        """Return the unfinished batches, counted by gate and status."""
        rows = self._database.rows(_SQL["open_batches"])
        return {(row.gate, Status(row.status)): (row.number, row.oldest_ms) for row in rows}

    def waiting_letters(self) -> Mapping[str, int]:
        """Return the number of waiting dead letters of each gate that has some."""
        return {row.gate: row.number for row in self._database.rows(_SQL["count_letters"])}

    def counts(self, bounds: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, bool], Counts]:
        """Return the counts of each gate's batches, for old batches (True) and newer ones (False).

        ``bounds`` lists gates, each with the earliest created time to count, and the time before
        which a batch is old (ms).
        """
        by_gate = defaultdict[tuple[str, bool], Counts](dict)
        for row in self._database.rows(_SQL["counts"], bounds=json.dumps(bounds)):
            by_gate[row.gate, bool(row.is_old)] |= _counts([row[2:]])
        return by_gate

    def partitions(self) -> Sequence[Any]:
        """Return the partitions that each gate's newest batch reads.

        A row has the gate, the topic, the partition, the end of the batch's range, the log's end at
        the time of the plan, and the topic id.
        """
        return self._database.rows(_SQL["partitions"])

    def newest_at_ms(self, gate_name: str, checkpoint_id: str, limit: int) -> int:
        """Return when the offset at which a gate continues was the newest of its log (ms).

        That is the time of the last plan at which the log had no more offsets than have been
        planned since. If the last ``limit`` batches of the checkpoint have no such plan, the result
        is the time of the oldest of these batches: an upper bound.
        """
        values = {"gate": gate_name, "checkpoint_id": checkpoint_id, "limit": limit}
        row: Any = self._database.rows(_SQL["newest_at"], **values)[0]
        found_ms: int = row.oldest_ms or 0 if row.newest_ms is None else row.newest_ms
        return found_ms


def count_pruned(connection: Connection, gate_name: str, keys: Sequence[str]) -> None:
    """Add the counts of these batches to their gate's row, before the batches are deleted.

    Without this, the totals of a gate would fall, and a monitoring system would see a restart.
    """
    values = {"gate": gate_name, "keys": keys}
    totals_so_far = pruned_counts(execute(connection, _SQL["pruned_totals"], values).scalar())
    add_up(totals_so_far, _counts(execute(connection, _SQL["counts_of"], values)))
    totals = json.dumps(
        [[*kind, *sums] for kind, sums in totals_so_far.items()], separators=(",", ":")
    )
    execute(connection, _SQL["keep_pruned_totals"], {"gate": gate_name, "totals": totals})


def pruned_counts(totals: str | None) -> Counts:
    """Return the counts of deleted batches from their text."""
    return _counts(json.loads(totals or "[]"))


def add_up(counts: Counts, more: Counts) -> None:
    """Add counts to the first counts, in place."""
    for kind, sums in more.items():
        before = counts.get(kind, (0,) * len(sums))
        counts[kind] = tuple(total + added for total, added in zip(before, sums, strict=True))


def _counts(rows: Iterable[Any]) -> Counts:
    return {
        (status, reason, bucket): tuple(int(number or 0) for number in sums)
        for status, reason, bucket, *sums in rows
    }
