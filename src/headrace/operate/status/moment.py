"""Snapshots of all gates at one moment, from one read of the ledger and their sources' answers.

Commands, pages and `Gate.status()` read all gates with some 15 SQL statements, regardless of the
number of gates. Gates with failures need a few more statements. ``tests/gate/ledger/test_scale.py``
checks that the cost does not grow with the history.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.core.timing import wall_clock_ms
from headrace.gate import (
    LOOKED_AT,
    BatchRecord,
    GateRecord,
    Ledger,
    Missed,
    ReceiverRecord,
    Status,
    Unresolved,
)
from headrace.operate.status.lags import GateLag, LagWatch
from headrace.operate.status.needs import gate_needs
from headrace.operate.status.snapshot import GateSnapshot, Moment, without_needs
from headrace.operate.status.sources import WAIT_FOR_SOURCES_S
from headrace.operate.status.states import HISTORY, GateHistory, sorted_query
from headrace.operate.status.words import short_error

OVERVIEW: Final = 12
"""Default number of newest batches per gate when several gates are read."""

_MANY: Final = 500
"""For more than this many gates, the rows of all gates are read, because a filter by name would
cost more."""


def read_histories(
    ledger: Ledger, gates: Sequence[GateRecord], limit: int | None = None
) -> list[GateHistory]:
    """Read the histories of gates from the ledger, in the order of ``gates``.

    ``limit`` is the number of newest batches of each gate. Default: `HISTORY` for one gate,
    `OVERVIEW` for several gates.
    """
    own = [record.name for record in gates]
    names: Collection[str] | None = own if len(own) <= _MANY else None
    limit = limit or (HISTORY if len(own) == 1 else OVERVIEW)
    newest = ledger.moments.newest_batches(names, limit)
    ranges = ledger.moments.newest_ranges(names)
    unresolved = ledger.moments.unresolved(names)
    missed = ledger.proofs.all_missed(own[0] if len(own) == 1 else None)
    queries = ledger.gates.last_queries(names)
    isolating = ledger.moments.isolating(names)
    limits = ledger.operator_limits.all(names)
    checkpoints = ledger.operator_limits.new_checkpoints(names)
    receivers = by_gate(ledger.moments.receivers(names))
    detailed = ledger.moments.with_details(names)
    histories = []
    for gate in gates:
        name = gate.name
        batches, samples = newest.get(name, ((), ()))
        query, gone = sorted_query(queries.get(name))
        counts, has_details = unresolved.get(name, Unresolved()), name in detailed
        may_be_unfit = counts.letters or (samples and not samples[0].records)
        since_ms = batches[-1].created_time_ms if batches else 0
        history = GateHistory(
            gate=gate,
            batches=batches,
            samples=samples,
            look_back=limit,
            ranges=ranges.get(name, ()),
            losses=ledger.history.losses(name) if has_details else (),
            missed=missed.get(name, Missed()),
            unresolved=counts,
            receivers=receivers.get(name, ()),
            query=query,
            gone=gone,
            isolating=isolating.get(name),
            isolated=ledger.batches.isolated(name, since_ms) if has_details else {},
            fit_counts=ledger.dead_letters.fit_counts(name, LOOKED_AT) if may_be_unfit else (),
            operator_limits=limits.get(name),
            new_checkpoint=checkpoints.get(name),
            failed_error=_older_error(ledger, name, batches) if counts.failed else None,
        )
        histories.append(history)
    return _with_their_query(ledger, histories)


def _with_their_query(ledger: Ledger, histories: list[GateHistory]) -> list[GateHistory]:
    """Return the histories, with `waits_with` set if a gate waits for the sink of another gate."""
    drivers = {history.gate.name: _driver_without_handler(history) for history in histories}
    if not any(drivers.values()):
        return histories
    away = [history.name for history in ledger.gates.all() if history.waits is not None]
    waiting = {
        query.driver: name
        for name, (query, is_alive) in sorted(ledger.gates.last_queries(away).items())
        if is_alive and query.checkpoint is not None
    }
    return [
        replace(history, waits_with=waiting.get(driver))
        if (driver := drivers[history.gate.name]) is not None
        else history
        for history in histories
    ]


def _driver_without_handler(history: GateHistory) -> str | None:
    """Return the driver of a gate's query if its newest batch waits for another gate's handler.

    Return None if the batch does not wait. If a query has several gates, its handler belongs to one
    gate, and only the row of this gate has the query's checkpoint.
    """
    query, newest = history.query, next(iter(history.batches), None)
    if query is None or query.checkpoint is not None or newest is None:
        return None
    is_waiting = newest.end_time_ms is None and newest.query_batch_id is None
    return query.driver if is_waiting else None


def by_gate(receivers: Iterable[ReceiverRecord]) -> Mapping[str, tuple[ReceiverRecord, ...]]:
    """Group receivers by their gate, without changing their order."""
    grouped: dict[str, list[ReceiverRecord]] = defaultdict(list)
    for receiver in receivers:
        grouped[receiver.gate].append(receiver)
    return {name: tuple(own) for name, own in grouped.items()}


def _older_error(ledger: Ledger, gate: str, batches: Sequence[BatchRecord]) -> str | None:
    """Return the error of the newest failed batch; None if ``batches`` has a failed batch."""
    if any(batch.status is Status.FAILED and not batch.interrupted for batch in batches):
        return None
    failed = ledger.batches.newest(gate, HISTORY, statuses=[Status.FAILED])
    error = next((batch.error for batch in failed if not batch.interrupted), None)
    return None if error is None else short_error(error)


def snapshots(
    ledger: Ledger,
    gates: Sequence[GateRecord],
    lags: LagWatch | None = None,
    wait_s: float = WAIT_FOR_SOURCES_S,
) -> list[GateSnapshot]:
    """Read gates from the ledger and return their snapshots, in the order of ``gates``.

    Args:
        ledger: The ledger.
        gates: The gates.
        lags: Computes the lags of the gates. Default: from the ledger alone.
        wait_s: Longest time to wait for sources that were not asked before (s). Default: 3.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    return snapshots_of(ledger, read_histories(ledger, gates), lags, wait_s)


def snapshots_of(
    ledger: Ledger,
    histories: Sequence[GateHistory],
    lags: LagWatch | None = None,
    wait_s: float = WAIT_FOR_SOURCES_S,
) -> list[GateSnapshot]:
    """Return the snapshots of gates from their histories, which `read_histories` has read."""
    now_ms, names = wall_clock_ms(), {history.gate.name for history in histories}
    only = next(iter(names)) if len(names) == 1 else None
    moments = [gate for gate in ledger.gates.all_now(only) if gate.name in names]
    lag_of = (lags or LagWatch()).of(ledger, moments, now_ms, wait_s=wait_s)
    return [take_snapshot(history, now_ms, lag_of.get(history.gate.name)) for history in histories]


def take_snapshot(history: GateHistory, now_ms: int, lag: GateLag | None = None) -> GateSnapshot:
    """Compute a gate's snapshot, with its needs, from its history and its lag."""
    snapshot = without_needs(Moment.of(history, now_ms, lag or GateLag()))
    return replace(snapshot, needs=tuple(gate_needs(snapshot)))
