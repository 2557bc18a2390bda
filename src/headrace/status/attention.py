"""Needs of gates and flows, one sentence each with the command that acts, the worst first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from headrace.control.schema_fit import FIT_BATCHES
from headrace.ledger.error_report import BAD_VALUE
from headrace.status import words as out
from headrace.status.sentences import headline, records_in_all, records_waiting, since
from headrace.status.states import GateState, ReceiverState

if TYPE_CHECKING:
    from headrace.status.snapshot import GateSnapshot

RETENTION_IS_NEAR_S: Final = 3_600.0
"""Before the source deletes a record that is not read, so soon somebody has to know (s)."""

HANGS: Final = 10
"""Intervals after which a running batch does not only take long."""

SHORTEST_HANGS_MS: Final = 60_000


class Urgency(IntEnum):
    """Time until somebody has to look; the lowest number is the most urgent."""

    NOW = 0
    """Records are lost, or nothing is processed."""
    SOON = 1
    """Something failed, and waits for somebody."""
    WATCH = 2
    """It may get worse by itself."""
    FINE = 3
    """Nobody has to look."""


class Where(StrEnum):
    """Place that acts on a need."""

    GATE = "gate"
    FAILURES = "failures"
    VERIFY = "verify"
    RECEIVERS = "receivers"
    FLOWS = "flows"


class NeedKind(StrEnum):
    """Kind of a need. Needs of one kind are mended alike, so that lists show them as one."""

    LOST = "lost records"
    SKIPPED = "skipped records"
    DEAD = "dead"
    SILENT = "silent"
    STALLED = "stalled"
    STOPPED = "stopped"
    FAILED = "failed"
    OVERDUE = "overdue"
    WAITING = "waiting"
    ISOLATING = "isolating"
    INTERRUPTED = "interrupted"
    FALLING_BEHIND = "falling behind"
    LIMITED = "limited"
    PAUSED = "paused"
    RETENTION = "retention"
    DEAD_BATCHES = "dead batches"
    FAILED_BATCHES = "failed batches"
    DEAD_LETTERS = "dead letters"
    SILENT_RECEIVERS = "silent receivers"
    WAITING_SENDERS = "waiting senders"
    BAD_RECORDS = "bad records"
    MISFIT = "misfit"
    NEW_CHECKPOINT = "new checkpoint"
    ADVICE = "advice"
    MISSING_STAGE = "missing stage"
    BOTTLENECK = "bottleneck"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody.

    Attributes:
        kind: What is wrong: a value of `NeedKind`.
        urgency: How soon: 0 is now, 1 soon, 2 means that it may get worse.
        about: The gate, or the stage of a flow.
        sentence: What it is, in one sentence without the gate's name.
        where: What acts on it.
        command: The command that acts on it, or shows the next step.
        records: The records that are at stake; 0 where their number is not known.
    """

    kind: NeedKind
    urgency: Urgency
    about: str
    sentence: str
    where: Where
    command: str
    records: int = 0


_ALL_OF: Final = {
    NeedKind.LOST: ("gate", "has lost records", "have lost records"),
    NeedKind.SKIPPED: ("gate", "has skipped records", "have skipped records"),
    NeedKind.DEAD: ("gate", "is dead", "are dead"),
    NeedKind.SILENT: ("gate", "is silent", "are silent"),
    NeedKind.STALLED: ("gate", "is stalled", "are stalled"),
    NeedKind.STOPPED: ("gate", "was stopped by an error", "were stopped by errors"),
    NeedKind.FAILED: ("gate", "fails", "fail"),
    NeedKind.OVERDUE: ("gate", "is overdue", "are overdue"),
    NeedKind.WAITING: ("gate", "waits for its sink", "wait for their sinks"),
    NeedKind.ISOLATING: ("gate", "isolates a batch", "isolate a batch"),
    NeedKind.INTERRUPTED: ("gate", "was interrupted", "were interrupted"),
    NeedKind.FALLING_BEHIND: ("gate", "falls behind", "fall behind"),
    NeedKind.LIMITED: ("gate", "is limited by an operator", "are limited by operators"),
    NeedKind.PAUSED: ("gate", "is paused by an operator", "are paused by operators"),
    NeedKind.RETENTION: ("gate", "nears the retention", "near the retention"),
    NeedKind.DEAD_BATCHES: ("gate", "has dead batches", "have dead batches"),
    NeedKind.FAILED_BATCHES: ("gate", "has failed batches", "have failed batches"),
    NeedKind.DEAD_LETTERS: ("gate", "has dead letters", "have dead letters"),
    NeedKind.SILENT_RECEIVERS: ("gate", "misses receivers", "miss receivers"),
    NeedKind.WAITING_SENDERS: ("gate", "has senders wait", "have senders wait"),
    NeedKind.BAD_RECORDS: ("gate", "keeps isolating batches", "keep isolating batches"),
    NeedKind.MISFIT: ("gate", "has a schema that does not fit", "have schemas that do not fit"),
    NeedKind.NEW_CHECKPOINT: ("gate", "began a new checkpoint", "began new checkpoints"),
    NeedKind.ADVICE: ("gate", "has advice to follow", "have advice to follow"),
    NeedKind.MISSING_STAGE: ("stage", "misses the stage before it", "miss the stage before them"),
    NeedKind.BOTTLENECK: ("stage", "is its flow's bottleneck", "are their flows' bottlenecks"),
}
"""Subject of a need, and its predicate for one and for several."""


@dataclass(frozen=True, slots=True)
class NeedGroup:
    """Needs of one kind.

    Attributes:
        kind: The kind.
        needs: One or more, the most urgent first, then those with the most records.
    """

    kind: NeedKind
    needs: tuple[Need, ...]

    @property
    def urgency(self) -> Urgency:
        """Urgency of the most urgent need."""
        return self.needs[0].urgency

    @property
    def number(self) -> int:
        """Number of gates or stages."""
        return len({need.about for need in self.needs})

    @property
    def records(self) -> int:
        """The records that are at stake, as far as their number is known."""
        return sum(need.records for need in self.needs)

    @property
    def sentence(self) -> str:
        """Sentence for all of them, such as "3 gates fall behind, with 1,200 records."."""
        noun, one, several = _ALL_OF[self.kind]
        number = self.number
        records = f", with {out.plural(self.records, 'record')}" if self.records else ""
        return f"{out.plural(number, noun)} {one if number == 1 else several}{records}."


def grouped(needs: Iterable[Need]) -> list[NeedGroup]:
    """Needs by their kind: the most urgent kind first, then by gates, then by records."""
    kinds: dict[NeedKind, list[Need]] = {}
    for need in sorted(needs, key=lambda each: (each.urgency, -each.records, each.about)):
        kinds.setdefault(need.kind, []).append(need)
    groups = [NeedGroup(kind, tuple(of_kind)) for kind, of_kind in kinds.items()]
    return sorted(groups, key=lambda each: (each.urgency, -each.number, -each.records))


_STATES: Final = {
    GateState.DEAD: Urgency.NOW,
    GateState.SILENT: Urgency.NOW,
    GateState.STALLED: Urgency.NOW,
    GateState.STOPPED: Urgency.NOW,
    GateState.OVERDUE: Urgency.WATCH,
    GateState.FAILED: Urgency.NOW,
    GateState.WAITING: Urgency.SOON,
    GateState.ISOLATING: Urgency.WATCH,
    GateState.INTERRUPTED: Urgency.WATCH,
    GateState.FALLING_BEHIND: Urgency.WATCH,
    GateState.LIMITED: Urgency.WATCH,
    GateState.PAUSED: Urgency.WATCH,
}


_ON_ITS_BATCH: Final = {
    GateState.DEAD,
    GateState.SILENT,
    GateState.OVERDUE,
    GateState.FAILED,
    GateState.ISOLATING,
    GateState.INTERRUPTED,
}
"""States of which the newest batch says more."""

BY_OPERATORS: Final = {GateState.PAUSED, GateState.LIMITED}
"""States that an operator has made."""

_WHERE: Final = {
    NeedKind.LOST: Where.VERIFY,
    NeedKind.SKIPPED: Where.VERIFY,
    NeedKind.FAILED: Where.FAILURES,
    NeedKind.DEAD_BATCHES: Where.FAILURES,
    NeedKind.FAILED_BATCHES: Where.FAILURES,
    NeedKind.DEAD_LETTERS: Where.FAILURES,
    NeedKind.BAD_RECORDS: Where.FAILURES,
    NeedKind.MISFIT: Where.FAILURES,
    NeedKind.SILENT_RECEIVERS: Where.RECEIVERS,
    NeedKind.WAITING_SENDERS: Where.RECEIVERS,
}
"""Place that acts on a kind; on any other, the gate."""


def gate_needs(snapshot: "GateSnapshot") -> Iterator[Need]:
    """Return a gate's needs, the worst first."""
    return iter(sorted(_gate_needs(snapshot), key=lambda need: need.urgency))


def _gate_needs(snapshot: "GateSnapshot") -> Iterator[Need]:
    yield from _gone(snapshot)
    yield from _of_its_state(snapshot)
    left_s = snapshot.retention_left_s
    if left_s is not None and left_s < RETENTION_IS_NEAR_S:
        when = f"in {out.duration(left_s * 1000)}" if left_s else "already"
        sentence = f"Retention deletes records that are not read {when}{_in_force(snapshot)}."
        command = f"headrace why {snapshot.gate}"
        waiting = records_waiting(snapshot)
        yield _need(snapshot, NeedKind.RETENTION, Urgency.NOW, sentence, command, waiting)
    yield from _failures(snapshot)
    yield from _receivers(snapshot)
    if snapshot.isolated is not None and (advice := snapshot.isolated.advice) is not None:
        command = f"headrace dead-letters list {snapshot.gate}"
        yield _need(snapshot, NeedKind.BAD_RECORDS, Urgency.WATCH, advice, command)
    if snapshot.unfit_records:
        sentence = (
            f"The schema does not fit {out.plural(snapshot.unfit_records, 'record')} of the last"
            f" {FIT_BATCHES} batches, more than half of each: correct the schema or the producer."
        )
        command = f"headrace failures {snapshot.gate} --error {BAD_VALUE}"
        number = snapshot.unfit_records
        yield _need(snapshot, NeedKind.MISFIT, Urgency.SOON, sentence, command, number)
    if snapshot.new_checkpoint is not None:
        sentence = f"{snapshot.new_checkpoint[:1].upper()}{snapshot.new_checkpoint[1:]}."
        command = f"headrace checkpoint offsets {snapshot.gate}"
        yield _need(snapshot, NeedKind.NEW_CHECKPOINT, Urgency.WATCH, sentence, command)
    if snapshot.state in BY_OPERATORS:
        return  # its rate is the operator's, and nothing that the job could mend
    for advice in snapshot.advice:
        command = f"headrace why {snapshot.gate}"
        yield _need(snapshot, NeedKind.ADVICE, Urgency.WATCH, advice, command)


def _need(  # noqa: PLR0917  (what a need has)
    snapshot: "GateSnapshot",
    kind: NeedKind,
    urgency: Urgency,
    sentence: str,
    command: str,
    records: int = 0,
) -> Need:
    where = _WHERE.get(kind, Where.GATE)
    return Need(kind, urgency, snapshot.gate, sentence, where, command, records)


def _in_force(snapshot: "GateSnapshot") -> str:
    return f"; the gate is {snapshot.operator_limits}" if snapshot.operator_limits else ""


def _gone(snapshot: "GateSnapshot") -> Iterator[Need]:
    command = f"headrace verify {snapshot.gate}"
    if lost := snapshot.lost_records:
        sentence = f"{out.plural(lost, 'record')} lost before they were read."
        yield _need(snapshot, NeedKind.LOST, Urgency.NOW, sentence, command, lost)
    if skipped := snapshot.skipped_records:
        sentence = f"{out.plural(skipped, 'record')} skipped between two checkpoints."
        yield _need(snapshot, NeedKind.SKIPPED, Urgency.NOW, sentence, command, skipped)


def _receivers(snapshot: "GateSnapshot") -> Iterator[Need]:
    silent = [each for each in snapshot.receivers if each.state is ReceiverState.SILENT]
    if silent:
        last = max(silent, key=lambda each: each.seen_ms)
        which = f"{last.journal} lane {last.lane} for {since(snapshot, last.seen_ms)}"
        sentence = f"{out.plural(len(silent), 'receiver')} not seen: {which}."
        place = f"--journal {last.journal} --lane {last.lane}"
        command = f"headrace receive KIND {place} --gate {snapshot.gate}"
        yield _need(snapshot, NeedKind.SILENT_RECEIVERS, Urgency.SOON, sentence, command)
    refusing = [each for each in snapshot.receivers if each.state is ReceiverState.REFUSING]
    for reason in sorted({each.refusing.rstrip(".") for each in refusing if each.refusing}):
        sentence = f"Senders wait: {reason}{_in_force(snapshot)}."
        command = f"headrace why {snapshot.gate}"
        yield _need(snapshot, NeedKind.WAITING_SENDERS, Urgency.SOON, sentence, command)


def _of_its_state(snapshot: "GateSnapshot") -> Iterator[Need]:
    state, newest = snapshot.state, snapshot.newest
    urgency = _STATES.get(state)
    if urgency is None or (state is GateState.STOPPED and snapshot.ended_error is None):
        return  # a query that was stopped on purpose, or by its program, needs nobody
    if state is GateState.OVERDUE and newest is not None:
        hangs_ms = max(HANGS * snapshot.interval_ms, SHORTEST_HANGS_MS)
        urgency = Urgency.NOW if newest.duration_ms > hangs_ms else Urgency.WATCH
    on_a_batch = state in _ON_ITS_BATCH - {GateState.DEAD, GateState.SILENT}
    records = newest.records if newest and on_a_batch else records_waiting(snapshot)
    if state is GateState.WAITING:
        records = records_in_all(snapshot)
    sentence, command = headline(snapshot), _command(snapshot)
    yield _need(snapshot, NeedKind(str(state)), urgency, sentence, command, records)


def _command(snapshot: "GateSnapshot") -> str:
    newest = snapshot.newest
    if snapshot.state is GateState.PAUSED:
        return f"headrace resume {snapshot.gate}"
    if snapshot.state is GateState.WAITING:
        return f"headrace retry {snapshot.gate}"
    if snapshot.state is GateState.LIMITED:
        return f"headrace limit off {snapshot.gate}"
    if snapshot.state is GateState.STOPPED:
        return f"headrace failures {snapshot.gate}"
    if newest is not None and newest.key and snapshot.state in _ON_ITS_BATCH:
        return f"headrace batches {newest.key[:8]}"
    return f"headrace why {snapshot.gate}"


def _failures(snapshot: "GateSnapshot") -> Iterator[Need]:
    why = f": {snapshot.error}" if snapshot.error else "."
    command = f"headrace failures {snapshot.gate}"
    if snapshot.dead:
        sentence = f"{out.plural(snapshot.dead, 'dead batch')}{why}"
        yield _need(snapshot, NeedKind.DEAD_BATCHES, Urgency.SOON, sentence, command)
    if snapshot.failed and snapshot.state is not GateState.FAILED:
        sentence = f"{out.plural(snapshot.failed, 'failed batch')} to be run again{why}"
        yield _need(snapshot, NeedKind.FAILED_BATCHES, Urgency.SOON, sentence, command)
    if snapshot.dead_letters:
        number = snapshot.dead_letters
        waits = "waits" if number == 1 else "wait"
        sentence = f"{out.plural(number, 'dead letter')} {waits} to be sent again, or dropped."
        command = f"headrace dead-letters list {snapshot.gate}"
        yield _need(snapshot, NeedKind.DEAD_LETTERS, Urgency.SOON, sentence, command, number)


def urgency_of(snapshot: "GateSnapshot") -> tuple[int, int, int, str]:
    """Sorts gates, the most urgent first: by what they need, then their state, then their lag."""
    needed = min((need.urgency for need in snapshot.needs), default=Urgency.FINE)
    return needed, _RANKS[snapshot.state], -(records_waiting(snapshot)), snapshot.gate


_RANKS: Final = {
    state: rank
    for rank, state in enumerate(
        (
            GateState.FAILED,
            GateState.DEAD,
            GateState.SILENT,
            GateState.STALLED,
            GateState.WAITING,
            GateState.OVERDUE,
            GateState.ISOLATING,
            GateState.INTERRUPTED,
            GateState.FALLING_BEHIND,
            GateState.STEADY,
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
