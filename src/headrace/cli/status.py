"""``headrace status``: how the gates in a ledger fare, and the stages of flows that run."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli import printing as out
from headrace.cli.gate_view import gate_view, overview
from headrace.cli.shared_options import DEFAULT_LEDGER, AsJson, LedgerUrl, Picture, gates_of
from headrace.cli.snapshot import GateHistory, GateSnapshot, take_snapshot
from headrace.core.clock import wall_clock_ms
from headrace.core.ranges import OffsetRange
from headrace.errors import HeadraceError
from headrace.flow.signals.codec import bottlenecks
from headrace.flow.signals.ledger_transport import ledger_states
from headrace.ledger import Ledger, PlannedRange

REFRESH_S: Final = 1.0

WAIT_FOR_SOURCES_S: Final = 3.0
"""How long a picture waits for the sources' answers; a later one is in a later picture."""

ASK_AGAIN_S: Final = 10.0

_BOTTLENECK: Final = "bottleneck"
_STAGE_STYLES: Final = {"throttled": "yellow", _BOTTLENECK: "red"}


def status(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only this gate, in full.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    svg: Picture = None,
) -> None:
    """Show how the gates in a ledger fare: lag, rate, batch times, and what limits them.

    Where no batch has come for a while it asks the brokers or the journal what waits there now, if
    they answer without secrets, and says how old the last figure is.
    Of flows that run it shows each stage too: its queue, what throttles it, and the bottleneck.
    """
    with Ledger.open(ledger, create=False) as opened:
        sources = SourceLags(opened)

        def look() -> tuple[list[GateSnapshot], list[StageSnapshot]]:
            now_ms = wall_clock_ms()
            histories = [GateHistory.read(opened, each) for each in gates_of(opened, gate, ledger)]
            lag_now = sources.of([each for each in histories if each.is_silent(now_ms)])
            gates = [take_snapshot(each, now_ms, lag_now.get(each.gate.name)) for each in histories]
            return gates, stages_of(opened) if gate is None else []

        if svg is not None:
            out.write_picture(status_view(*look()), svg, "headrace status")
        console = Console()
        if watch and console.is_terminal and not as_json:
            _watch(console, lambda: status_view(*look()))
        while True:
            if as_json:
                for group in look():
                    for each in group:
                        out.print_json(asdict(each))
            else:
                console.print(status_view(*look()))
            if not watch:
                break
            time.sleep(REFRESH_S)


def _watch(console: Console, draw: Callable[[], RenderableType]) -> None:
    with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(), refresh=True)
            time.sleep(REFRESH_S)


class SourceLags:
    """What waits in the sources of gates now, asked of the brokers or the journal itself.

    The ledger knows the lag of the newest batch, when that was planned. Sources are asked without
    secrets, for the ledger has none: brokers that want some do not answer. Each is asked in its
    own thread, and not more often than needed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._answers: dict[str, tuple[float, int | None]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def of(self, histories: Sequence[GateHistory]) -> dict[str, int | None]:
        """How many records no batch has begun yet, by gate; None where that is not known."""
        for history in histories:
            gate = history.gate.name
            asked_s, _ = self._answers.get(gate, (-ASK_AGAIN_S, None))
            running = gate in self._threads and self._threads[gate].is_alive()
            if running or time.monotonic() - asked_s < ASK_AGAIN_S:
                continue
            # In threads that nobody waits for in the end: a broker that hangs holds up nothing.
            self._threads[gate] = threading.Thread(target=self._question(history), daemon=True)
            self._threads[gate].start()
        deadline = time.monotonic() + WAIT_FOR_SOURCES_S
        for history in histories:
            if history.gate.name not in self._answers:
                self._threads[history.gate.name].join(max(deadline - time.monotonic(), 0))
        return {
            each.gate.name: self._answers.get(each.gate.name, (0, None))[1] for each in histories
        }

    def _question(self, history: GateHistory) -> Callable[[], None]:
        """What asks where the partitions end that the gate has read; the ledger is read now."""
        # It imports pyspark, which takes a second; a gate that is at work does without.
        from headrace.execution.spark_session import connector_of  # noqa: PLC0415

        servers = self._ledger.batches.servers(history.batches[0].schedule_id)
        begun = _begun(self._ledger, history)
        until = {each.offsets.topic_partition: each.offsets.until for each in begun}

        def ask() -> None:
            waiting = None
            try:
                connector = connector_of(history.gate.source)
                ends = connector.ends(connector.located({}, servers), begun)
            except HeadraceError:
                ends = {}
            if ends:
                waiting = sum(max(end - until[each], 0) for each, end in ends.items())
            self._answers[history.gate.name] = time.monotonic(), waiting

        return ask


def _begun(ledger: Ledger, history: GateHistory) -> list[PlannedRange]:
    """Up to where the gate has begun to read, in the topics of its newest batch."""
    found = {each.offsets.topic_partition: each for each in history.ranges}
    for topic, topic_id in {(each.offsets.topic, each.topic_id) for each in history.ranges}:
        for number, until in ledger.receivers.stream_rate(
            history.gate.name, topic_id or ""
        ).begun.items():
            offsets = OffsetRange(topic, number, 0, until)
            known = found.get(offsets.topic_partition)
            if until and (known is None or known.offsets.until < until):
                found[offsets.topic_partition] = PlannedRange(offsets, topic_id=topic_id)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at one moment, in ``headrace status --json`` one object for each, after the gates.

    Attributes:
        flow: The flow's name.
        stage: The stage's.
        state: ``free``, ``throttled``, or ``bottleneck``: it throttles others, and nobody it.
        throttled_by: The stage directly after it that throttles it; None while it is free.
        throttle_level: How hard; 0 while it is free.
        rate_per_s: The rate that its gate has learnt (records/s); None while there is none.
        rate_limit_per_s: What it may emit at most under pressure; None while it is free.
        queue_bytes: What waits on its channel; None where that is not known.
        missing_upstream: A stage directly before it that does not run; None while all of them do.
    """

    flow: str
    stage: str
    state: str
    throttled_by: str | None
    throttle_level: float
    rate_per_s: float | None
    rate_limit_per_s: float | None
    queue_bytes: int | None
    missing_upstream: str | None


def stages_of(ledger: Ledger) -> list[StageSnapshot]:
    """The stages that run and publish their state in this ledger, by flow and name."""
    rates = {gate.name: gate.rate_per_s for gate in ledger.gates.all()}
    return [each for flow in ledger.signals.flows() for each in _stages(ledger, flow, rates)]


def _stages(ledger: Ledger, flow: str, rates: Mapping[str, float | None]) -> list[StageSnapshot]:
    states = ledger_states(ledger, flow)
    blamed = bottlenecks(states.values())
    return [
        StageSnapshot(
            flow=flow,
            stage=name,
            state=_BOTTLENECK if name in blamed else "throttled" if state.throttled_by else "free",
            throttled_by=state.throttled_by,
            throttle_level=state.throttle_level,
            rate_per_s=rates.get(f"{flow}.{name}"),
            rate_limit_per_s=state.rate_limit_per_s,
            queue_bytes=state.queue_bytes,
            missing_upstream=state.missing_upstream,
        )
        for name, state in sorted(states.items())
    ]


def status_view(gates: Sequence[GateSnapshot], stages: Sequence[StageSnapshot]) -> RenderableType:
    """One gate in full, or a line for each; below them a line for each stage."""
    if not gates:
        return "The ledger has no gate yet; a gated query declares its own when it starts."
    shown = gate_view(gates[0]) if len(gates) == 1 else overview(gates)
    return Group(shown, Text(), stages_view(stages)) if stages else shown


def stages_view(stages: Sequence[StageSnapshot]) -> RenderableType:
    """A line for each stage; then the bottlenecks, and stages to which nothing comes."""
    shown = out.table(
        stages,
        ("flow", lambda each: out.line(each.flow)),
        ("stage", lambda each: out.line(each.stage, style="bold")),
        ("state", lambda each: Text(each.state, style=_STAGE_STYLES.get(each.state, "green"))),
        (">queue", lambda each: out.size(each.queue_bytes)),
        (">rate/s", lambda each: out.count(each.rate_per_s)),
        (">at most", lambda each: out.count(each.rate_limit_per_s)),
        ("*throttled by", lambda each: out.line(each.throttled_by or out.UNKNOWN)),
    )
    blamed = [
        out.line(f"Look at stage {each.stage} of flow {each.flow}: it throttles the others.", "red")
        for each in stages
        if each.state == _BOTTLENECK
    ]
    alone = [
        out.line(
            f"Nothing comes to stage {each.stage} of flow {each.flow} from stage"
            f" {each.missing_upstream}, which does not run.",
            "yellow",
        )
        for each in stages
        if each.missing_upstream is not None
    ]
    return Group(shown, *blamed, *alone)
