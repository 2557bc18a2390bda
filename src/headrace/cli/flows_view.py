"""How the stages of flows fare, as they show it in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.lines import line
from headrace.cli.words import UNKNOWN, count
from headrace.flow.signals.codec import bottlenecks
from headrace.flow.signals.ledger_transport import ledger_states
from headrace.ledger import Ledger

_CULPRIT: Final = "culprit"
_STYLES: Final = {"held back": "yellow", _CULPRIT: "red"}


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment, in ``headrace status --json`` one object for each, after the gates.

    Attributes:
        flow: The flow's name.
        stage: The stage's.
        state: ``free``, ``held back``, or ``culprit``: it holds others back, and nobody holds it.
        held_by: The stage directly after it that holds it back; None while it is free.
        level: How hard that one presses; 0 while it is free.
        rate_per_s: The rate that its gate has learnt (records/s); None while there is none.
        rate_bound_per_s: What it may emit at most under pressure; None while it is free.
        queue_bytes: What waits on its channel; None where that is not known.
        without: A stage directly before it that does not run; None while all of them do.
    """

    flow: str
    stage: str
    state: str
    held_by: str | None
    level: float
    rate_per_s: float | None
    rate_bound_per_s: float | None
    queue_bytes: int | None
    without: str | None


def stages_of(ledger: Ledger) -> list[StageSnapshot]:
    """The stages that run and tell of themselves in this ledger, by flow and name.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    rates = {gate.name: gate.rate_per_s for gate in ledger.gates()}
    return [each for flow in ledger.flows() for each in _stages(ledger, flow, rates)]


def flows_view(stages: Sequence[StageSnapshot]) -> RenderableType:
    """A table of the stages, and for each flow in which some are held back, the culprit."""
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    for name in ("flow", "stage", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("queue", "rate/s", "at most"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("held back by", no_wrap=True, ratio=1)
    for each in stages:
        table.add_row(
            line(each.flow),
            line(each.stage, style="bold"),
            Text(each.state, style=_STYLES.get(each.state, "green")),
            size(each.queue_bytes),
            count(each.rate_per_s),
            count(each.rate_bound_per_s),
            line(each.held_by or UNKNOWN),
        )
    blamed = [
        line(f"Look at stage {each.stage} of flow {each.flow}: it holds the others back.", "red")
        for each in stages
        if each.state == _CULPRIT
    ]
    alone = [
        line(
            f"Nothing comes to stage {each.stage} of flow {each.flow} from stage {each.without},"
            " which does not run.",
            "yellow",
        )
        for each in stages
        if each.without is not None
    ]
    return Group(table, *blamed, *alone)


def size(number: int | None) -> str:
    """A number of bytes.

    >>> size(900), size(1_250_000), size(None)
    ('900 B', '1.2 MB', '—')
    """
    if number is None:
        return UNKNOWN
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _stages(ledger: Ledger, flow: str, rates: Mapping[str, float | None]) -> list[StageSnapshot]:
    states = ledger_states(ledger, flow)
    blamed = bottlenecks(states.values())
    return [
        StageSnapshot(
            flow,
            name,
            _CULPRIT if name in blamed else "free" if state.throttled_by is None else "held back",
            state.throttled_by,
            state.throttle_level,
            rates.get(f"{flow}.{name}"),
            state.rate_limit_per_s,
            state.queue_bytes,
            state.missing_upstream,
        )
        for name, state in sorted(states.items())
    ]
