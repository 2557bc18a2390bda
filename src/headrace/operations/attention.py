"""What needs somebody, one sentence each with the command that acts, the worst first."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from headrace.operations import words as out
from headrace.operations.sentences import headline, since
from headrace.operations.states import GateState, ReceiverState

if TYPE_CHECKING:
    from headrace.operations.snapshot import GateSnapshot

RETENTION_IS_NEAR_S: Final = 3_600.0
"""Before the source deletes a record that is not read, so soon somebody has to know (s)."""

HANGS: Final = 10
"""Intervals after which a running batch does not only take long."""

SHORTEST_HANGS_MS: Final = 60_000


class Urgency(IntEnum):
    """How soon somebody has to look; the lowest number is the most urgent."""

    NOW = 0
    """Records are lost, or nothing is processed."""
    SOON = 1
    """Something failed, and waits for somebody."""
    WATCH = 2
    """It may get worse by itself."""
    FINE = 3
    """Nobody has to look."""


class Where(StrEnum):
    """What acts on it."""

    GATE = "gate"
    FAILURES = "failures"
    VERIFY = "verify"
    RECEIVERS = "receivers"
    FLOWS = "flows"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody.

    Attributes:
        urgency: How soon: 0 is now, 1 soon, 2 means that it may get worse.
        about: The gate, or the stage of a flow.
        sentence: What it is, in one sentence without the gate's name.
        where: What acts on it.
        command: The command that acts on it, or shows the next step.
    """

    urgency: Urgency
    about: str
    sentence: str
    where: Where
    command: str


_STATES: Final = {
    GateState.DEAD: Urgency.NOW,
    GateState.STALLED: Urgency.NOW,
    GateState.OVERDUE: Urgency.WATCH,
    GateState.FAILED: Urgency.NOW,
    GateState.ISOLATING: Urgency.WATCH,
    GateState.INTERRUPTED: Urgency.WATCH,
    GateState.FALLING_BEHIND: Urgency.WATCH,
    GateState.LIMITED: Urgency.WATCH,
    GateState.PAUSED: Urgency.WATCH,
}


def gate_needs(snapshot: "GateSnapshot") -> Iterator[Need]:
    """What a gate needs, the worst first."""
    return iter(sorted(_gate_needs(snapshot), key=lambda need: need.urgency))


def _gate_needs(snapshot: "GateSnapshot") -> Iterator[Need]:
    gate = snapshot.gate
    if snapshot.lost_records:
        lost = f"{out.plural(snapshot.lost_records, 'record')} lost before they were read."
        yield Need(Urgency.NOW, gate, lost, Where.VERIFY, f"headrace verify --gate {gate}")
    if snapshot.skipped_records:
        skipped = (
            f"{out.plural(snapshot.skipped_records, 'record')} skipped between two checkpoints."
        )
        yield Need(Urgency.NOW, gate, skipped, Where.VERIFY, f"headrace verify --gate {gate}")
    yield from _of_its_state(snapshot)
    left_s = snapshot.retention_left_s
    if left_s is not None and left_s < RETENTION_IS_NEAR_S:
        when = f"in {out.duration(left_s * 1000)}" if left_s else "already"
        sentence = f"Retention deletes records that are not read {when}."
        yield Need(Urgency.NOW, gate, sentence, Where.GATE, f"headrace why {gate}")
    yield from _failures(snapshot)
    silent = [each for each in snapshot.receivers if each.state is ReceiverState.SILENT]
    if silent:
        last = max(silent, key=lambda each: each.seen_ms)
        which = f"{last.journal} lane {last.lane} for {since(snapshot, last.seen_ms)}"
        sentence = f"{out.plural(len(silent), 'receiver')} not seen: {which}."
        command = f"headrace status --gate {gate}"
        yield Need(Urgency.SOON, gate, sentence, Where.RECEIVERS, command)
    held = (each.held for each in snapshot.receivers if each.state is ReceiverState.HELD)
    for reason in sorted({each.rstrip(".") for each in held if each}):
        command = f"headrace status --gate {gate}"
        yield Need(Urgency.SOON, gate, f"Senders wait: {reason}.", Where.RECEIVERS, command)
    for advice in snapshot.advice:
        yield Need(Urgency.WATCH, gate, advice, Where.GATE, f"headrace why {gate}")


def _of_its_state(snapshot: "GateSnapshot") -> Iterator[Need]:
    state, gate, newest = snapshot.state, snapshot.gate, snapshot.newest
    urgency = _STATES.get(state)
    if urgency is None:
        return
    if state is GateState.OVERDUE and newest is not None:
        hangs_ms = max(HANGS * snapshot.interval_ms, SHORTEST_HANGS_MS)
        urgency = Urgency.NOW if newest.duration_ms > hangs_ms else Urgency.WATCH
    where = Where.FAILURES if state is GateState.FAILED else Where.GATE
    yield Need(urgency, gate, headline(snapshot), where, _command(snapshot))


def _command(snapshot: "GateSnapshot") -> str:
    """What acts on the state of a gate: on its newest batch, if that is what is wrong."""
    newest = snapshot.newest
    if snapshot.state is GateState.PAUSED:
        return f"headrace resume {snapshot.gate}"
    if snapshot.state is GateState.LIMITED:
        return f"headrace limit off {snapshot.gate}"
    on_its_batch = {
        GateState.DEAD,
        GateState.OVERDUE,
        GateState.FAILED,
        GateState.ISOLATING,
        GateState.INTERRUPTED,
    }
    if newest is not None and newest.key and snapshot.state in on_its_batch:
        return f"headrace batches {newest.key[:8]}"
    return f"headrace why {snapshot.gate}"


def _failures(snapshot: "GateSnapshot") -> Iterator[Need]:
    gate, why = snapshot.gate, f": {snapshot.error}" if snapshot.error else "."
    command = f"headrace failures --gate {gate}"
    if snapshot.dead:
        sentence = f"{out.plural(snapshot.dead, 'dead batch')}{why}"
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES, command)
    if snapshot.failed and snapshot.state is not GateState.FAILED:
        sentence = f"{out.plural(snapshot.failed, 'failed batch')} to be run again{why}"
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES, command)
    if snapshot.dead_letters:
        number = snapshot.dead_letters
        waits = "waits" if number == 1 else "wait"
        sentence = f"{out.plural(number, 'dead letter')} {waits} to be sent again, or dropped."
        command = f"headrace dead-letters list --gate {gate}"
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES, command)


def urgency_of(snapshot: "GateSnapshot") -> tuple[int, int, int, str]:
    """Sorts gates, the most urgent first: by what they need, then their state, then their lag."""
    needed = min((need.urgency for need in snapshot.needs), default=Urgency.FINE)
    return needed, _RANKS[snapshot.state], -(snapshot.lag or 0), snapshot.gate


_RANKS: Final = {
    state: rank
    for rank, state in enumerate(
        (
            GateState.FAILED,
            GateState.DEAD,
            GateState.STALLED,
            GateState.OVERDUE,
            GateState.ISOLATING,
            GateState.INTERRUPTED,
            GateState.FALLING_BEHIND,
            GateState.HOLDING,
            GateState.LIMITED,
            GateState.CATCHING_UP,
            GateState.PAUSED,
            GateState.NEW,
            GateState.KEEPING_UP,
            GateState.STOPPED,
            GateState.FINISHED,
            GateState.IDLE,
        )
    )
}
