"""The demos: orders of our own, through a place of our own or the user's; or a topic as it is."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headrace.cli.demo.audit import OffsetAudit, OrderAudit
from headrace.cli.demo.orders import OrderBook
from headrace.cli.demo.places import Place
from headrace.cli.demo.producer import OrderProducer
from headrace.cli.demo.rehearsal import rehearse
from headrace.cli.demo.script import COST_S, LATENESS_S, SLOWDOWN, Phase, Script
from headrace.cli.demo.stage import Scene, Stage
from headrace.cli.demo.work import CountingHandler, OrderHandler
from headrace.cli.printing import count, plural
from headrace.cli.snapshot import GateSnapshot
from headrace.source.options import MIN_RATE_PER_S

SEED: Final = 20_260_101


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a demo ended.

    Attributes:
        passed: Whether every record arrived exactly once.
        sentence: What was counted.
    """

    passed: bool
    sentence: str


def orders_demo(stage: Stage, place: Place) -> Outcome:
    """Send orders to a place, process them from there, and count them.

    Raises:
        HeadraceError: Something on the way fails.
    """
    positions = place.ends()
    stage.console.print("Rehearsing the handler, to see how fast this machine is")
    script = rehearse(stage.spark, stage.seconds_left)
    book = OrderBook(f"shop-{uuid.uuid4().hex[:8]}", SEED, len(positions))
    audit = OrderAudit()
    handler = OrderHandler(book.shop, audit, COST_S)
    with OrderProducer(place.sender(), book) as producer:
        stage.console.print(
            f"Writing a backlog of {plural(script.backlog, 'order')}; "
            f"{count(script.orders_per_s)} more will come each second"
        )
        producer.fill(script.backlog)
        rate_per_s = max(round(script.orders_per_s / 2), MIN_RATE_PER_S)
        initial_rate = {"backpressure.initialRate": str(rate_per_s)}
        stage.run(
            place.source,
            timedelta(seconds=script.interval_s),
            {**place.options(positions), **initial_rate},
            handler,
            OrdersDirector(script, producer, handler, audit),
        )
        producer.stop()
    handler.close()
    ends = place.ends()
    waiting = sum(ends[tp] - handler.positions.get(tp, begin) for tp, begin in positions.items())
    finding = audit.finding(producer.produced, waiting)
    told = f"{count(finding.expected)} orders produced, {count(finding.arrived)} arrived"
    if waiting:
        told += f", {count(waiting)} still wait in {place.name}"
    return Outcome(finding.passed, f"{told}: {finding}.")


class OrdersDirector:
    """Goes on producing, slows the handler down for a while, and ends when every order is there."""

    def __init__(
        self, script: Script, producer: OrderProducer, handler: OrderHandler, audit: OrderAudit
    ) -> None:
        self._script = script
        self._producer = producer
        self._handler = handler
        self._audit = audit
        self._warm_s: float | None = None
        self._draining = False

    def direct(self, elapsed_s: float, snapshot: GateSnapshot | None) -> Scene | None:
        """Do what the script says for this moment."""
        if self._warm_s is None and self._audit.arrived:
            self._warm_s = elapsed_s
            self._producer.start(self._script.orders_per_s)
        self._producer.check()
        # The first batch waits for processes to start: nothing to show the gate by.
        played_s = 0.0 if self._warm_s is None else elapsed_s - self._warm_s
        phase = self._phase(played_s, snapshot)
        self._handler.slowdown = SLOWDOWN if phase is Phase.SLOW else 1
        if phase is Phase.DRAINING:
            self._producer.stop()
            if self._audit.arrived >= self._producer.produced:
                return None
        if self._script.is_over(elapsed_s):
            return None
        title = (
            f"{phase} · {count(self._producer.produced)} orders produced"
            f" · {count(self._audit.arrived)} arrived"
        )
        return Scene(title, self._script.is_best(played_s))

    def _phase(self, played_s: float, snapshot: GateSnapshot | None) -> Phase:
        """The script's phase; but a demo that has begun to end does not go back."""
        left_over = (snapshot.left_over or 0) if snapshot else 0
        throughput_per_s = snapshot.throughput_per_s if snapshot else None
        phase = self._script.phase(played_s, left_over, throughput_per_s)
        self._draining |= phase is Phase.DRAINING
        return Phase.DRAINING if self._draining else phase


def topic_demo(stage: Stage, place: Place) -> Outcome:
    """Read a topic from its beginning for a while, and count its records; nothing is written to it.

    Raises:
        HeadraceError: Something on the way fails.
    """
    audit = OffsetAudit()
    stage.run(
        place.source,
        timedelta(seconds=1),
        place.options(None),
        CountingHandler(audit),
        TopicDirector(stage.seconds_left(), audit),
    )
    finding = audit.finding()
    told = f"{plural(audit.arrived, 'record')} arrived from {plural(audit.offsets, 'offset')}"
    return Outcome(finding.passed, f"{told}: {finding}.")


class TopicDirector:
    """Ends when the time is over, which begins with the first records."""

    def __init__(self, seconds: float, audit: OffsetAudit) -> None:
        self._seconds = seconds
        self._audit = audit
        self._warm_s: float | None = None

    def direct(self, elapsed_s: float, snapshot: GateSnapshot | None) -> Scene | None:
        """Look at the clock."""
        if self._warm_s is None and self._audit.arrived:
            self._warm_s = elapsed_s
        played_s = 0.0 if self._warm_s is None else elapsed_s - self._warm_s
        if played_s >= self._seconds or elapsed_s >= self._seconds + LATENESS_S:
            return None
        title = f"reading · {plural(self._audit.arrived, 'record')} arrived"
        return Scene(title, played_s >= self._seconds / 2)
