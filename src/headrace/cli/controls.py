"""``headrace pause``, ``resume``, ``limit`` and ``drain``: gates and flows while they run."""

import getpass
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from headrace.cli import printing as out
from headrace.cli import shared_options as opt
from headrace.cli.user_code import load_flow
from headrace.control import Control
from headrace.errors import OptionError
from headrace.ledger import Ledger
from headrace.operations.draining import DrainState, FlowDrain
from headrace.operations.snapshot import GateHistory
from headrace.operations.source_lags import SourceLags

LOOK_S: Final = 0.2
"""How often a drain is looked at."""

Gates = Annotated[
    list[str] | None, typer.Argument(metavar="[GATE]...", help="The gates; or name a --flow.")
]
FlowName = Annotated[
    str | None,
    typer.Option("--flow", metavar="MODULE:FLOW", help="A whole flow, such as shop.flows:orders."),
]
By = Annotated[str | None, typer.Option(help="Who does it.", show_default="the name of the user")]
Why = Annotated[str, typer.Option(help="Why; shown wherever the gate is.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The gates that a command is about, those of a flow in its order."""

    gates: Sequence[str]
    upstream: dict[str, tuple[str, ...]]
    """The gates directly before each; none for gates that are named."""

    @property
    def first(self) -> list[str]:
        """Those before which there is none: pausing them pauses a flow."""
        return [gate for gate in self.gates if not self.upstream[gate]]


def pause(
    gate: Gates = None,
    *,
    flow: FlowName = None,
    why: Why = "",
    by: By = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Have gates plan no batch from their next plan on, until they are resumed.

    What runs already is finished, and failed batches are run again as before. Receivers go on.
    Of a flow the first stages are paused; the others process what is on its way.
    """
    _act(
        ledger, gate, flow, as_json, lambda opened, each: opened.controls.pause(each, _by(by), why)
    )


def resume(
    gate: Gates = None,
    *,
    flow: FlowName = None,
    why: Why = "",
    by: By = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """End a pause or a drain; of a flow, in all of its stages. A limit stays."""
    _act(
        ledger,
        gate,
        flow,
        as_json,
        lambda opened, each: opened.controls.resume(each, _by(by), why),
        all_stages=True,
    )


def limit(
    rate: Annotated[
        str, typer.Argument(metavar="RATE", help="Records/s over all partitions; or: off.")
    ],
    gate: Gates = None,
    *,
    flow: FlowName = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="After which it ends by itself: 2h, 30min."),
    ] = None,
    why: Why = "",
    by: By = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Cap the rate of gates from their next batch on, besides all that limits them already.

    ``headrace limit 200 orders --for 2h``; ``headrace limit off orders`` ends it.
    Of a flow the first stages are limited.
    """
    most = _rate(rate)
    lasts_ms = None if lasts is None else opt.age_ms("--for", lasts)
    if most is None and lasts_ms is not None:
        raise OptionError("--for is the time of a limit, and 'off' ends one; leave it out.")

    def set_limit(opened: Ledger, name: str) -> Control:
        if most is None:
            return opened.controls.unlimit(name, _by(by), why)
        until_ms = None if lasts_ms is None else opened.database_time_ms() + lasts_ms
        return opened.controls.limit(name, most, _by(by), why, until_ms)

    _act(ledger, gate, flow, as_json, set_limit)


def drain(
    gate: Gates = None,
    *,
    flow: FlowName = None,
    why: Why = "",
    by: By = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait at most: 0s, 5min.")
    ] = "10min",
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Admit nothing more, let what is admitted finish, and say when the query can be stopped.

    A flow is drained from its first stages to its last: each stops when nothing more can come.
    After a restart a gate goes on only once it is resumed.
    Exit status 3: the time is over, and it is not done; the same command goes on from there.
    """
    timeout_s = opt.age_ms("--timeout", timeout) / 1000
    chosen = _chosen(gate, flow)
    with _opened(ledger, chosen) as opened:
        waiting = _Waiting(opened)
        draining = FlowDrain(
            opened,
            chosen.upstream,
            waiting.of,
            lambda each: opened.controls.drain(each, _by(by), why),
        )
        states = _wait(draining, time.monotonic() + timeout_s, quiet=as_json)
        if as_json:
            for state in states:
                out.print_json({**asdict(state), "can_stop": state.can_stop})
    if not all(state.can_stop for state in states):
        raise typer.Exit(opt.OPEN)


def _wait(draining: FlowDrain, deadline_s: float, *, quiet: bool) -> list[DrainState]:
    """Drain until all can be stopped, or the time is over; each news is printed once."""
    said: set[str] = set()
    while True:
        states = list(draining.step())
        for state in states:
            if state.sentence not in said and not quiet:
                said.add(state.sentence)
                typer.echo(out.printable(state.sentence))
        if all(state.can_stop for state in states) or time.monotonic() >= deadline_s:
            return states
        time.sleep(LOOK_S)


class _Waiting:
    """How many records wait in the sources of gates, asked of these."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def of(self, name: str) -> int | None:
        """Of one gate, asked now; None where the source does not answer."""
        gate = self._ledger.gates.get(name)
        if gate is None:
            return None
        history = GateHistory.read(self._ledger, gate)
        if not history.batches:
            return None
        return SourceLags(self._ledger).of([history])[name]


def _act(
    ledger: str,
    gates: Sequence[str] | None,
    flow: str | None,
    as_json: bool,
    act: Callable[[Ledger, str], Control],
    *,
    all_stages: bool = False,
) -> None:
    chosen = _chosen(gates, flow)
    with _opened(ledger, chosen) as opened:
        for each in chosen.gates if all_stages else chosen.first:
            control = act(opened, each)
            if as_json:
                out.print_json(control_values(control))
            else:
                typer.echo(out.printable(_sentence(opened, control)))


def _chosen(gates: Sequence[str] | None, flow: str | None) -> Chosen:
    if bool(gates) == (flow is not None):
        raise OptionError("Name one or more gates, or a --flow, and not both.")
    if flow is None:
        names = list(dict.fromkeys(gates or ()))
        return Chosen(names, dict.fromkeys(names, ()))
    found = load_flow(flow)
    order = [name for layer in found.graph.layers() for name in layer]
    upstream = {
        found.gate(name): tuple(map(found.gate, found.graph.upstream(name))) for name in order
    }
    return Chosen(list(upstream), upstream)


def _opened(url: str, chosen: Chosen) -> Ledger:
    """The ledger, which has all of these gates: either all of them are changed, or none."""
    # What is to be changed is there already: a ledger that is not is never made here.
    with Ledger.open(url, create=False) as reader:
        for each in chosen.gates:
            opt.gates_of(reader, each, url)
    return Ledger.join(url)


def _by(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise OptionError("The user has no name here; say with --by who does it.") from error


def _rate(text: str) -> float | None:
    """The records/s of a limit; None for ``off``."""
    if text.strip().lower() == "off":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(
            f"The limit is {text!r}; give a number of records/s above 0, or: off."
        ) from error


def control_values(control: Control) -> dict[str, Any]:
    """What is in force for a gate, for JSON; times are ms since the epoch."""
    return {**asdict(control), "seen": control.seen, "described": control.describe()}


def _sentence(ledger: Ledger, control: Control) -> str:
    described = control.describe() or "under no control"
    if ledger.gates.query(control.gate) is None:
        when = "no query runs behind it now"
    else:
        when = "in force at its next plan"
    return f"{control.gate}: {described}; {when}."
