"""Metric families, with totals of batches that never decrease.

A monitoring system treats a decreased total as a restart. So `prune` adds the counts of old batches
to the gate's row before it deletes these batches. A scrape reads only batches that may have changed
since the last scrape: unfinished batches, and batches planned since then.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import prometheus_client
import prometheus_client.openmetrics.exposition as openmetrics_text
from prometheus_client.core import Metric

from headrace.gate import (
    BUCKETS_MS,
    Counts,
    GateMoment,
    Ledger,
    OpenBatches,
    Reason,
    Status,
    add_up,
    pruned_counts,
)

PREFIX: Final = "headrace_"

Labels = dict[str, str]


class Family(Metric):
    """Metric family: all samples with one name. The name of a counter family lacks ``_total``."""

    def add(self, labels: Labels, value: float) -> None:
        """Add a sample with these labels to a family of gauges or counters."""
        name = f"{self.name}_total" if self.type == "counter" else self.name
        self.add_sample(name, labels, value)

    def add_histogram(
        self, labels: Labels, bounds: Sequence[str], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram with these labels to a family of histograms.

        ``bounds`` are the upper bounds of the buckets, except for the last bucket, which has none.
        ``counts`` are the numbers of values in each bucket, and ``total`` is the sum of all values.
        """
        sums = list(accumulate(counts))
        for bound, below in zip([*bounds, "+Inf"], sums, strict=True):
            self.add_sample(f"{self.name}_bucket", labels | {"le": bound}, below)
        self.add_sample(f"{self.name}_sum", labels, total)
        self.add_sample(f"{self.name}_count", labels, sums[-1])


def gauge(name: str, text: str) -> Family:
    """Return a new family of gauges, named ``headrace_`` + ``name``, with the help ``text``."""
    return Family(PREFIX + name, text, "gauge")


def counter(name: str, text: str) -> Family:
    """Return a new family of counters, whose samples get the suffix ``_total``.

    The family's name is ``headrace_`` + ``name``, and its help text is ``text``.
    """
    return Family(PREFIX + name, text, "counter")


def histogram(name: str, text: str) -> Family:
    """Return a new family of histograms, named ``headrace_`` + ``name``, with the help ``text``."""
    return Family(PREFIX + name, text, "histogram")


@dataclass(frozen=True, slots=True)
class _Collected:
    """Metric families of one scrape, in the form of a prometheus_client registry.

    `collect` leaves out families without samples.
    """

    families: Sequence[Family]

    def collect(self) -> Iterator[Metric]:
        return (family for family in self.families if family.samples)


def render(families: Iterable[Family], *, openmetrics: bool) -> bytes:
    """Return all families that have samples as text, in OpenMetrics' or Prometheus' format."""
    write = openmetrics_text if openmetrics else prometheus_client
    text: bytes = write.generate_latest(_Collected(list(families)))
    return text


_FOREVER_MS: Final = 2**62
_BOUNDS: Final = tuple(f"{most / 1000:g}" for most in BUCKETS_MS)
_REASONS: Final = sorted(map(str, Reason), key=len, reverse=True)


@dataclass(slots=True)
class _Known:
    """Totals of a gate's batches that are kept between scrapes.

    Attributes:
        pruned_totals: Totals of the gate's deleted batches, as text from the gate's row.
        sums: Counts of the deleted batches, and of the batches planned before ``until_ms``, which
            cannot change any more.
        until_ms: All batches planned before this time are in ``sums`` (ms since the epoch).
        reported: Totals that the last scrape returned. Later scrapes return no lower totals.
    """

    pruned_totals: str | None
    sums: Counts
    until_ms: int = 0
    reported: "_GateTotals | None" = None


class Totals:
    """Counts batches, and reads only batches that may have changed since the last scrape."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def collect(
        self,
        ledger: Ledger,
        gates: Sequence[GateMoment],
        open_batches: OpenBatches,
    ) -> list[Family]:
        """Return the metric families with the totals of each gate."""
        counts = self._counts(ledger, gates, open_batches)
        families = _Families()
        for gate in gates:
            entry = self._known[gate.name]
            sums = dict(entry.sums)
            add_up(sums, counts.get(gate.name, {}))
            totals = _of_gate(sums)
            # Old batches may be deleted between the two statements that count them.
            if entry.reported is None or totals.ended >= entry.reported.ended:
                entry.reported = totals
            families.add(gate, entry.reported)
        return families.all()

    def _counts(
        self, ledger: Ledger, gates: Sequence[GateMoment], open_batches: OpenBatches
    ) -> dict[str, Counts]:
        """Count the batches that may have changed since the last scrape.

        Return the counts of the batches that may still change, by gate. Add the counts of the
        batches that cannot change any more to the sums of their gates.
        """
        oldest_open: dict[str, int] = {}
        for (name, _), (_, since_ms) in open_batches.items():
            oldest_open[name] = min(oldest_open.get(name, _FOREVER_MS), since_ms)
        bounds = []
        for gate in gates:
            entry = self._known.get(gate.name)
            if entry is None or entry.pruned_totals != gate.pruned_totals:
                reported = None if entry is None else entry.reported
                entry = _Known(gate.pruned_totals, pruned_counts(gate.pruned_totals))
                entry.reported = reported
                self._known[gate.name] = entry
            if gate.planned_ms is not None:
                cut = min(oldest_open.get(gate.name, _FOREVER_MS), gate.planned_ms)
                bounds.append((gate.name, entry.until_ms, max(cut, entry.until_ms)))
        changing: dict[str, Counts] = {}
        for (name, is_old), counts in (ledger.moments.counts(bounds) if bounds else {}).items():
            if is_old:
                add_up(self._known[name].sums, counts)
            else:
                changing[name] = counts
        for name, _, cut in bounds:
            self._known[name].until_ms = cut
        return changing


@dataclass(slots=True)
class _GateTotals:
    batches: dict[str, int] = field(
        default_factory=lambda: {str(Status.SUCCESS): 0, str(Status.DEAD): 0}
    )
    records: dict[str, int] = field(default_factory=lambda: {"processed": 0, "dead": 0})
    limited: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_MS) + 1))
    duration_ms: int = 0

    @property
    def ended(self) -> int:
        return sum(self.batches.values())


def _of_gate(sums: Counts) -> _GateTotals:
    totals = _GateTotals()
    for (status, reason, bucket), values in sums.items():
        number, records, letters, retries, duration_ms = values
        totals.retries += retries
        kind = reason_kind(reason)
        totals.limited[kind] = totals.limited.get(kind, 0) + number
        if status in totals.batches:
            totals.batches[status] += number
        if status == Status.SUCCESS:
            totals.records["processed"] += records - letters
            totals.records["dead"] += letters
        elif status == Status.DEAD:
            totals.records["dead"] += records
        if bucket >= 0:
            totals.buckets[bucket] += number
            totals.duration_ms += duration_ms
    return totals


def reason_kind(reason: str) -> str:
    """Return the kind of reason that limited a batch, as a label with few different values.

    The text after the kind, such as the author of an operator's limit, is removed. An unknown
    reason has the kind ``other``.

    >>> reason_kind("limited to 200 records/s by ops: quota, since 10:14 UTC"), reason_kind("x")
    ('limited', 'other')
    """
    return next((kind for kind in _REASONS if reason.startswith(kind)), "other")


class _Families:
    def __init__(self) -> None:
        self.batches = counter("batches", "Batches that have ended, by their final status.")
        self.limited = counter("batches_limited", "Batches, by the reason that limits their size.")
        self.records = counter("records", "Records, by outcome: processed, dead or lost.")
        self.lost = counter("lost_records", "Records that were deleted before they were read.")
        self.retries = counter(
            "retries", "Runs of batches after their first run, without successful backfills."
        )
        self.durations = histogram(
            "batch_duration_seconds", "Duration of the run in which a batch succeeded."
        )

    def add(self, gate: GateMoment, totals: "_GateTotals") -> None:
        own = {"gate": gate.name}
        for status, number in totals.batches.items():
            self.batches.add(own | {"status": status}, number)
        for reason, number in totals.limited.items():
            self.limited.add(own | {"reason": reason}, number)
        for outcome, number in totals.records.items():
            self.records.add(own | {"outcome": outcome}, number)
        self.records.add(own | {"outcome": "lost"}, gate.lost_offsets)
        self.lost.add(own, gate.lost_offsets)
        self.retries.add(own, totals.retries)
        self.durations.add_histogram(own, _BOUNDS, totals.buckets, totals.duration_ms / 1000)

    def all(self) -> list[Family]:
        return [
            self.batches, self.limited, self.records, self.lost, self.retries, self.durations
        ]  # fmt: skip
