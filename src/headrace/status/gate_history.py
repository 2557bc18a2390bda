"""The ledger's records of one gate, from which a snapshot is worked out."""

from dataclasses import dataclass, field
from typing import Final, Self

from headrace.control import OperatorAction, OperatorLimits
from headrace.ledger import (
    BatchRecord,
    GateQuery,
    GateRecord,
    IsolationProgress,
    Kind,
    Ledger,
    Loss,
    Missed,
    PlannedRange,
    QueryEnd,
    RateSample,
    ReceiverRecord,
    Status,
    Unresolved,
)

HISTORY: Final = 60
"""Batches that are looked back on."""

SILENCE: Final = 3
"""Intervals after which a gate without a new batch is no longer between two of them."""

SHORTEST_SILENCE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class GateHistory:
    """The ledger's records of one gate's live stream; batches and samples are newest first."""

    gate: GateRecord
    batches: tuple[BatchRecord, ...] = ()
    samples: tuple[RateSample, ...] = ()
    ranges: tuple[PlannedRange, ...] = ()
    """Ranges of the newest batch."""
    losses: tuple[Loss, ...] = ()
    missed: Missed = field(default_factory=Missed)
    unresolved: Unresolved = field(default_factory=Unresolved)
    receivers: tuple[ReceiverRecord, ...] = ()
    query: GateQuery | None = None
    """The query that runs behind it."""
    gone: GateQuery | None = None
    """One that stood behind it and ended without a finish."""
    isolating: IsolationProgress | None = None
    operator_limits: OperatorLimits | None = None
    failed_error: str | None = None
    """Why the newest batch, or child of one, failed that waits for a backfill."""

    def ended_by(self, how: QueryEnd) -> str | None:
        """What is known of the query's end, if it ended so and no other runs: an error, or who."""
        if self.query is not None:
            return None
        if self.gate.ended is None and self.stop is not None:  # nobody was left to say so
            return self.stop.author if how is QueryEnd.STOPPED else None
        return self.gate.ended_error if self.gate.ended == how else None

    @property
    def ended_ms(self) -> int | None:
        """When the last query ended, or was asked to; None while one runs, or if nobody knows."""
        asked_ms = None if self.stop is None else self.stop.time_ms
        return None if self.query is not None else self.gate.ended_ms or asked_ms

    @property
    def stop(self) -> OperatorAction | None:
        """An operator's stop of the query that has the gate, or had it last."""
        return None if self.operator_limits is None else self.operator_limits.stop

    @classmethod
    def read(cls, ledger: Ledger, gate: GateRecord) -> Self:
        """Read what a snapshot needs from the ledger."""
        batches = ledger.batches.newest(gate.name, HISTORY, kind=Kind.LIVE, children=False)
        query, gone = query_behind(ledger, gate.name)
        unresolved = ledger.batches.count_unresolved(gate.name)
        error = _failed_error(ledger, gate.name) if unresolved.failed else None
        return cls(
            gate=gate,
            batches=batches,
            samples=ledger.rates.history(gate.name, HISTORY),
            ranges=ledger.batches.ranges(batches[0].batch_key) if batches else (),
            losses=ledger.history.losses(gate.name),
            missed=ledger.missed.of(gate.name),
            unresolved=unresolved,
            receivers=ledger.receivers.of_gate(gate.name),
            query=query,
            gone=gone,
            isolating=ledger.batches.isolating(gate.name),
            operator_limits=ledger.operator_limits.of(gate.name),
            failed_error=error,
        )

    def is_silent(self, now_ms: int) -> bool:
        """Whether it has had batches, and none was planned for a while."""
        if not self.batches:
            return False
        return now_ms - self.batches[0].created_time_ms > silence_ms(self.gate.interval_ms)


def _failed_error(ledger: Ledger, gate: str) -> str | None:
    failed = ledger.batches.newest(gate, HISTORY, statuses=[Status.FAILED])
    error = next((each.error for each in failed if not each.interrupted), None)
    return None if error is None else error.line


def query_behind(ledger: Ledger, gate: str) -> tuple[GateQuery | None, GateQuery | None]:
    """The query that runs behind a gate, and one that ended without a finish; at most one is."""
    return sorted_query(ledger.gates.last_queries(gate).get(gate))


def sorted_query(found: tuple[GateQuery, bool] | None) -> tuple[GateQuery | None, GateQuery | None]:
    """The same of a query that is known, and of which it is known whether its lease is in force."""
    if found is None:
        return None, None
    query, lives = found
    return (query, None) if lives and not query.has_ended else (None, query)


def silence_ms(interval_ms: int) -> int:
    """After how long without a batch (ms) a gate is no longer between two of them."""
    return max(SILENCE * interval_ms, SHORTEST_SILENCE_MS)
