"""Where the demo's orders go in, and where its query reads them: a topic, or a journal."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from headrace.cli.demo.orders import PARTITION_WEIGHTS
from headrace.cli.demo.senders import HttpSender, KafkaSender, Sender
from headrace.cli.demo.stage import GATE
from headrace.control import TopicPartition
from headrace.errors import ReceiverError, SourceError
from headrace.journal import Journal
from headrace.kafka.lookup import Lookup
from headrace.local import KafkaBroker, ensure_java, kafka_server_jars
from headrace.source.positions import Positions, nested, partitions_of

TOPIC: Final = "orders"
_START_S: Final = 60
_STOP_S: Final = 20
_LOOK_S: Final = 0.1
_NO_LIMIT_PER_S: Final = 1_000_000


class Place(Protocol):
    """A topic or a journal."""

    @property
    def name(self) -> str:
        """What it is called in a sentence."""

    @property
    def source(self) -> str:
        """What ``Gate.read`` calls it."""

    def ends(self) -> Positions:
        """Where each partition ends now.

        Raises:
            HeadraceError: It cannot be reached, or is not there.
        """

    def options(self, begin: Positions | None) -> dict[str, str]:
        """The options with which it is read from these positions, or from its beginning."""

    def sender(self) -> Sender:
        """What takes orders there."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic of a Kafka broker."""

    servers: str
    topic: str
    name = "Kafka"
    source = "kafka"

    def ends(self) -> Positions:
        """See `Place.ends`.

        Raises:
            BrokerError: The brokers cannot be reached.
            SourceError: They have no such topic.
        """
        lookup = Lookup({"bootstrap.servers": self.servers, "log_level": 0}, 3, 200)
        found = lookup.topics([self.topic])
        if not found:
            names = sorted(n for n in lookup.matching(re.compile(".*")) if not n.startswith("__"))
            raise SourceError(
                f"There is no topic {self.topic!r} at {self.servers}; "
                f"the topics there: {', '.join(names) or 'none'}."
            )
        topics = {name: topic.partitions for name, topic in found.items()}
        return lookup.latest(partitions_of(topics))

    def options(self, begin: Positions | None) -> dict[str, str]:
        """See `Place.options`."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest" if begin is None else json.dumps(nested(begin)),
        }

    def sender(self) -> Sender:
        """See `Place.sender`."""
        return KafkaSender(self.servers, self.topic)


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """A journal, and the receiver that writes it."""

    folder: Path
    address: str
    name = "the journal"
    source = "journal"

    def ends(self) -> Positions:
        """See `Place.ends`."""
        journal = Journal.open(str(self.folder))
        bounds = journal.bounds()
        return {TopicPartition(journal.name, lane): end for lane, (_, end) in bounds.items()}

    def options(self, begin: Positions | None) -> dict[str, str]:
        """See `Place.options`."""
        start = "earliest" if begin is None else json.dumps(nested(begin))
        return {"path": str(self.folder), "startingOffsets": start}

    def sender(self) -> Sender:
        """See `Place.sender`."""
        return HttpSender(self.address)


@contextmanager
def own_broker(console: Console) -> Iterator[TopicPlace]:
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
        yield TopicPlace(servers, TOPIC)


@contextmanager
def own_receiver(console: Console, folder: Path, ledger_url: str) -> Iterator[JournalPlace]:
    """A receiver that is there for the demo only, held to the rate of the demo's gate.

    Raises:
        ReceiverError: It does not start.
    """
    console.print("Starting a receiver, which takes orders over HTTP into a journal")
    command = [
        *(sys.executable, "-m", "headrace", "receive", "http", "--json", "--port", "0"),
        *("--journal", str(folder / TOPIC), "--gate", GATE, "--ledger", ledger_url),
        # Until the gate has learnt a rate: as fast as the demo's backlog can be sent.
        *("--initial-rate", str(_NO_LIMIT_PER_S)),
    ]
    log_file = folder / "receiver.log"
    with log_file.open("wb") as log:
        # In a session of its own, so that Ctrl-C ends it when the demo does, and not before.
        process = subprocess.Popen(command, stdout=log, start_new_session=True)
    try:
        yield JournalPlace(folder / TOPIC, _address(process, log_file))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[bytes]", log_file: Path) -> str:
    """Where a receiver that was started listens, as its log tells.

    Raises:
        ReceiverError: It ended, or does not begin.
    """
    deadline_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        for line in log_file.read_text(encoding="utf-8").splitlines(keepends=True):
            told = json.loads(line) if line.endswith("\n") else {}
            if told.get("event") == "receiving":
                return str(urlsplit(told["address"]).netloc)
        time.sleep(_LOOK_S)
    raise ReceiverError("The demo's receiver did not start; run headrace receive to see why.")
