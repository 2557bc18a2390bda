"""Gauges of gates: lag, rates, what a batch costs, and what waits for somebody."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from headrace.control import SourceCost
from headrace.control.sink_outage import SinkOutage
from headrace.control.size_ceiling import known_ceiling
from headrace.errors import OptionError
from headrace.ledger import Status
from headrace.ledger.metric_rows import GateNow, OpenBatches
from headrace.metrics.text import Family, gauge
from headrace.status.lags import GateLag


def lag_families(
    gates: Sequence[GateNow], lags: Mapping[str, GateLag], labels: Mapping[str, str]
) -> list[Family]:
    """How far each gate is behind."""
    families = {
        "records": gauge("lag_records", "Records that no batch has begun yet."),
        "seconds": gauge("lag_seconds", "Age of the oldest record that no batch has begun yet."),
        "age_s": gauge("lag_age_seconds", "Time since the lag was measured."),
        "drain_s": gauge("drain_seconds", "Time until nothing waits, at the pace of late."),
        "retention_left_s": gauge(
            "retention_remaining_seconds", "Time until records are deleted before they are read."
        ),
    }
    for gate in gates:
        lag = lags[gate.name]
        for name, family in families.items():
            value: float | None = getattr(lag, name)
            if value is not None:
                family.add(labels[gate.name], value)
    return list(families.values())


def rate_families(gates: Sequence[GateNow], labels: Mapping[str, str], now_ms: int) -> list[Family]:
    """The rate of each gate, and what it goes by."""
    limit = gauge("rate_limit_records_per_second", "The most that a batch is planned for.")
    capacity = gauge("capacity_records_per_second", "How fast the last batch was processed.")
    fixed = gauge("batch_fixed_cost_seconds", "What a batch costs before its first record.")
    interval = gauge("batch_interval_seconds", "The time that a batch should take.")
    ceiling = gauge("batch_ceiling_records", "The largest batch that the handler takes.")
    paused = gauge("paused", "1 while an operator has paused or drained the gate.")
    away = gauge("sink_away_seconds", "For how long its batch has waited for its sink; 0: not.")
    running = gauge("query_running", "1 while a query stands behind the gate.")
    for gate in gates:
        own = labels[gate.name]
        rates = [each for each in (gate.rate_per_s, gate.limit_per_s) if each is not None]
        if rates:
            limit.add(own, min(rates))
        if gate.capacity_per_s is not None:
            capacity.add(own, gate.capacity_per_s)
        if (cost_s := _fixed_cost_s(gate.batch_cost)) is not None:
            fixed.add(own, cost_s)
        if (most := _ceiling_records(gate.size_ceiling)) is not None:
            ceiling.add(own, most)
        interval.add(own, gate.interval_ms / 1000)
        paused.add(own, gate.held)
        outage = SinkOutage.from_text(gate.sink_outage) if gate.has_query else None
        away.add(own, max(now_ms - outage.since_ms, 0) / 1000 if outage else 0)
        running.add(own, gate.has_query)
    return [limit, capacity, fixed, ceiling, interval, paused, away, running]


@lru_cache(maxsize=10_000)
def _fixed_cost_s(batch_cost: str | None) -> float | None:
    """What is known of a batch's fixed cost; None where nothing is, or another version wrote it."""
    if batch_cost is None:
        return None
    try:
        return SourceCost.from_text(batch_cost).fixed_s
    except OptionError:
        return None


@lru_cache(maxsize=10_000)
def _ceiling_records(size_ceiling: str | None) -> int | None:
    """The most records of the next batch; None without a ceiling, or with one in bytes only."""
    known = known_ceiling(size_ceiling)
    return known.records.most if known and known.records else None


def open_families(
    gates: Sequence[GateNow],
    open_batches: Sequence[OpenBatches],
    letters: Mapping[str, int],
    labels: Mapping[str, str],
    now_ms: int,
) -> list[Family]:
    """What is not done, and what waits for somebody; of each gate, 0 where nothing does."""
    number = gauge("batches_open", "Batches and children of batches that are not done.")
    unresolved = gauge("dead_letters_unresolved", "Records put aside that wait for somebody.")
    oldest = gauge("oldest_failed_batch_seconds", "Age of the oldest batch that failed; 0: none.")
    counts = {(each.gate, each.status): each for each in open_batches}
    statuses = (Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING)
    for gate in gates:
        own = labels[gate.name]
        found = {each: counts.get((gate.name, each)) for each in statuses}
        for status, batches in found.items():
            number.add(f'{own},status="{status}"', batches.number if batches else 0)
        unresolved.add(own, letters.get(gate.name, 0))
        failed = found[Status.FAILED]
        oldest.add(own, max(now_ms - failed.oldest_ms, 0) / 1000 if failed else 0)
    return [number, unresolved, oldest]
