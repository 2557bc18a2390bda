"""``headrace status`` and ``headrace why``: the state of a ledger's gates, as text."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import Ledger
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.gate_view import GateView, needs_view, overview
from headrace.operate.cli.printing import Watch, show_or_watch
from headrace.operate.status import words
from headrace.operate.status.explanation import Explanation, explain
from headrace.operate.status.lags import LagWatch
from headrace.operate.status.moment import snapshots
from headrace.operate.status.needs import urgency_of
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.sources import Sources
from headrace.operate.status.stages import BOTTLENECK, StageSnapshot, flow_needs, stages_of

NEEDS: Final = 20
"""The view shows at most this many needs (problems). A last line counts further needs."""

FEWEST_GATES: Final = 3
"""Number of gates that are shown even if the terminal has too few lines for them."""

_STAGE_STYLES: Final = {"throttled": "yellow", BOTTLENECK: "red"}


def status(
    *,
    gate: opt.Gates = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    flow: opt.FlowName = None,
    watch: Watch = False,
    as_json: opt.AsJson = False,
) -> None:
    """Show problems that need an operator, then each gate: lag, rate, batch times, limits.

    If a gate has planned no batch for a while, the command asks the Kafka brokers or the journal
    for the number of waiting records. Sources that require secrets do not answer. A lag that is not
    current is shown with its age.
    For flows that run, the command also shows the stages: queue, throttle and bottleneck.
    """
    if gate and flow is not None:
        raise OptionError("Gates and --flow are both named; name gates or a --flow.")
    wanted = None if flow is None else opt.load_flow(flow)
    url = ledger if wanted is None else opt.ledger_of_flow(wanted, ledger)
    with Ledger.open(url, create=False) as opened:
        lags = LagWatch(Sources())

        def look() -> tuple[list[GateSnapshot], list[StageSnapshot]]:
            if wanted is None:
                gates = snapshots(opened, opt.named_gates(opened, gate, url), lags)
                return gates, [] if gate else stages_of(opened, wall_clock_ms())
            names = [wanted.gate(name) for layer in wanted.graph.layers() for name in layer]
            records = [item for item in opt.gates_of(opened, None, url) if item.name in names]
            if not records:
                opt.gates_of(opened, names[0], url)  # raises an error with the existing gates
            records.sort(key=lambda item: names.index(item.name))
            stages = [
                item for item in stages_of(opened, wall_clock_ms()) if item.flow == wanted.name
            ]
            return snapshots(opened, records, lags), stages

        def draw(height: int | None) -> RenderableType | None:
            gates, stages = look()
            if not as_json:
                return status_view(gates, stages, height)
            for gate_now in gates:
                out.print_json(asdict(gate_now))
            for stage in stages:
                out.print_json(asdict(stage))
            return None

        show_or_watch(draw, watch=watch)


def status_view(
    gates: Sequence[GateSnapshot], stages: Sequence[StageSnapshot], height: int | None = None
) -> RenderableType:
    """Return the view of a ledger: needs (problems), gates, and stages of flows.

    A single gate is shown in full, and several gates with a line each. ``height`` is the terminal's
    number of lines; if it is too small, only the most urgent needs and gates are shown.
    """
    if not gates:
        return "The ledger has no gate yet; a gated query declares its gate when it starts."
    last = [Text(), stages_view(stages, wall_clock_ms())] if stages else []
    is_one = len(gates) == 1  # a single gate's view begins with its needs
    needs = [need for snapshot in gates if not is_one for need in snapshot.needs]
    needs = sorted([*needs, *flow_needs(stages)], key=lambda need: need.urgency)
    room = NEEDS if height is None else max(height // 4, 1)
    first = [needs_view(needs, room), Text()] if needs else []
    if is_one:
        return Group(*first, GateView(gates[0]), *last)
    left = len(gates)
    if height is not None:
        left = max(height - 2 * min(len(needs), room) - 6, FEWEST_GATES)
    some = sorted(gates, key=urgency_of)[:left]
    return Group(*first, overview(some, len(gates) - len(some)), *last)


def _throttled_by(stage: StageSnapshot, now_ms: int) -> str:
    if stage.throttled_by is None:
        return words.UNKNOWN
    if stage.throttled_since_ms is None:
        return stage.throttled_by
    return f"{stage.throttled_by} for {words.duration(max(now_ms - stage.throttled_since_ms, 0))}"


def stages_view(stages: Sequence[StageSnapshot], now_ms: int) -> RenderableType:
    """Return a table of stages: state, queue, busy time, rates, and throttle at ``now_ms``."""
    return out.table(
        stages,
        ("flow", lambda stage: out.line(stage.flow)),
        ("stage", lambda stage: out.line(stage.stage, style="bold")),
        ("state", lambda stage: Text(stage.state, style=_STAGE_STYLES.get(stage.state, "green"))),
        (">queue", lambda stage: words.size(stage.queue_bytes)),
        (">busy", lambda stage: f"{stage.busy:.0%}"),
        (">rate/s", lambda stage: words.count(stage.in_force_per_s)),
        (">learnt", lambda stage: words.count(stage.rate_per_s)),
        ("*throttled by", lambda stage: out.line(_throttled_by(stage, now_ms))),
    )


def why(
    *,
    gate: opt.TheGate = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Explain the batch with this number in Spark: 1234."),
    ] = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Explain the size of a gate's last batch: lag, rate, terms of the law, caps, operator limits.

    The ledger does not keep the cost of each batch, so the explanation has the cost that is known
    now.
    """
    with Ledger.open(ledger, create=False) as opened:
        record = opt.the_gate(opened, gate, ledger, say=True)
        explanation = explain(opened, record, batch)
    gate = record.name
    if explanation is None and batch is None:
        raise OptionError(f"Gate {gate!r} has planned no batch yet; there is nothing to explain.")
    if explanation is None:
        raise OptionError(
            f"Gate {gate!r} has no batch {batch}; `headrace batches {shlex.quote(gate)}` lists"
            " the gate's batches."
        )
    if as_json:
        out.print_json(asdict(explanation))
    else:
        out.show(explanation_view(explanation))


def explanation_view(found: Explanation) -> Table:
    """Return a table with a heading and a sentence for each cause in an explanation."""
    return out.grid(
        (Text(item.about, style="dim"), Text(words.printable(item.sentence)))
        for item in found.sentences
    )
