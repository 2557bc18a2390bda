"""The demos: orders of our own, on a broker of our own or the user's; or a topic as it is."""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from headgate.cli.demo.audit import OffsetAudit, OrderAudit
from headgate.cli.demo.orders import PARTITION_WEIGHTS, OrderBook
from headgate.cli.demo.producer import OrderProducer
from headgate.cli.demo.rehearsal import rehearse
from headgate.cli.demo.script import COST_S, LATENESS_S, SLOWDOWN, Phase, Script
from headgate.cli.demo.stage import Scene, Stage
from headgate.cli.demo.work import CountingHandler, OrderHandler
from headgate.cli.snapshot import GateSnapshot
from headgate.cli.words import count, plural
from headgate.control import TopicPartition
from headgate.errors import SourceError
from headgate.kafka.lookup import Lookup
from headgate.local import KafkaBroker, ensure_java, kafka_server_jars
from headgate.source.positions import nested, partitions_of

SEED: Final = 20_260_101
TOPIC: Final = "orders"


@dataclass(frozen=True, slots=True)
class Target:
    """A topic to read."""

    servers: str
    topic: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a demo ended.

    Attributes:
        passed: Whether every record arrived exactly once.
        sentence: What was counted.
    """

    passed: bool
    sentence: str


@contextmanager
def own_broker(console: Console) -> Iterator[Target]:
    """A broker that is there for the demo only, with an empty topic.

    Raises:
        SetupError: There is no Java, no jars can be fetched, or the broker does not start.
    """
    java = ensure_java()
    jars = kafka_server_jars(java, console.print)
    console.print("Starting a Kafka broker")
    with KafkaBroker(java, jars) as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        new = NewTopic(TOPIC, len(PARTITION_WEIGHTS), 1)
        admin.create_topics([new])[TOPIC].result(30)
        yield Target(servers, TOPIC)


def latest_offsets(target: Target) -> dict[TopicPartition, int]:
    """Where each partition of the topic ends.

    Raises:
        BrokerError: The brokers cannot be reached.
        SourceError: They have no such topic.
    """
    lookup = Lookup({"bootstrap.servers": target.servers, "log_level": 0}, 3, 200)
    found = lookup.topics([target.topic])
    if not found:
        names = sorted(n for n in lookup.matching(re.compile(".*")) if not n.startswith("__"))
        raise SourceError(
            f"There is no topic {target.topic!r} at {target.servers}; "
            f"the topics there: {', '.join(names) or 'none'}."
        )
    topics = {name: topic.partitions for name, topic in found.items()}
    return lookup.latest(partitions_of(topics))


def orders_demo(stage: Stage, target: Target) -> Outcome:
    """Produce orders into the topic, process them, and count them.

    Raises:
        HeadgateError: Something on the way fails.
    """
    positions = latest_offsets(target)
    stage.console.print("Rehearsing the handler, to see how fast this machine is")
    script = rehearse(stage.spark, stage.seconds_left)
    book = OrderBook(f"shop-{uuid.uuid4().hex[:8]}", SEED, len(positions))
    audit = OrderAudit()
    handler = OrderHandler(book.shop, audit, COST_S)
    with OrderProducer(target.servers, target.topic, book) as producer:
        stage.console.print(
            f"Writing a backlog of {plural(script.backlog, 'order')}; "
            f"{count(script.orders_per_s)} more will come each second"
        )
        producer.fill(script.backlog)
        stage.run(
            timedelta(seconds=script.interval_s),
            {
                "kafka.bootstrap.servers": target.servers,
                "subscribe": target.topic,
                "startingOffsets": json.dumps(nested(positions)),
                "backpressure.initialRate": str(round(script.orders_per_s / 2)),
            },
            handler,
            OrdersDirector(script, producer, handler, audit),
        )
        producer.stop()
    handler.close()
    ends = latest_offsets(target)
    waiting = sum(ends[tp] - handler.positions.get(tp, begin) for tp, begin in positions.items())
    finding = audit.finding(producer.produced, waiting)
    told = f"{count(finding.expected)} orders produced, {count(finding.arrived)} arrived"
    if waiting:
        told += f", {count(waiting)} still wait in Kafka"
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


def topic_demo(stage: Stage, target: Target) -> Outcome:
    """Read a topic from its beginning for a while, and count its records; nothing is written to it.

    Raises:
        HeadgateError: Something on the way fails.
    """
    audit = OffsetAudit()
    stage.run(
        timedelta(seconds=1),
        {
            "kafka.bootstrap.servers": target.servers,
            "subscribe": target.topic,
            "startingOffsets": "earliest",
        },
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
