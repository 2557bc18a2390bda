"""Run a gated query for a while, watch it, and stop it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from headgate.cli.demo.show import Show, picture
from headgate.cli.snapshot import GateHistory, GateSnapshot, take_snapshot
from headgate.cli.status import write_picture
from headgate.cli.words import duration, plural
from headgate.errors import HeadgateError
from headgate.gate import Gate, Handler
from headgate.ledger import Ledger

GATE: Final = "headgate-demo"
INTERVAL: Final = "1 second"
LOOK_EVERY_S: Final = 0.25
EVERYTHING: Final = 10_000
"""More batches than a demo has."""


class Director(Protocol):
    """Leads one demo."""

    def direct(self, elapsed_s: float, snapshot: GateSnapshot | None) -> str | None:
        """Do what is due now, and say what is being shown; None ends the demo."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a demo takes place.

    Attributes:
        spark: The session.
        folder: For the checkpoint.
        ledger_url: The gate's ledger.
        console: Where it is seen.
        picture_file: Where the picture of one moment is written; None for nowhere.
        picture_s: That moment (seconds after the start).
    """

    spark: SparkSession
    folder: Path
    ledger_url: str
    console: Console
    picture_file: Path | None
    picture_s: float

    def run(self, options: Mapping[str, str], handler: Handler, director: Director) -> None:
        """Run the query until the director ends it.

        Raises:
            HeadgateError: It cannot start, or stops by itself.
        """
        gate = Gate(GATE, interval=INTERVAL, ledger=self.ledger_url)
        orders = gate.read(self.spark, "kafka").options(**options).load()
        writer = gate.write(orders, handler).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        with Ledger.open(self.ledger_url) as ledger, Show(self.console) as show:
            query = writer.start()
            try:
                self._watch(query, ledger, show, director)
            finally:
                query.stop()

    def _watch(self, query: StreamingQuery, ledger: Ledger, show: Show, director: Director) -> None:
        began_s, pictured = time.monotonic(), self.picture_file is None
        while True:
            elapsed_s = time.monotonic() - began_s
            snapshot = _look(ledger)
            title = director.direct(elapsed_s, snapshot)
            if title is None:
                return
            if (error := query.exception()) is not None:
                raise HeadgateError(f"The demo's query stopped: {_cause(error)}")
            if snapshot is not None:
                show.update(elapsed_s, title, snapshot)
                if not pictured and self.picture_file and elapsed_s >= self.picture_s:
                    shown = picture(elapsed_s, title, snapshot)
                    write_picture(shown, self.picture_file, "headgate demo")
                    pictured = True
            time.sleep(LOOK_EVERY_S)


def told_of_batches(ledger_url: str) -> str:
    """How long the batches of the demo's newest run took, in a sentence."""
    with Ledger.open(ledger_url) as ledger:
        batches = ledger.batches(GATE, EVERYTHING)
        newest = {batch.schedule_id for batch in batches if batch.run_id == batches[0].run_id}
        samples = ledger.rates(GATE, EVERYTHING)
        (gate,) = (gate for gate in ledger.gates() if gate.name == GATE)
    took_ms = [each.processing_delay_ms for each in samples if each.schedule_id in newest]
    if not took_ms:
        return "No batch ended."
    return (
        f"{plural(len(took_ms), 'batch')} took {duration(median(took_ms))} at the median and "
        f"{duration(max(took_ms))} at most, for an interval of {duration(gate.interval_ms)}."
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
