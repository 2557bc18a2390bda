"""Operators' requests from commands and forms: limits, retries, and drains of gates and flows."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from headrace.core.options import age_ms
from headrace.core.timing import is_in_force
from headrace.errors import OptionError
from headrace.gate import (
    BatchRecord,
    Ledger,
    OperatorActionKind,
    OperatorLimits,
    Status,
)
from headrace.operate.status.gate_actions import GateAction
from headrace.operate.status.states import query_behind
from headrace.operate.status.words import plural

OFF: Final = "off"
"""Argument ``off`` of ``headrace limit``, which ends a rate limit."""

NO_CEILING: Final = "no-ceiling"
"""Argument ``no-ceiling`` of ``headrace limit``, which lifts the ceiling of a gate's batch size."""

LONGEST_MS: Final = 3650 * 24 * 3600 * 1000
"""Longest duration of a rate limit (ms): 3650 days."""


@dataclass(frozen=True, slots=True)
class WantedLimit:
    """Request to limit a gate's rate, or to end its limit.

    Attributes:
        records_per_s: The cap (records/s over all partitions); None ends the limit.
        lasts_ms: Duration of the limit (ms); None for a limit without an end.
    """

    records_per_s: float | None
    lasts_ms: int | None = None

    @classmethod
    def parse(cls, rate: str, lasts: str | None, lasts_name: str) -> Self:
        """Parse a rate or ``off``, and a duration such as ``2h``.

        If the duration is None or empty, the limit has no end. Raise OptionError if the rate or the
        duration is invalid. The error calls the duration ``lasts_name``.
        """
        per_s = _rate_per_s(rate.strip())
        if lasts is None or not lasts.strip():
            return cls(per_s)
        if per_s is None:
            raise OptionError(
                f"{lasts_name} is the duration of a limit, and {OFF!r} ends the limit; leave"
                f" {lasts_name} out."
            )
        lasts_ms = age_ms(lasts_name, lasts)
        if not 0 < lasts_ms <= LONGEST_MS:
            raise OptionError(
                f"{lasts_name} is {lasts.strip()!r}; give more than 0, and at most 3650 days, or"
                " leave it out for a limit that holds until it is lifted."
            )
        return cls(per_s, lasts_ms)

    @property
    def action(self) -> GateAction:
        """The limit as an action on a gate."""
        return GateAction(self.put_in_force)

    def put_in_force(self, ledger: Ledger, gate: str, by: str, why: str) -> OperatorLimits:
        """Write the limit into the ledger. Return the gate's operator limits after that.

        Raise OptionError for a rate that is not a finite number above 0, and LedgerError for a gate
        that is not declared.
        """
        if self.records_per_s is None:
            return ledger.operator_limits.unlimit(gate, by, why)
        until_ms = None
        if self.lasts_ms is not None:
            until_ms = ledger.database_time_ms() + self.lasts_ms
        return ledger.operator_limits.limit(gate, self.records_per_s, by, why, until_ms)


def _rate_per_s(text: str) -> float | None:
    if text.lower() == OFF:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(
            f"The limit is {text!r}; give a number of records/s above 0, or: {OFF}."
        ) from error


MOST_READY: Final = 1_000
"""A `RetryQueue` reads at most this many failed batches, and as many batches in backfill."""


def is_queued(batch: BatchRecord) -> bool:
    """Whether a retry of a batch was requested after its last attempt ended."""
    ended_ms = batch.created_time_ms if batch.end_time_ms is None else batch.end_time_ms
    is_new = batch.retry_ms is not None and batch.retry_ms >= ended_ms
    return is_new and batch.status is Status.FAILED


@dataclass(frozen=True, slots=True)
class RetryQueue:
    """A gate's failed batches for which a retry was requested, and its batch in backfill.

    Attributes:
        gate: The gate.
        asked: Keys of the batches to retry, in the order in which they will run.
        running: Key of the batch that a backfill runs; None if no backfill runs.
        has_query: Whether the gate has a running query. Its process runs the retries.
    """

    gate: str
    asked: tuple[str, ...]
    running: str | None
    has_query: bool

    @classmethod
    def read(cls, ledger: Ledger, gate_name: str) -> Self | None:
        """Read a gate's retry queue; None for a gate that is not declared."""
        if ledger.gates.get(gate_name) is None:
            return None
        failed = ledger.batches.failed(gate_name, MOST_READY)
        query, _ = query_behind(ledger, gate_name)
        backfilling = ledger.batches.newest(gate_name, MOST_READY, statuses=[Status.BACKFILLING])
        return cls(
            gate_name,
            tuple(batch.batch_key for batch in failed if is_queued(batch)),
            _running(backfilling, ledger.database_time_ms()),
            query is not None,
        )

    def waits_for(self, key: str | None = None) -> str:
        """Return a sentence on why a batch waits, such as "waits for 2 batches before it.".

        ``key`` is the key of the batch; None means all batches of the gate.
        """
        command = f"headrace backfill {key[:8] if key else shlex.quote(self.gate)}"
        if self.running is not None:
            return f"waits while a backfill runs batch {self.running[:8]}."
        if not self.has_query:
            return f"waits for a process: no query runs behind the gate, so run `{command}`."
        before = self.asked.index(key) if key in self.asked else 0
        if before:
            return f"waits for {plural(before, 'batch')} before it."
        return "runs next, between two batches of the stream."


def _running(backfilling: Sequence[BatchRecord], now_ms: int) -> str | None:
    for batch in backfilling:
        if batch.lease_until_ms is not None and is_in_force(batch.lease_until_ms, now_ms):
            return batch.batch_key
    return None


@dataclass(frozen=True, slots=True)
class DrainState:
    """Progress of a gate's drain at one moment.

    Attributes:
        gate: The gate.
        operator_limits: The gate's operator limits in force.
        has_query: Whether the gate has a running query.
        running: Number of running batches, live and in backfills.
        failed: Number of failed batches that wait in the ledger.
        waiting: Number of records that wait in the source; None if the source was not asked.
        resumed_by: Operator who ended the drain by resuming the gate; None if nobody did.
        sink_away: Whether a batch waits for its sink, so that the gate plans no batch.
    """

    gate: str
    operator_limits: OperatorLimits
    has_query: bool
    running: int
    failed: int
    waiting: int | None = None
    resumed_by: str | None = None
    sink_away: bool = False

    @property
    def can_stop(self) -> bool:
        """Whether the query can be stopped without interrupting a batch.

        A planner that has seen the drain begins no batch, so the query can be stopped when no batch
        runs.
        """
        if not self.has_query:
            return True
        limits = self.operator_limits
        return limits.hold is not None and limits.seen and self.running == 0

    @property
    def sentence(self) -> str:
        """Progress of the drain in a sentence for the operator."""
        if not self.has_query:
            return f"{self.gate}: no query runs behind it; there is nothing to stop."
        if self.resumed_by is not None:
            return f"{self.gate}: {self.resumed_by} has resumed it, so it does not drain any more."
        if self.operator_limits.hold is None:
            first = "admits what comes first" if self.waiting is None else f"{self.waiting} wait"
            return f"{self.gate}: not draining yet; {first}."
        if not self.operator_limits.hold.seen_ms:
            return f"{self.gate}: {self._when_it_plans()}"
        if self.running:
            batches = "1 batch runs" if self.running == 1 else f"{self.running} batches run"
            return f"{self.gate}: {batches}; nothing more is admitted."
        return f"{self.gate}: drained, its query can be stopped.{self._failed_too()}"

    def _when_it_plans(self) -> str:
        if not self.sink_away:
            return "its query has not planned since; it sees this at its next plan."
        return (
            "its batch waits for its sink, and it drains when that is back; `headrace retry"
            f" {shlex.quote(self.gate)}` tries now, and a query that is stopped runs it at its next"
            " start."
        )

    def _failed_too(self) -> str:
        if not self.failed:
            return ""
        batches = "batch waits" if self.failed == 1 else "batches wait"
        command = f"headrace failures {shlex.quote(self.gate)}"
        return f" {self.failed} failed {batches} in the ledger, as `{command}` lists."


def drain_state(ledger: Ledger, gate: str, waiting: int | None = None) -> DrainState:
    """Read the progress of a gate's drain from the ledger.

    ``waiting`` is the number of records in the gate's source; None if not known.
    """
    counts = ledger.operator_limits.open_batches(gate)
    return DrainState(
        gate=gate,
        operator_limits=ledger.operator_limits.of(gate),
        has_query=ledger.gates.query(gate) is not None,
        running=counts.get(Status.IN_PROGRESS, 0) + counts.get(Status.BACKFILLING, 0),
        failed=counts.get(Status.FAILED, 0),
        waiting=waiting,
        sink_away=ledger.sink_outages.get(gate) is not None,
    )


class FlowDrain:
    """Drains the stages of a flow in order, from the first stages to the last.

    The first stages, which read the flow's sources, are drained at once. A later stage is drained
    when every stage before it can be stopped, and no record waits in its source.

    ``upstream`` maps each gate to the gates directly before it, and lists the gates in topological
    order. ``waiting`` returns the number of records in a gate's source; while it returns None (not
    known), the stage is not drained. ``drain`` starts the drain of a gate.
    """

    def __init__(
        self,
        ledger: Ledger,
        upstream: Mapping[str, Sequence[str]],
        waiting: Callable[[str], int | None],
        drain: Callable[[str], object],
    ) -> None:
        self._ledger = ledger
        self._upstream = upstream
        self._waiting = waiting
        self._drain = drain
        self._asked: set[str] = set()

    def step(self) -> Iterator[DrainState]:
        """Start the drains that can start now. Yield the progress of each stage, in order."""
        drained: set[str] = set()
        for gate, before in self._upstream.items():
            state = drain_state(self._ledger, gate)
            if gate not in self._asked and drained.issuperset(before):
                waiting = self._waiting(gate) if before and state.has_query else 0
                if waiting == 0:
                    self._drain(gate)
                    self._asked.add(gate)
                state = drain_state(self._ledger, gate, waiting)
            elif gate in self._asked and state.has_query and state.operator_limits.hold is None:
                state = replace(state, resumed_by=self._last_resumed(gate))
            if gate in self._asked and state.can_stop:
                drained.add(gate)
            yield state

    def _last_resumed(self, gate: str) -> str | None:
        """Return the operator who last resumed a gate, even if other actions followed."""
        history = self._ledger.operator_limits.history(gate)
        return next(
            (action.by for action in history if action.kind is OperatorActionKind.RESUME), None
        )
