"""Sentences for the snapshot of a gate, its state and its needs, and for findings of a proof."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from headrace.gate import Finding, FindingKind
from headrace.operate.status import words as out
from headrace.operate.status.parts import BatchSnapshot, IsolationProgress
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.trends import Trend


def headline(snapshot: GateSnapshot) -> str:
    """Return the first thing that somebody who is woken at night wants to know."""
    newest = snapshot.newest
    ended_ms = newest.planned_ms + newest.duration_ms if newest else None
    if snapshot.lag_now is None:
        waiting = f"{out.plural(snapshot.left_over or 0, 'record')} left waiting"
        nothing_new = "nothing new, or the query has stopped"
    else:
        waiting = f"{out.plural(snapshot.lag_now, 'record')} waiting now"
        nothing_new = "nothing waits"
    return snapshot.state.headline.format(
        waiting=waiting,
        nothing_new=nothing_new,
        to_go=_to_go(snapshot),
        growth=out.count(snapshot.lag_change_per_s),
        silence=since(snapshot, ended_ms),
        running=out.duration(newest.duration_ms if newest else None),
        error=snapshot.error or "the last batch",
        operator_limits=_sentence(snapshot.operator_limits or "paused"),
        ended=_ended(snapshot),
        said_end=_moment(snapshot, snapshot.ended_ms),
        why_ended=_why_ended(snapshot),
        all_records=_all_records(snapshot),
        by_now=f" then; {waiting}" if snapshot.lag_now else "",
        left=waiting if records_waiting(snapshot) else _none_left(snapshot),
        batch=batch_name(newest),
        interval=out.duration(snapshot.interval_ms),
        waits_in=_waits_in(snapshot),
        isolating=isolated(snapshot.isolating, batch_name(newest)),
        for_what=_for_what(snapshot),
        away=_away(snapshot),
        waiting_for_it=_waiting_for_it(snapshot),
    )


def _none_left(snapshot: GateSnapshot) -> str:
    if snapshot.lag is not None:
        return "nothing left waiting"
    before = since(snapshot, snapshot.newest.planned_ms if snapshot.newest else None)
    known = "" if snapshot.left_over is None else f"; nothing did {before} ago"
    return f"what waits now is not known{known}"


def _waits_in(snapshot: GateSnapshot) -> str:
    if snapshot.waits_with is not None:
        return f"its query waits for the sink of gate {snapshot.waits_with!r}"
    if snapshot.newest is not None and snapshot.newest.id is None:
        return "Spark has not called its handler yet"
    return "its handler has not returned, and Spark's page shows whether it reads or writes"


def batch_name(batch: "BatchSnapshot | None") -> str:
    """A batch in a sentence: by its number in Spark, else by its key."""
    if batch is None:
        return "no batch"
    return f"batch {batch.key[:8]}" if batch.id is None else f"batch {batch.id}"


def isolated(found: IsolationProgress | None, batch: str) -> str:
    """Return the progress of a batch's isolation."""
    if found is None:
        return batch
    left = f"{out.count(found.left)} of {out.plural(found.records, 'record')} left"
    return f"{batch}: {out.plural(found.runs, 'run')}, {left}"


def _for_what(snapshot: GateSnapshot) -> str:
    outage = snapshot.waiting
    if outage is None or not outage.is_certain:
        return "with a batch of which no part passes"
    return f"for {outage.awaited}"


def _away(snapshot: GateSnapshot) -> str:
    outage = snapshot.waiting
    if outage is None:
        return out.UNKNOWN
    next_ms = outage.next_ms - snapshot.time_ms
    then = f"next in {out.duration(next_ms)}" if next_ms > 0 else "and now again"
    began = f"{out.short_time(outage.since_ms)} ({since(snapshot, outage.since_ms)})"
    tried = f"tried {out.plural(outage.runs, 'time')}, {then}"
    return f"{began}: {out.reason_first(outage.error)}; {tried}"


def _waiting_for_it(snapshot: GateSnapshot) -> str:
    records = records_in_all(snapshot)
    waits = "waits" if records == 1 else "wait"
    old = snapshot.lag_seconds
    oldest = f", the oldest for {out.duration(old * 1000)}" if old and records > 1 else ""
    return f"{out.plural(records, 'record')} {waits}{oldest}"


def records_in_all(snapshot: GateSnapshot) -> int:
    """Return the records that wait for a sink that is away, with those of the tried batch."""
    return (snapshot.newest.records if snapshot.newest else 0) + records_waiting(snapshot)


def records_waiting(snapshot: GateSnapshot) -> int:
    """The records that no batch has begun, as its headline says."""
    return (snapshot.left_over if snapshot.lag_now is None else snapshot.lag_now) or 0


def _why_ended(snapshot: GateSnapshot) -> str:
    if snapshot.stopped_by is not None:
        return f" by {snapshot.stopped_by}"
    return f" by an error: {snapshot.ended_error.rstrip('.')}" if snapshot.ended_error else ""


def _ended(snapshot: GateSnapshot) -> str:
    return _moment(snapshot, snapshot.query.ended_ms if snapshot.query is not None else None)


def _moment(snapshot: GateSnapshot, then_ms: int | None) -> str:
    if then_ms is None:
        return out.UNKNOWN
    return f"{out.short_time(then_ms)} ({since(snapshot, then_ms)} ago)"


def _all_records(snapshot: GateSnapshot) -> str:
    records = snapshot.run_records
    taken = "all records" if records is None else out.plural(records, "record")
    counted = (
        (snapshot.failed, "failed batch"),
        (snapshot.dead, "dead batch"),
        (snapshot.dead_letters, "dead letter"),
        (snapshot.lost_records, "lost record"),
        (snapshot.skipped_records, "skipped record"),
    )
    but = [out.plural(number, noun) for number, noun in counted if number]
    return f"{taken} taken, with {', '.join(but)}" if but else f"{taken} processed"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def since(snapshot: GateSnapshot, then_ms: int | None) -> str:
    """Return the time from then until the snapshot was taken."""
    return out.UNKNOWN if then_ms is None else out.duration(max(snapshot.time_ms - then_ms, 0))


def _to_go(snapshot: GateSnapshot) -> str:
    if snapshot.drain_s is None:
        return "fewer each time"
    trend = ", getting longer" if snapshot.drain_trend is Trend.RISING else ""
    return f"about {out.duration(max(round(snapshot.drain_s), 1) * 1000)} to go{trend}"


SHORT: Final = 8
"""Digits of a key that are shown in a table; they tell the batches of most ledgers apart."""

PROVES: Final = (
    "headrace verify proves, or says where it is not so, that the batches leave out no offset "
    "between where each checkpoint began and where it stands, that no checkpoint reads one twice, "
    "and that each is processed or explained."
)
CANNOT: Final = (
    "It cannot see from the ledger alone that this is an older copy, or that its rows were edited; "
    "nor what is in a sink."
)
ELSEWHERE: Final = "--checkpoint and --source compare it with what Spark and the source know."

SENTENCES: Final = 10
"""Sentences about findings of one kind; beyond it they are counted."""

PRUNED: Final = (
    "pruned: of these offsets the batches are deleted. None was deleted before it was processed, or"
    " dead and resolved, and none that overlaps with another; which batch read what, and when, is"
    " not known any more."
)
_OF_A_BATCH: Final = (
    FindingKind.OPEN,
    FindingKind.DEAD,
    FindingKind.REJECTED,
)


_GONE: Final = (
    FindingKind.DEAD,
    FindingKind.REJECTED,
    FindingKind.LOST,
    FindingKind.SKIPPED,
)


def gone_offsets(findings: Iterable[Finding]) -> tuple[dict[FindingKind, int], int]:
    """Return the offsets that will not be processed, by reason, and the number of accepted ones."""
    counts: Counter[FindingKind] = Counter()
    accepted = 0
    for finding in findings:
        if finding.accepted is None:
            counts[finding.kind] += finding.offsets.count
        else:
            accepted += finding.offsets.count
    return {kind: counts[kind] for kind in _GONE if counts[kind]}, accepted


def finding_sentences(findings: Sequence[Finding]) -> Iterator[tuple[FindingKind, str]]:
    """A sentence for each, the worst first, with its kind; of many of a kind the first few."""
    for kind, same in groupby(findings, key=lambda finding: finding.kind):
        by_batch: dict[object, list[Finding]] = defaultdict(list)
        for number, finding in enumerate(same):
            by_batch[finding.batch_key if kind in _OF_A_BATCH else number].append(finding)
        for each in islice(by_batch.values(), SENTENCES):
            yield kind, _finding_sentence(each)
        if len(by_batch) > SENTENCES:
            yield kind, f"and {len(by_batch) - SENTENCES:,} more; --json tells them all."


def _finding_sentence(findings: Sequence[Finding]) -> str:
    first = findings[0]
    batches = f"batch {_short(first.other)} and batch {_short(first.batch_key)}"
    runs = f"run {_short(first.other)} and run {_short(first.checkpoint_id)}"
    whole = f"batch {_short(first.batch_key)}"
    match first.kind:
        case FindingKind.GAP:
            sentence = f"{first.offsets} lies between {batches}, and no batch reads it."
        case FindingKind.MISSING:
            run = _short(first.checkpoint_id)
            sentence = f"{first.offsets} was planned by run {run}, and no batch has it."
        case FindingKind.OVERLAP if first.other is None:
            sentence = f"{first.offsets} is read by {whole} and by another batch."
        case FindingKind.OVERLAP:
            sentence = f"{first.offsets} is read by both {batches}."
        case FindingKind.OPEN | FindingKind.DEAD | FindingKind.REJECTED:
            sentence = f"{_batch(findings)} is {_state(findings)}"
        case FindingKind.LOST if first.batch_key is not None:
            why = f": {first.reason}" if first.reason else ""
            sentence = f"{first.offsets} was gone when {whole} read it{why}."
        case FindingKind.LOST:
            sentence = f"{first.offsets} was gone before it was read."
        case FindingKind.SKIPPED:
            sentence = f"{first.offsets} lies between what {runs} read, and no run reads it."
        case FindingKind.READ_AGAIN:
            sentence = f"{first.offsets} is read by both {runs}, each with a checkpoint of its own."
    return sentence if first.accepted is None else f"{sentence} Accepted: {first.accepted}"


def _state(findings: Sequence[Finding]) -> str:
    finding = findings[0]
    if finding.interrupted:
        return "interrupted: its query was stopped, and its next start runs it."
    if finding.resolution is not None:
        return f"{finding.status}, and resolved: {finding.resolution.rstrip('.')}."
    why = f": {out.short_error(finding.error)}" if finding.error else "."
    records = "this record" if len(findings) == 1 else "these records; why the first is not"
    return f"{finding.status or f'processed, but not {records}'}{why}"


def _batch(findings: Sequence[Finding]) -> str:
    first, *others = findings
    if not others:
        return f"batch {_short(first.batch_key)} with {first.offsets}"
    records = out.plural(sum(finding.offsets.count for finding in findings), "offset")
    partitions = len({finding.offsets.topic_partition for finding in findings})
    ranges = "" if partitions == len(findings) else f"{out.plural(len(findings), 'range')} of "
    where = f"{records} in {ranges}{out.plural(partitions, 'partition')}, first {first.offsets},"
    return f"batch {_short(first.batch_key)} with {where}"


def _short(key: str | None) -> str:
    return "(pruned)" if key is None else key[:SHORT]
