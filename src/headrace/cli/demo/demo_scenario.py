"""The demo's course: its services, its query, what happens when, and what is shown."""

import logging
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli.demo.orders import OrderHandler, OrderSender, missing_and_twice
from headrace.cli.demo.targets import GATE, Target, broker_target, receiver_target
from headrace.cli.gate_view import gate_view
from headrace.cli.interrupts import ENDS, leave
from headrace.cli.printing import UNKNOWN, count, duration, plural, write_picture
from headrace.control import LawName
from headrace.core.clock import wall_clock_ms
from headrace.errors import HeadraceError
from headrace.execution import Batch, Gate
from headrace.ledger import Ledger
from headrace.local import ensure_java
from headrace.local.session import local_spark
from headrace.operations.gate_history import GateHistory
from headrace.operations.snapshot import GateSnapshot, take_snapshot

INTERVAL_S: Final = 2
ORDERS_PER_S: Final = 1_500
"""Less than half of what the handler can process, and more than it can when it is slow."""

MIN_RATE_PER_S: Final = 500
"""Less than even a slow handler can process: from a slow first batch on, the way up is short."""

BACKLOG_S: Final = 400
"""Orders that wait at the start, for each second of the demo."""

SLOWDOWN: Final = 4
"""How many times slower the handler becomes."""

SLOW_FROM, SLOW_UNTIL, PRODUCE_UNTIL = 0.40, 0.60, 0.88
"""Parts of the time for which the query runs."""

LATENESS_S: Final = 30
"""How long after its time the demo waits for the last orders, on a machine with other work."""

_SHORTEST_S, _CLOSING_S, _LOOK_S = 6.0, 4.0, 0.25


def phase_at(part: float, left_over: int) -> str:
    """What happens at a part of the time, where the last batch left so many orders waiting."""
    if part >= PRODUCE_UNTIL:
        return "draining"
    if SLOW_FROM <= part < SLOW_UNTIL:
        return f"slow handler x{SLOWDOWN}"
    if left_over == 0:
        return "steady"
    return "backlog" if part < SLOW_FROM else "recovering"


def run_demo(
    *, broker: bool, seconds: float, svg: Path | None, ledger: str | None, console: Console
) -> bool:
    """Run the demo; whether every order arrived exactly once. Nothing of it goes on running."""
    for number in ENDS:
        signal.signal(number, leave)
    logging.getLogger().addHandler(logging.NullHandler())  # the screen is the demo's
    ends_s = time.monotonic() + seconds - _CLOSING_S
    with ExitStack() as cleanup:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-")
            folder = Path(cleanup.enter_context(temporary))
            ensure_java()
            url = ledger or f"sqlite:///{folder}/headrace.db"
            target = cleanup.enter_context(
                broker_target(console) if broker else receiver_target(console, folder, url)
            )
            console.print("Starting Spark")
            spark = cleanup.enter_context(local_spark(folder, "headrace demo", 2))
            remaining_s = max(ends_s - time.monotonic(), _SHORTEST_S)
            scenario = DemoScenario(target, folder, url, remaining_s, console)
            passed, summary = scenario.run(spark)
            if svg is not None:
                write_picture(scenario.best, svg, "headrace demo")
        finally:
            # Closing goes on, however often the user presses Ctrl-C.
            for number in (signal.SIGINT, *ENDS):
                signal.signal(number, signal.SIG_IGN)
    console.print(summary, soft_wrap=True)
    return passed


@dataclass(slots=True)
class DemoScenario:
    """A backlog, a handler that becomes slow for a while, the way back, and the count."""

    target: Target
    folder: Path
    ledger_url: str
    seconds: float
    console: Console
    best: RenderableType = ""

    def run(self, spark: SparkSession) -> tuple[bool, str]:
        """Run the query until its end; whether every order arrived once, and what was counted."""
        backlog = round(BACKLOG_S * self.seconds)
        self.console.print(
            f"Writing a backlog of {plural(backlog, 'order')};"
            f" {count(ORDERS_PER_S)} more will come each second"
        )
        # Spark's first jobs take longer than any others.
        warm_up = spark.createDataFrame([(b"{}",)], "value binary")
        OrderHandler()(warm_up, Batch("warm-up", 0, (), 1, "live", 1))
        handler = OrderHandler()
        rates = {
            "backpressure.rateEstimator": LawName.LEARNED,
            "backpressure.pid.minRate": str(MIN_RATE_PER_S),
        }
        gate = Gate(GATE, interval=timedelta(seconds=INTERVAL_S), ledger=self.ledger_url)
        with OrderSender(self.target) as sender, Ledger.open(self.ledger_url) as ledger:
            sender.send(backlog)
            reader = gate.read(spark, self.target.source)
            df = reader.options(**self.target.options, **rates).load()
            writer = gate.write(df, handler)
            query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
            self._watch(query, ledger, sender, handler)
            query.stop()
            sender.stop()
            took_ms = [each.processing_delay_ms for each in ledger.rates.history(GATE, 10_000)]
        ends = self.target.ends()
        waiting = sum(end - handler.positions.get(tp, 0) for tp, end in ends.items())
        missing, twice = missing_and_twice(handler.times, sender.produced, waiting)
        still = f", {count(waiting)} still wait in {self.target.name}" if waiting else ""
        return missing == twice == 0, (
            f"{count(sender.produced)} orders produced, {count(handler.arrived)} arrived{still}:"
            f" {count(missing) if missing else 'none'} missing,"
            f" {count(twice) if twice else 'none'} twice.\n"
            f"{plural(len(took_ms), 'batch')} took {duration(median(took_ms or [0]))} at the"
            f" median, for an interval of {duration(1000 * INTERVAL_S)}."
        )

    def _watch(
        self, query: StreamingQuery, ledger: Ledger, sender: OrderSender, handler: OrderHandler
    ) -> None:
        """Do what is due, and show the gate as ``headrace status`` does, until all has arrived."""
        began_s, warm_s, line_s, is_best = time.monotonic(), 0.0, 0.0, False
        with ExitStack() as shown:
            live = None
            if self.console.is_terminal:
                screen = Live(console=self.console, screen=True, auto_refresh=False)
                live = shown.enter_context(screen)
            while (elapsed_s := time.monotonic() - began_s) < self.seconds + LATENESS_S:
                if (error := query.exception()) is not None:
                    cause = str(error).strip().splitlines()[-1]  # the end of a Python trace
                    raise HeadraceError(f"The demo's query stopped: {cause}")
                sender.check()
                if not warm_s and handler.arrived:
                    # The first batch waits for processes to start: nothing to show the gate by.
                    warm_s = elapsed_s
                    sender.start(ORDERS_PER_S)
                snapshot = _snapshot(ledger)
                part = (elapsed_s - warm_s) / self.seconds if warm_s else 0.0
                phase = phase_at(part, (snapshot.left_over or 0) if snapshot else 0)
                handler.slowdown = SLOWDOWN if phase.startswith("slow") else 1
                if phase == "draining":
                    sender.stop()
                    if handler.arrived >= sender.produced:
                        return
                title = f"{phase} · {count(sender.produced)} orders produced"
                title += f" · {count(handler.arrived)} arrived"
                frame = _frame(elapsed_s, title, snapshot)
                if not is_best:
                    self.best, is_best = frame, part >= (SLOW_FROM + SLOW_UNTIL) / 2
                if live is not None:
                    live.update(frame, refresh=True)
                elif snapshot is not None and elapsed_s >= line_s:
                    self.console.print(_line(elapsed_s, title, snapshot), soft_wrap=True)
                    line_s = elapsed_s + 1
                time.sleep(_LOOK_S)


def _snapshot(ledger: Ledger) -> GateSnapshot | None:
    """The gate's snapshot, once its source has declared it."""
    gates = [gate for gate in ledger.gates.all() if gate.name == GATE]
    now_ms = wall_clock_ms()
    return take_snapshot(GateHistory.read(ledger, gates[0]), now_ms) if gates else None


def _frame(elapsed_s: float, title: str, snapshot: GateSnapshot | None) -> RenderableType:
    head = Text(f" {elapsed_s:3.0f} s  ", style="dim", no_wrap=True, overflow="ellipsis")
    head.append(title, style="bold")
    return Group(head, gate_view(snapshot) if snapshot else Text(" The query is starting."))


def _line(elapsed_s: float, title: str, snapshot: GateSnapshot) -> Text:
    """What a pipe gets of a frame."""
    newest_ms = snapshot.batches[0].duration_ms if snapshot.batches else None
    return Text(
        f"{elapsed_s:5.1f} s  {title} · {snapshot.state} · lag {count(snapshot.lag)}"
        f" · rate {count(snapshot.rate_per_s)}/s · batch {duration(newest_ms)} of"
        f" {duration(snapshot.interval_ms)} · limited by: {snapshot.reason or UNKNOWN}"
    )
