"""All gates at one moment, what has changed since another, and what they add up to.

Status, pages and metrics read it: a few statements, however many gates there are.
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
"""Number of batches of a gate that have one status, and since when the oldest (ms)."""


BUCKETS_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""The upper bounds of a batch's duration that are told apart (ms); longer ones are one bucket."""


Kind = tuple[str, str, int]
"""What batches have in common: their status, their reason, and the place in `BUCKETS_MS` of how
long they took, which is -1 for those that say nothing."""

Sums = tuple[int, ...]
"""Number of batches, their records (offsets where these were not counted), those of them that are
dead letters, repeated runs, and total duration (ms) of those in a bucket."""

Counts = dict[Kind, Sums]


@dataclass(frozen=True, slots=True)
class Revision:
    """State of all gates that is compared with the previous one, to see what has changed.

    Attributes:
        gates: Value of each gate, by name, that differs whenever something about the gate has
            changed.
        unresolved: Unresolved failures of each gate; gates with none are left out.
        elsewhere: Another one whenever a receiver or a stage of a flow has reported.
        acted: The number of the newest action of an operator; None before the first.
    """

    gates: Mapping[str, tuple[Any, ...]]
    unresolved: Mapping[str, Unresolved]
    elsewhere: tuple[Any, ...]
    acted: int | None


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Activity of a gate in one time bucket.

    Attributes:
        time_ms: When the first batch of it was planned (ms since the epoch).
        lag: The highest lag of its batches; None where none was known.
        duration_ms: Longest duration of a batch; None if none has ended.
        rate_per_s: The lowest rate that was in force; None where there was none.
        capacity_per_s: Processing rate (records/s); None if none was reported.
        checkpoint_id: The identity of their checkpoint; of several, one.
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
    """All gates of a ledger at one moment, and the history of one, at the cost of what is shown."""

    def revision(self) -> Revision:
        """Read the revision of all gates: four statements, however many gates there are."""
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
        """The last batches of the live stream of each gate, and rate samples, newest first.

        Two statements, however many gates there are; those without a batch are left out.
        """
        of = {"names": names, "skip": limit - 1}
        batches: dict[str, list[BatchRecord]] = defaultdict(list)
        samples: dict[str, list[RateSample]] = defaultdict(list)
        for row in self._database.rows(_SQL["newest_batches"], **of):
            batches[row.gate].append(batch_from(row._mapping))
        for row in self._database.rows(_SQL["newest_samples"], **of):
            samples[row.gate].append(RateSample(**row._asdict()))
        return {
            name: (tuple(found[:limit]), tuple(samples[name][:limit]))
            for name, found in batches.items()
        }

    def newest_ranges(self, names: Names) -> Mapping[str, tuple[PlannedRange, ...]]:
        """The ranges of each gate's newest batch, by topic, partition and offset."""
        found: dict[str, list[PlannedRange]] = defaultdict(list)
        for row in self._database.rows(_SQL["newest_ranges"], names=names):
            found[row.name].append(range_from(row[1:]))
        return {name: tuple(ranges) for name, ranges in found.items()}

    def unresolved(self, names: Names) -> Mapping[str, Unresolved]:
        """Count the unresolved batches and records of each gate that has some."""
        counts = defaultdict[str, Counter[str]](Counter)
        for name in ("count_unresolved", "count_letters"):
            for row in self._database.rows(_SQL[name], names=names, query_stopped=QUERY_STOPPED):
                counts[row.gate][row.status] = row.number
        return {
            name: Unresolved(
                failed=found[Status.FAILED] + found[Status.BACKFILLING],
                dead=found[Status.DEAD],
                letters=found["waiting"],
            )
            for name, found in counts.items()
        }

    def isolating(self, names: Names) -> Mapping[str, BatchRecord]:
        """The newest batch of each gate that is run in parts now, live or in a backfill.

        A batch that a crash has left so counts too, until it is taken over.
        """
        rows = self._database.rows(_SQL["in_parts"], names=names)
        found = [batch_from(row._mapping) for row in rows]
        return {each.gate: each for each in sorted(found, key=lambda it: it.created_time_ms)}

    def with_details(self, names: Names) -> set[str]:
        """Gates that have ever lost a record, or kept a dead letter."""
        return {row.name for row in self._database.rows(_SQL["with_details"], names=names)}

    def receivers(self, names: Names = None) -> tuple[ReceiverRecord, ...]:
        """The receivers of gates, by journal and lane; also receivers not seen lately."""
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
            bucket_ms: Length of a bucket (ms); 1 gives each batch a point of its own.
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
            # A sample is written when its batch has ended: the first one from then on is the
            # batch's own, or one of the same stretch.
            while place < len(buckets) and buckets[place] < row.time_ms // bucket_ms * bucket_ms:
                place += 1
            sample = sampled[buckets[place]] if place < len(buckets) else None
            durations = [row.duration_ms, None if sample is None else sample.duration_ms]
            known = [each for each in durations if each is not None]
            points.append(
                SeriesPoint(
                    time_ms=row.time_ms,
                    lag=row.lag,
                    duration_ms=max(known) if known and row.duration_ms is not None else None,
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
        """When the oldest batch of a gate since then was planned; None where there is none."""
        oldest: int | None = self._database.scalar(
            _SQL["oldest"], gate=gate_name, since_ms=since_ms
        )
        return oldest

    def open_batches(self) -> OpenBatches:
        """The batches that are not done."""
        rows = self._database.rows(_SQL["open_batches"])
        return {(row.gate, Status(row.status)): (row.number, row.oldest_ms) for row in rows}

    def waiting_letters(self) -> Mapping[str, int]:
        """Count the waiting dead letters of each gate that has some."""
        return {row.gate: row.number for row in self._database.rows(_SQL["count_letters"])}

    def counts(self, bounds: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, bool], Counts]:
        """Count each gate's batches created at a time or later: old ones (True), and others.

        ``bounds`` are the gates, each with that time, and the one before which they are old (ms).
        """
        found = defaultdict[tuple[str, bool], Counts](dict)
        for row in self._database.rows(_SQL["counts"], bounds=json.dumps(bounds)):
            found[row.gate, bool(row.is_old)] |= _counts([row[2:]])
        return found

    def partitions(self) -> Sequence[Any]:
        """The partitions that each gate's newest batch reads.

        Rows of gate, topic, partition, up to where it reads, where the log ended, and topic id.
        """
        return self._database.rows(_SQL["partitions"])

    def newest_at_ms(self, gate_name: str, checkpoint_id: str, limit: int) -> int:
        """When the offset at which a gate goes on reading was the newest, as batches saw it (ms).

        It is the time of the last batch that was planned when no more was there than has been
        planned since. Where none of the last ``limit`` batches of the checkpoint was, it is the
        time of the oldest of them: it was then or earlier.
        """
        values = {"gate": gate_name, "checkpoint_id": checkpoint_id, "limit": limit}
        row: Any = self._database.rows(_SQL["newest_at"], **values)[0]
        found_ms: int = row.oldest_ms or 0 if row.newest_ms is None else row.newest_ms
        return found_ms


def count_pruned(connection: Connection, gate_name: str, keys: Sequence[str]) -> None:
    """Keep the counts of these batches in a gate's row, before they are deleted.

    So the totals of a gate never fall, which a monitoring system would take for a restart.
    """
    values = {"gate": gate_name, "keys": keys}
    known = pruned_counts(execute(connection, _SQL["pruned_totals"], values).scalar())
    add_up(known, _counts(execute(connection, _SQL["counts_of"], values)))
    totals = json.dumps([[*kind, *sums] for kind, sums in known.items()], separators=(",", ":"))
    execute(connection, _SQL["keep_pruned_totals"], {"gate": gate_name, "totals": totals})


def pruned_counts(totals: str | None) -> Counts:
    """The counts of deleted batches, from their text."""
    return _counts(json.loads(totals or "[]"))


def add_up(counts: Counts, more: Counts) -> None:
    """Add counts to others."""
    for kind, sums in more.items():
        before = counts.get(kind, (0,) * len(sums))
        counts[kind] = tuple(one + other for one, other in zip(before, sums, strict=True))


def _counts(rows: Iterable[Any]) -> Counts:
    return {
        (status, reason, bucket): tuple(int(number or 0) for number in sums)
        for status, reason, bucket, *sums in rows
    }
