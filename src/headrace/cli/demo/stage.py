"""Run a gated query for a while, watch it, and stop it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, RenderableType

from headrace.cli.demo.show import Show, picture
from headrace.cli.snapshot import GateHistory, GateSnapshot, take_snapshot
from headrace.cli.status import write_picture
from headrace.cli.words import duration, plural
from headrace.errors import HeadraceError
from headrace.execution import Gate, Handler
from headrace.ledger import Ledger

GATE: Final = "headrace-demo"
LOOK_EVERY_S: Final = 0.25
CLOSING_S: Final = 4
"""What starting the query and ending everything takes."""

SHORTEST_S: Final = 6
EVERYTHING: Final = 10_000
"""More batches than a demo has."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is shown at a moment.

    Attributes:
        title: In words.
        is_best: Whether this is what a picture of the demo should show.
    """

    title: str
    is_best: bool


class Director(Protocol):
    """Leads one demo."""

    def direct(self, elapsed_s: float, snapshot: GateSnapshot | None) -> Scene | None:
        """Do what is due now, and say what is shown; None ends the demo."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a demo takes place.

    Attributes:
        spark: The session.
        folder: For the checkpoint.
        ledger_url: The gate's ledger.
        console: Where it is seen.
        picture_file: Where the picture of its best moment is written; None for nowhere.
        ends_s: When the demo is to be over, on `time.monotonic`'s clock.
    """

    spark: SparkSession
    folder: Path
    ledger_url: str
    console: Console
    picture_file: Path | None
    ends_s: float

    def seconds_left(self) -> float:
        """The time for the query: what the start has left of the whole, but enough to see it."""
        return max(self.ends_s - time.monotonic() - CLOSING_S, SHORTEST_S)

    def run(
        self,
        source: str,
        interval: timedelta,
        options: Mapping[str, str],
        handler: Handler,
        director: Director,
    ) -> None:
        """Run the query on this source, with batches of this interval, until the director ends it.

        Raises:
            HeadraceError: It cannot start, or stops by itself.
        """
        gate = Gate(GATE, interval=interval, ledger=self.ledger_url)
        orders = gate.read(self.spark, source).options(**options).load()
        writer = gate.write(orders, handler).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        with Ledger.open(self.ledger_url) as ledger, Show(self.console) as show:
            query = writer.start()
            shown = self._watch(query, ledger, show, director)
            # After an error it ends with its session.
            query.stop()
        if self.picture_file is not None and shown is not None:
            write_picture(shown, self.picture_file, "headrace demo")

    def _watch(
        self, query: StreamingQuery, ledger: Ledger, show: Show, director: Director
    ) -> RenderableType | None:
        """Show the query until its end; the answer is the picture of the best moment, if any."""
        began_s = time.monotonic()
        best, is_best = None, False
        while True:
            elapsed_s = time.monotonic() - began_s
            snapshot = _look(ledger)
            scene = director.direct(elapsed_s, snapshot)
            if scene is None:
                return best
            if (error := query.exception()) is not None:
                raise HeadraceError(f"The demo's query stopped: {_cause(error)}")
            show.update(elapsed_s, scene.title, snapshot)
            if not is_best and snapshot is not None:
                best, is_best = picture(elapsed_s, scene.title, snapshot), scene.is_best
            time.sleep(LOOK_EVERY_S)


def told_of_batches(ledger_url: str) -> str:
    """How long the batches of the demo's newest run took, in a sentence."""
    with Ledger.open(ledger_url) as ledger:
        batches = ledger.batches(GATE, EVERYTHING)
        newest = {batch.schedule_id for batch in batches if batch.run_id == batches[0].run_id}
        samples = ledger.rates(GATE, EVERYTHING)
        intervals_ms = [gate.interval_ms for gate in ledger.gates() if gate.name == GATE]
    took_ms = [each.processing_delay_ms for each in samples if each.schedule_id in newest]
    if len(took_ms) < 2:
        return f"{plural(len(took_ms), 'batch')} ended."
    *later, first = took_ms
    return (
        f"The first batch, with Spark still starting, took {duration(first)}; the "
        f"{plural(len(later), 'batch')} after it {duration(median(later))} at the median and "
        f"{duration(max(later))} at most, for an interval of {duration(intervals_ms[0])}."
    )


def _look(ledger: Ledger) -> GateSnapshot | None:
    """The gate's snapshot, once its source has declared it."""
    for gate in ledger.gates():
        if gate.name == GATE:
            return take_snapshot(GateHistory.read(ledger, gate), time.time_ns() // 1_000_000)
    return None


def _cause(error: Exception) -> str:
    """The line of Spark's message that says what happened: of a Python trace it is the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if ("Error" in line or "Exception" in line)]
    return (causes or lines or ["it does not say why"])[-1]
