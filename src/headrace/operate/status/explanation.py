"""Explains a batch's size: the waiting records, the rate and its origin, and every cap."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.gate import (
    BatchRecord,
    EstimatorSettings,
    GateRecord,
    LawTerms,
    Ledger,
    OperatorAction,
    OperatorActionKind,
    OperatorLimits,
    PlannedRange,
    RateSample,
    Reason,
    Shown,
    known_ceiling,
)
from headrace.operate.status import words as out
from headrace.operate.status.trends import batch_cost_of, law_of, settings_of

_LOOKED_BACK: Final = 20
"""Number of rate samples that are read at most, to find the rate that was learnt before a batch."""

_ACTIONS: Final = 1_000
"""Number of the newest actions that are read at most, to find the limits that an operator had set
for a batch."""

_MEANINGS: Final[Mapping[str, str]] = {
    Reason.RATE: "their shares of the rate",
    Reason.INITIAL_RATE: "their shares of backpressure.initialRate, as no rate was learnt yet",
    Reason.PARTITION_CAP: "maxRatePerPartition, lower than their shares of the rate",
    Reason.PARTITION_FLOOR: "minRatePerPartition, higher than their shares of the rate",
    Reason.MAX_RECORDS: "maxOffsetsPerTrigger, the cap of the whole batch in records",
    Reason.MAX_BYTES: "maxBytesPerTrigger, the cap of the whole batch in bytes",
    Reason.CEILING: "the ceiling, the largest batch that the handler takes",
    Reason.EVERYTHING: "nothing: all that was there is admitted",
    Reason.NOTHING_NEW: "nothing: nothing was there",
}

_CLAUSES: Final = (Reason.LIMITED, Reason.THROTTLED)
"""Prefixes of reasons that follow "is" in a sentence, as in "is limited to 10 records/s by ops"."""


@dataclass(frozen=True, slots=True)
class Limiting:
    """A reason that limited partitions, and the numbers of partitions and of records left over."""

    reason: str
    partitions: int
    left_over: int


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of an explanation, under a heading."""

    about: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons for a batch's size. None stands for an unknown value.

    Attributes:
        key: The batch's key, as in `headrace batches`.
        number: The batch's number in Spark; None before its first run.
        planned_ms: Time of the plan (ms since the epoch).
        records: Number of the batch's offsets.
        lag: Number of records that waited at the plan.
        reason: Reason for the size of the batch as a whole.
        rate_per_s: The rate in force at the plan (records/s), after all limits.
        law: The law in force now.
        learnt_per_s: The rate that the law had learnt before the plan.
        learnt_from: Number in Spark of the batch from which the law learnt that rate.
        proportional, integral, derivative: Contributions of the law's terms to that rate.
        fixed_ms, record_us: Cost of a batch before its first record (ms), and of a record (µs), as
            known now.
        limiting: Limits of the partitions, sorted by records left over, most first.
        throttled_by: The later stage whose throttle limited the batch.
        operator: Operator limits in force at the plan, in words.
        ceiling: The largest batch that the handler takes, as known now, in words.
    """

    gate: str
    key: str
    number: int | None
    planned_ms: int
    interval_ms: int
    records: int
    lag: int | None
    reason: str
    rate_per_s: float | None
    law: str | None
    learnt_per_s: float | None
    learnt_from: int | None
    proportional: float | None
    integral: float | None
    derivative: float | None
    fixed_ms: float | None
    record_us: float | None
    limiting: tuple[Limiting, ...]
    throttled_by: str | None
    operator: str | None
    ceiling: str | None = None
    sentences: tuple[Said, ...] = ()


def explain(ledger: Ledger, gate: GateRecord, number: int | None = None) -> Explanation | None:
    """Explain the gate's newest batch, or the newest batch whose number in Spark is ``number``.

    Return None if the gate has no such batch.
    """
    batch = ledger.batches.live(gate.name, number)
    if batch is None:
        return None
    samples = ledger.rates.history(gate.name, _LOOKED_BACK, before_ms=batch.created_time_ms)
    learnt = next((sample for sample in samples if sample.rate_per_s is not None), None)
    operator = _in_force(ledger, gate.name, batch.created_time_ms)
    ranges = ledger.batches.ranges(batch.batch_key)
    settings = settings_of(gate)
    explanation = _facts(gate, batch, ranges, learnt, operator)
    now_ms = ledger.database_time_ms()
    sentences = [
        *_sentences(explanation, settings, now_ms, learnt, operator),
        *_sink(gate, batch, now_ms),
    ]
    current = ledger.operator_limits.of(gate.name).describe()
    if current is not None and current != explanation.operator:
        sentences.append(Said("now", f"Now in force: {current}."))
    return replace(explanation, sentences=tuple(sentences))


def _facts(
    gate: GateRecord,
    batch: BatchRecord,
    ranges: Sequence[PlannedRange],
    learnt: RateSample | None,
    operator: OperatorLimits,
) -> Explanation:
    ceiling = known_ceiling(gate.size_ceiling)
    cost, throttled = batch_cost_of(gate), f"{Reason.THROTTLED} by "
    is_throttled = batch.reason.startswith(throttled)
    return Explanation(
        gate=gate.name,
        key=batch.batch_key,
        number=batch.query_batch_id,
        planned_ms=batch.created_time_ms,
        interval_ms=gate.interval_ms,
        records=batch.planned_records,
        lag=batch.lag,
        reason=batch.reason,
        rate_per_s=batch.rate_per_s,
        law=law_of(gate),
        learnt_per_s=learnt.rate_per_s if learnt else None,
        learnt_from=learnt.query_batch_id if learnt else None,
        proportional=learnt.proportional if learnt else None,
        integral=learnt.integral if learnt else None,
        derivative=learnt.derivative if learnt else None,
        fixed_ms=cost.fixed_s * 1000 if cost else None,
        record_us=cost.record_s * 1_000_000 if cost else None,
        limiting=_limiting(ranges),
        throttled_by=batch.reason.removeprefix(throttled) if is_throttled else None,
        operator=operator.describe(),
        ceiling=None if ceiling is None else ceiling.describe(),
    )


def _limiting(ranges: Sequence[PlannedRange]) -> tuple[Limiting, ...]:
    by_reason: dict[str, list[PlannedRange]] = {}
    for row in ranges:
        if row.reason is not None:
            by_reason.setdefault(row.reason, []).append(row)
    limiting = [
        Limiting(reason, len(those), sum(map(_left_over, those)))
        for reason, those in by_reason.items()
    ]
    return tuple(sorted(limiting, key=lambda row: -row.left_over))


def _left_over(planned: PlannedRange) -> int:
    return max((planned.latest or 0) - planned.offsets.until, 0)


def _in_force(ledger: Ledger, gate: str, then_ms: int) -> OperatorLimits:
    before = [
        action
        for action in ledger.operator_limits.history(gate, _ACTIONS)
        if action.time_ms <= then_ms
    ]
    holds = {OperatorActionKind.PAUSE, OperatorActionKind.DRAIN, OperatorActionKind.RESUME}
    limits = {OperatorActionKind.LIMIT, OperatorActionKind.UNLIMIT}
    hold = next((action for action in before if action.kind in holds), None)
    limit = next((action for action in before if action.kind in limits), None)
    if hold is not None and hold.kind is OperatorActionKind.RESUME:
        hold = None
    if limit is not None and (limit.kind is OperatorActionKind.UNLIMIT or _is_over(limit, then_ms)):
        limit = None
    return OperatorLimits(gate, then_ms, hold, limit)


def _is_over(limit: OperatorAction, then_ms: int) -> bool:
    return limit.until_ms is not None and limit.until_ms <= then_ms


def _sentences(
    found: Explanation,
    settings: EstimatorSettings | None,
    now_ms: int,
    learnt: RateSample | None,
    operator: OperatorLimits,
) -> Iterator[Said]:
    name = f"Batch {found.key[:8] if found.number is None else found.number}"
    when = f"planned {out.full_time(found.planned_ms, now_ms)}"
    has = f"{name} has {out.plural(found.records, 'record')}"
    is_clause = found.reason.startswith(_CLAUSES)
    yield Said("size", f"{has}, {when}; {'' if is_clause else 'limited by: '}{found.reason}.")
    yield Said("lag", _lag(found))
    yield Said("rate", _rate(found, operator))
    yield Said("law", _learnt(settings, learnt))
    if found.fixed_ms is not None and found.record_us is not None:
        yield Said("batch cost", _cost(found, settings))
    for limit in found.limiting:
        left = f", and leave {out.plural(limit.left_over, 'record')}" if limit.left_over else ""
        kind = Reason.CEILING if limit.reason.startswith(Reason.CEILING) else limit.reason
        text = limit.reason
        if not text.startswith(_CLAUSES):
            text = f"limited by {_MEANINGS.get(kind, text)}"
        if limit.partitions == 1:
            text = text.replace("their shares", "its share")
        number = out.plural(limit.partitions, "partition")
        have = "is" if limit.partitions == 1 else "are"
        left = left if limit.partitions != 1 else left.replace("leave", "leaves")
        yield Said("caps", f"{number} {have} {text}{left}.")
    if found.throttled_by is None:
        yield Said("throttle", "No stage after this gate throttled the batch.")
    else:
        stage = found.throttled_by
        yield Said("throttle", f"Stage {stage}, after this one, takes no more than that rate.")
    if found.ceiling is not None:
        yield Said("ceiling", _ceiling(found))
    in_force = f"Then in force: {found.operator}." if found.operator else "None limited the gate."
    yield Said("operators", in_force)


def _sink(gate: GateRecord, batch: BatchRecord, now_ms: int) -> Iterator[Said]:
    outage = gate.waits
    if outage is not None and outage.batch == batch.batch_key and batch.end_time_ms is None:
        since = out.full_time(outage.since_ms, now_ms)
        away = f"{outage.awaited[0].upper()}{outage.awaited[1:]} is away"
        reason = away if outage.is_certain else "No part of it passes"
        why = out.reason_first(outage.error)
        yield Said("sink", f"{reason} since {since}, so nothing more is admitted: {why}.")


def _ceiling(found: Explanation) -> str:
    was_it = found.reason.startswith(Reason.CEILING)
    effect = "It made this batch as small as it is" if was_it else "It did not limit this batch"
    return (
        f"As known now, {found.ceiling}: the handler takes no larger batch. {effect}. Batches grow"
        f" by 5 % until one fails; `headrace limit no-ceiling {shlex.quote(found.gate)}` lifts it."
    )


def _lag(found: Explanation) -> str:
    if found.lag is None:
        return "How much waited is not known, as it was planned before a restart."
    left = max(found.lag - found.records, 0)
    rest = f"{out.count(left)} are left" if left else "none is left"
    return f"{out.plural(found.lag, 'record')} waited, of which {rest}."


def _rate(found: Explanation, operator: OperatorLimits) -> str:
    rate = found.rate_per_s
    if rate is None:
        return "No rate was in force: the gate's own is off, or all that was there fitted."
    interval_s = found.interval_ms / 1000
    at_most = out.plural(round(rate * interval_s), "record")
    limit = operator.limit
    limit_per_s = None if limit is None or limit.records_per_s is None else limit.records_per_s
    if found.throttled_by is not None:
        whose = f"what stage {found.throttled_by} takes"
    elif limit_per_s is not None and max(int(limit_per_s), 1) == rate:
        whose = "the operator's limit"
    elif found.learnt_per_s is not None and max(int(found.learnt_per_s), 1) == rate:
        whose = "the rate that was learnt"
    elif found.learnt_per_s is None:
        whose = "backpressure.initialRate, as none was learnt yet"
    else:
        whose = "lower than what was learnt"
    interval = out.duration(found.interval_ms)
    return f"{out.count(rate)}/s, {whose}: {at_most} in an interval of {interval}."


def _learnt(settings: EstimatorSettings | None, sample: RateSample | None) -> str:
    if sample is None or sample.rate_per_s is None:
        law = settings.name if settings else "of another version"
        return f"The law, {law}, had learnt no rate yet."
    source = "a batch" if sample.query_batch_id is None else f"batch {sample.query_batch_id}"
    took = out.duration(sample.processing_delay_ms)
    speed = out.count(sample.processing_rate_per_s)
    text = (
        f"{settings.name if settings else 'The law'} learnt {out.count(sample.rate_per_s)}/s from"
        f" {source}, which"
        f" processed {out.plural(sample.records, 'record')} in {took} ({speed}/s)"
    )
    if settings is not None:
        terms = LawTerms(sample.proportional, sample.integral, sample.derivative)
        shown = settings.shown(sample.rate_per_s, terms)
        text += "; " * bool(shown) + ", ".join(map(_shown, shown))
    return f"{text}."


def _shown(ground: Shown) -> str:
    if ground.is_change:
        return f"{ground.name} {out.signed(ground.per_s)}"
    return f"{out.count(ground.per_s)}/s {ground.name}"


def _cost(found: Explanation, settings: EstimatorSettings | None) -> str:
    fixed_ms, record_us = found.fixed_ms or 0, found.record_us or 0
    text = (
        f"As known now, a batch costs a = {out.duration(fixed_ms)} before its first record, and"
        f" b = {out.fine_duration(record_us / 1000)} a record"
    )
    if settings is None or not settings.fills_interval or record_us <= 0:
        return f"{text}."
    most = max(found.interval_ms - fixed_ms, 0) * 1000 / record_us
    text += f": without a margin for noise, {out.count(most)} records fill the interval."
    # With an interval of 3 a, a job carries 2 / 3 b. Twice the executors halve b at best, so the
    # present interval i then carries 2 (1 - a / i) / b: not more, if a is 2 i / 3 or longer.
    if fixed_ms < found.interval_ms * 2 / 3:
        return text
    longer = out.duration(3 * fixed_ms)
    return (
        f"{text} Executors do not shorten a: an interval of {longer} carries at least as much as"
        " twice their number would."
    )
