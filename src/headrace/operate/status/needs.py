"""Needs of gates: problems that an operator has to look at, each kind declared once.

A need has an urgency, a view, a command and a sentence. Needs are computed from a snapshot without
needs. `headline` returns the sentence of a gate's state.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.errors import GateInUseError, OptionError
from headrace.gate import BAD_VALUE, FIT_BATCHES
from headrace.operate.status import words as out
from headrace.operate.status.parts import BatchSnapshot, IsolatingSnapshot
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.states import WHY, GateState, Need, ReceiverState, Urgency, Where
from headrace.operate.status.trends import Trend

RETENTION_IS_NEAR_S: Final = 3_600.0
"""If retention deletes an unread record within this time (s), the gate has a need (problem)."""

HANGS: Final = 10
"""A batch that has run for more than this many intervals counts as hanging."""

SHORTEST_HANGS_MS: Final = 60_000

BY_OPERATORS: Final = {GateState.PAUSED, GateState.LIMITED}
"""States of a gate that an operator's pause, drain or limit causes."""


_REFUSALS: Final = tuple(f"({refusal.__name__})" for refusal in (OptionError, GateInUseError))
"""If Headrace refused to run a query, the query's error ends with one of these texts. The error may
name a command."""


Facts = Iterator[tuple[str, int]]
"""Sentences about a gate's problems, each with the number of affected records (0: not known)."""


@dataclass(frozen=True, slots=True)
class NeedKind:
    """Declaration of a kind of need; a new kind is a new entry of `GATE_NEEDS`.

    Attributes:
        kind: Name of the kind, such as ``dead letters``, as in "3 gates: dead letters".
        urgency: Urgency of the needs of this kind.
        where: View in which an operator acts on the needs.
        command: Command that acts on the needs; ``{gate}`` stands for the gate's name.
        facts: Yields a sentence and a number of records for each need of a gate.
    """

    kind: str
    urgency: Urgency
    where: Where
    command: str
    facts: Callable[[GateSnapshot], Facts]

    def of(self, snapshot: GateSnapshot) -> Iterator[Need]:
        """Yield the gate's needs (problems) of this kind."""
        command = self.command.format(gate=shlex.quote(snapshot.gate))
        for sentence, records in self.facts(snapshot):
            yield Need(
                self.kind, self.urgency, snapshot.gate, sentence, self.where, command, records
            )


def gate_needs(snapshot: GateSnapshot) -> Iterator[Need]:
    """Return a gate's needs (problems for an operator), the most urgent first."""
    needs = [need for kind in GATE_NEEDS for need in kind.of(snapshot)]
    needs += [*_of_its_state(snapshot), *_silent_receivers(snapshot)]
    return iter(sorted(needs, key=lambda need: need.urgency))


def _of_its_state(snapshot: GateSnapshot) -> Iterator[Need]:
    state, newest, urgency = snapshot.state, snapshot.newest, snapshot.state.urgency
    if urgency is Urgency.FINE or (state is GateState.STOPPED and snapshot.ended_error is None):
        return  # a query that was stopped on purpose, or by its program, is no need
    if state is GateState.OVERDUE and newest is not None and snapshot.waits_with is None:
        hangs_ms = max(HANGS * snapshot.interval_ms, SHORTEST_HANGS_MS)
        urgency = Urgency.NOW if newest.duration_ms > hangs_ms else Urgency.WATCH
    on_a_batch = "{batch}" in state.command and newest is not None and newest.key
    command = state.command if on_a_batch or "{batch}" not in state.command else WHY
    command = command.format(
        gate=shlex.quote(snapshot.gate), batch=newest.key[:8] if newest else ""
    )
    if state is GateState.OVERDUE and snapshot.waits_with is not None:
        command = f"headrace retry {shlex.quote(snapshot.waits_with)}"
    if state is GateState.STOPPED:
        command = _command_of(snapshot.ended_error) or command
    records = records_waiting(snapshot)
    if state is GateState.WAITING:
        records = records_in_all(snapshot)
    elif on_a_batch and newest is not None and state not in (GateState.DEAD, GateState.SILENT):
        records = newest.records
    yield Need(
        str(state),
        urgency,
        snapshot.gate,
        headline(snapshot),
        Where.FAILURES if state is GateState.FAILED else Where.GATE,
        command,
        records,
    )


def _command_of(error: str | None) -> str | None:
    """Return the command that the error of a refused query names; None without a command.

    Other errors are not searched for a command, because a handler's error may quote a record.
    """
    if error is None or not error.rstrip(".").endswith(_REFUSALS):
        return None
    command = re.search("`(headrace [^`]+)`", error)
    return None if command is None else command[1]


def _silent_receivers(snapshot: GateSnapshot) -> Iterator[Need]:
    silent = [receiver for receiver in snapshot.receivers if receiver.state is ReceiverState.SILENT]
    if silent:
        last = max(silent, key=lambda receiver: receiver.seen_ms)
        which = f"{last.journal} lane {last.lane} for {since(snapshot, last.seen_ms)}"
        sentence = f"{out.plural(len(silent), 'receiver')} not seen: {which}."
        command = "headrace receive --help"
        yield Need(
            "silent receivers", Urgency.SOON, snapshot.gate, sentence, Where.RECEIVERS, command
        )


def _lost(snapshot: GateSnapshot) -> Facts:
    if lost := snapshot.lost_records:
        yield f"{out.plural(lost, 'record')} lost before they were read.", lost


def _skipped(snapshot: GateSnapshot) -> Facts:
    if skipped := snapshot.skipped_records:
        yield f"{out.plural(skipped, 'record')} skipped between two checkpoints.", skipped


def _retention(snapshot: GateSnapshot) -> Facts:
    left_s = snapshot.retention_left_s
    if left_s is not None and left_s < RETENTION_IS_NEAR_S:
        when = f"in {out.duration(left_s * 1000)}" if left_s else "already"
        sentence = f"Retention deletes records that are not read {when}{_in_force(snapshot)}."
        yield sentence, records_waiting(snapshot)


def _dead_batches(snapshot: GateSnapshot) -> Facts:
    if snapshot.dead:
        # The known error belongs to the newest failed batch, if there is one.
        why = "." if snapshot.failed else _error(snapshot)
        yield f"{out.plural(snapshot.dead, 'dead batch')}{why}", 0


def _failed_batches(snapshot: GateSnapshot) -> Facts:
    if snapshot.failed and snapshot.state is not GateState.FAILED:
        failed = out.plural(snapshot.failed, "failed batch")
        # No row has the program's on_failure, which decides whether the batch is retried.
        yield f"{failed}{_error(snapshot)}", 0


def _abandoned_batches(snapshot: GateSnapshot) -> Facts:
    if number := snapshot.abandoned:
        batches = out.plural(number, "batch")
        left = "is" if number == 1 else "are"
        fails = "it fails when its lease ends" if number == 1 else "they fail when their leases end"
        yield f"{batches} {left} in progress, and run by no process; {fails}.", 0


def _dead_letters(snapshot: GateSnapshot) -> Facts:
    if number := snapshot.dead_letters:
        waits = "waits" if number == 1 else "wait"
        letters = out.plural(number, "dead letter")
        # Only receivers write into a journal.
        again = "exported and sent to a receiver" if snapshot.source == "journal" else "sent again"
        yield f"{letters} {waits} to be {again}, or dropped.", number


def _misfit(snapshot: GateSnapshot) -> Facts:
    if number := snapshot.unfit_records:
        sentence = (
            f"The schema does not fit {out.plural(number, 'record')} of the last {FIT_BATCHES}"
            " batches, more than half of each: correct the schema or the producer."
        )
        yield sentence, number


def _waiting_senders(snapshot: GateSnapshot) -> Facts:
    refusing = [
        receiver for receiver in snapshot.receivers if receiver.state is ReceiverState.REFUSING
    ]
    for reason in sorted(
        {receiver.refusing.rstrip(".") for receiver in refusing if receiver.refusing}
    ):
        yield f"Senders wait: {reason}{_in_force(snapshot)}.", 0


def _bad_records(snapshot: GateSnapshot) -> Facts:
    isolated = snapshot.isolated
    if isolated is not None and not isolated.is_of_wholes and isolated.advice is not None:
        yield isolated.advice, 0


def _failing_wholes(snapshot: GateSnapshot) -> Facts:
    isolated = snapshot.isolated
    if isolated is not None and isolated.is_of_wholes and isolated.advice is not None:
        yield isolated.advice, 0


def _new_checkpoint(snapshot: GateSnapshot) -> Facts:
    if (where := snapshot.new_checkpoint) is not None:
        command = _RESTART.format(gate=shlex.quote(snapshot.gate))
        yield (
            f"{where[:1].upper()}{where[1:]}; to process everything again, run `{command}`, and"
            " start with a new checkpoint once more.",
            0,
        )


def _advice(snapshot: GateSnapshot) -> Facts:
    # An operator set the rate of a paused or limited gate, so changing the job would not raise it.
    if snapshot.state not in BY_OPERATORS:
        for advice in snapshot.advice:
            yield advice, 0


def _error(snapshot: GateSnapshot) -> str:
    return f": {snapshot.error}" if snapshot.error else "."


def _in_force(snapshot: GateSnapshot) -> str:
    return f"; the gate is {snapshot.operator_limits}" if snapshot.operator_limits else ""


_NOW, _SOON, _WATCH = Urgency.NOW, Urgency.SOON, Urgency.WATCH
_FAILURES = "headrace failures {gate}"
_LETTERS = "headrace dead-letters list {gate}"
_RESTART = "headrace restart {gate} --why TEXT"

GATE_NEEDS: Final = (
    NeedKind("lost records", _NOW, Where.VERIFY, "headrace verify {gate}", _lost),
    NeedKind("skipped records", _NOW, Where.VERIFY, "headrace verify {gate}", _skipped),
    NeedKind("retention", _NOW, Where.GATE, WHY, _retention),
    NeedKind("dead batches", _SOON, Where.FAILURES, _FAILURES, _dead_batches),
    NeedKind("failed batches", _SOON, Where.FAILURES, _FAILURES, _failed_batches),
    NeedKind(
        "abandoned batches", _WATCH, Where.VERIFY, "headrace verify {gate}", _abandoned_batches
    ),
    NeedKind("dead letters", _SOON, Where.FAILURES, _LETTERS, _dead_letters),
    NeedKind("misfit", _SOON, Where.FAILURES, f"{_FAILURES} --error {BAD_VALUE}", _misfit),
    NeedKind("waiting senders", _SOON, Where.RECEIVERS, WHY, _waiting_senders),
    NeedKind("bad records", _WATCH, Where.FAILURES, _LETTERS, _bad_records),
    NeedKind("failing wholes", _WATCH, Where.GATE, "headrace batches {gate}", _failing_wholes),
    NeedKind("new checkpoint", _WATCH, Where.GATE, _RESTART, _new_checkpoint),
    NeedKind("advice", _WATCH, Where.GATE, WHY, _advice),
)
"""Kinds of needs of a gate, except for the needs of its state and of its receivers."""

_RANKS: Final = {state: rank for rank, state in enumerate(GateState)}


def urgency_of(snapshot: GateSnapshot) -> tuple[int, int, int, str]:
    """Return a sort key that puts urgent gates first: by their needs, then states, then lags."""
    needed = min((need.urgency for need in snapshot.needs), default=Urgency.FINE)
    return needed, _RANKS[snapshot.state], -(records_waiting(snapshot)), snapshot.gate


def headline(snapshot: GateSnapshot) -> str:
    """Return a sentence about a gate's state, such as "Stalled: no batch for 2 min 5 s, …"."""
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
    suffix = "" if snapshot.left_over is None else f"; nothing did {before} ago"
    return f"what waits now is not known{suffix}"


def _waits_in(snapshot: GateSnapshot) -> str:
    if snapshot.waits_with is not None:
        return f"its query waits for the sink of gate {snapshot.waits_with!r}"
    if snapshot.newest is not None and snapshot.newest.id is None:
        return "Spark has not called its handler yet"
    return "its handler has not returned, and Spark's page shows whether it reads or writes"


def batch_name(batch: "BatchSnapshot | None") -> str:
    """Return a batch's name for a sentence: its number in Spark, or its key if it has no number."""
    if batch is None:
        return "no batch"
    return f"batch {batch.key[:8]}" if batch.id is None else f"batch {batch.id}"


def isolated(found: IsolatingSnapshot | None, batch: str) -> str:
    """Return the progress of a batch's isolation in words; ``batch`` is the batch's name."""
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
    """Return the number of waiting records, including the records of the newest batch."""
    return (snapshot.newest.records if snapshot.newest else 0) + records_waiting(snapshot)


def records_waiting(snapshot: GateSnapshot) -> int:
    """Return the number of records that no batch has begun; 0 if not known."""
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
    """Return the time from ``then_ms`` to the snapshot, in words."""
    return out.UNKNOWN if then_ms is None else out.duration(max(snapshot.time_ms - then_ms, 0))


def _to_go(snapshot: GateSnapshot) -> str:
    if snapshot.drain_s is None:
        return "fewer each time"
    trend = ", getting longer" if snapshot.drain_trend is Trend.RISING else ""
    return f"about {out.duration(max(round(snapshot.drain_s), 1) * 1000)} to go{trend}"


def drained_in(drain_s: float | None) -> str:
    """Format the time until no record waits, in whole seconds, because it is an estimate."""
    if drain_s is None:
        return out.UNKNOWN
    return out.duration(round(drain_s) * 1000) if drain_s >= 60 else f"{drain_s:.0f} s"
