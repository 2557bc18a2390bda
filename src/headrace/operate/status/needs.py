"""Values of what needs somebody: one need, and needs of one kind as a group."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headrace.operate.status import words as out
from headrace.operate.status.states import Urgency


class Where(StrEnum):
    """Place that acts on a need."""

    GATE = "gate"
    FAILURES = "failures"
    VERIFY = "verify"
    RECEIVERS = "receivers"
    FLOWS = "flows"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody.

    Attributes:
        kind: What is wrong, such as ``dead letters``, or a value of `GateState`. Needs of one kind
            are mended alike, so lists show them as one.
        urgency: How soon: 0 is now, 1 soon, 2 means that it may get worse.
        about: The gate, or the stage of a flow.
        sentence: What it is, in one sentence without the gate's name.
        where: What acts on it.
        command: The command that acts on it, or shows the next step.
        records: The records that are at stake; 0 where their number is not known.
    """

    kind: str
    urgency: Urgency
    about: str
    sentence: str
    where: Where
    command: str
    records: int = 0


@dataclass(frozen=True, slots=True)
class NeedGroup:
    """Needs of one kind, the most urgent first, then those with the most records."""

    kind: str
    needs: tuple[Need, ...]
    """One or more."""

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
        """Sentence for all of them, such as "3 gates: falling behind, with 1,200 records."."""
        noun = "stage" if self.needs[0].where is Where.FLOWS else "gate"
        records = f", with {out.plural(self.records, 'record')}" if self.records else ""
        return f"{out.plural(self.number, noun)}: {self.kind}{records}."

    @property
    def command(self) -> str:
        """The command that lists all of them, or acts on the worst."""
        worst = self.needs[0]
        if self.number == 1 or worst.where not in (Where.FAILURES, Where.VERIFY):
            return worst.command
        of_all = worst.command.replace(f" {shlex.quote(worst.about)}", "")
        return "headrace failures" if of_all == worst.command else of_all


def grouped(needs: Iterable[Need]) -> list[NeedGroup]:
    """Needs by their kind: the most urgent kind first, then by gates, then by records."""
    kinds: dict[str, list[Need]] = {}
    for need in sorted(needs, key=lambda each: (each.urgency, -each.records, each.about)):
        kinds.setdefault(need.kind, []).append(need)
    groups = [NeedGroup(kind, tuple(of_kind)) for kind, of_kind in kinds.items()]
    return sorted(groups, key=lambda each: (each.urgency, -each.number, -each.records))
