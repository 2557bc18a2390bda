"""What needs somebody, one sentence each, the worst first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from headrace.operations import words as out
from headrace.operations.sentences import headline, since
from headrace.operations.snapshot import GateSnapshot, GateState, ReceiverState
from headrace.operations.stages import BOTTLENECK, StageSnapshot


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
        urgency: How soon.
        about: The gate or the flow.
        sentence: What it is, in one sentence without the gate's name.
        where: What acts on it.
    """

    urgency: Urgency
    about: str
    sentence: str
    where: Where


_STATES: Final = {
    GateState.STALLED: Urgency.NOW,
    GateState.OVERDUE: Urgency.NOW,
    GateState.FAILED: Urgency.NOW,
    GateState.INTERRUPTED: Urgency.WATCH,
    GateState.FALLING_BEHIND: Urgency.WATCH,
}


def gate_needs(snapshot: GateSnapshot) -> Iterator[Need]:
    """What a gate needs, the worst first."""
    gate = snapshot.gate
    if snapshot.lost_records:
        lost = f"{out.plural(snapshot.lost_records, 'record')} lost before they were read."
        yield Need(Urgency.NOW, gate, lost, Where.VERIFY)
    if (urgency := _STATES.get(snapshot.state)) is not None:
        where = Where.FAILURES if snapshot.state is GateState.FAILED else Where.GATE
        yield Need(urgency, gate, headline(snapshot), where)
    why = f": {snapshot.error}" if snapshot.error else "."
    if snapshot.dead:
        sentence = f"{out.plural(snapshot.dead, 'dead batch')}{why}"
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES)
    if snapshot.failed and snapshot.state is not GateState.FAILED:
        sentence = f"{out.plural(snapshot.failed, 'failed batch')} to be run again{why}"
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES)
    if snapshot.dead_letters:
        number = snapshot.dead_letters
        waits = "waits" if number == 1 else "wait"
        sentence = f"{out.plural(number, 'dead letter')} {waits} to be sent again, or dropped."
        yield Need(Urgency.SOON, gate, sentence, Where.FAILURES)
    silent = [each for each in snapshot.receivers if each.state is ReceiverState.SILENT]
    if silent:
        last = max(silent, key=lambda each: each.seen_ms)
        which = f"{last.journal} lane {last.lane} for {since(snapshot, last.seen_ms)}"
        sentence = f"{out.plural(len(silent), 'receiver')} not seen: {which}."
        yield Need(Urgency.SOON, gate, sentence, Where.RECEIVERS)
    for advice in snapshot.advice:
        yield Need(Urgency.WATCH, gate, advice, Where.GATE)


def flow_needs(stages: Sequence[StageSnapshot]) -> Iterator[Need]:
    """What flows need: their bottlenecks, and stages that do not run."""
    for each in stages:
        about = f"{each.flow}.{each.stage}"
        if each.state == BOTTLENECK:
            sentence = "This stage throttles the others: it is the flow's bottleneck."
            yield Need(Urgency.WATCH, about, sentence, Where.FLOWS)
        if each.missing_upstream is not None:
            sentence = f"Nothing comes from stage {each.missing_upstream}, which does not run."
            yield Need(Urgency.SOON, about, sentence, Where.FLOWS)


def urgency_of(snapshot: GateSnapshot) -> tuple[int, int, int, str]:
    """Sorts gates, the most urgent first: by what they need, then their state, then their lag."""
    needed = min((need.urgency for need in gate_needs(snapshot)), default=Urgency.FINE)
    return needed, _RANKS[snapshot.state], -(snapshot.lag or 0), snapshot.gate


_RANKS: Final = {
    state: rank
    for rank, state in enumerate(
        (
            GateState.FAILED,
            GateState.STALLED,
            GateState.OVERDUE,
            GateState.INTERRUPTED,
            GateState.FALLING_BEHIND,
            GateState.HOLDING,
            GateState.DRAINING,
            GateState.PAUSED,
            GateState.NEW,
            GateState.KEEPING_UP,
            GateState.IDLE,
        )
    )
}
