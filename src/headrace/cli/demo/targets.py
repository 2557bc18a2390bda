"""Where the demo's orders go, and from where its query reads them: a Kafka topic, or a journal."""

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from headrace.core.ranges import TopicPartition
from headrace.errors import BrokerError, ReceiverError
from headrace.journal import Journal
from headrace.kafka.consumers import ClientConfig
from headrace.kafka.lookup import Lookup
from headrace.local import KafkaBroker, ensure_java, kafka_server_jars

GATE: Final = "headrace-demo"
TOPIC: Final = "orders"
PARTITIONS: Final = 6
LINES: Final = 500
"""Orders in one request."""

_FLUSH_S: Final = 30
_IDLE_S: Final = 3
_START_S: Final = 60
_STOP_S: Final = 20
_TAKEN, _RETRY_LATER, _UNAVAILABLE = 200, 429, 503


class TopicTarget:
    """A topic on a Kafka broker."""

    name = "Kafka"
    source = "kafka"

    def __init__(self, servers: str) -> None:
        self.options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
        }
        self._client: ClientConfig = {"bootstrap.servers": servers, "log_level": 0}
        settings = {"enable.idempotence": True, "queue.buffering.max.messages": 10_000_000}
        self._producer = Producer({**self._client, **settings})
        self._rejected: list[KafkaError] = []

    def send(self, orders: Sequence[tuple[bytes, int]]) -> None:
        """Produce orders, each into its partition; return when all are acknowledged."""
        for order, partition in orders:
            self._producer.produce(TOPIC, order, partition=partition, on_delivery=self._delivered)
        waiting = self._producer.flush(_FLUSH_S)
        if self._rejected or waiting:
            reason = self._rejected[0].str() if self._rejected else f"no answer in {_FLUSH_S} s"
            raise BrokerError(f"Topic {TOPIC} did not take an order: {reason}; see its broker.")

    def ends(self) -> Mapping[TopicPartition, int]:
        """Where each partition ends now."""
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return Lookup(self._client, 3, 200).latest(partitions)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._rejected.append(error)


class JournalTarget:
    """A journal, whose receiver listens at ``host:port``."""

    name = "the journal"
    source = "journal"

    def __init__(self, address: str, folder: Path) -> None:
        self.options = {"path": str(folder), "startingOffsets": "earliest"}
        self._folder = folder
        self._address = address
        self._connection = http.client.HTTPConnection(address, timeout=_FLUSH_S)
        self._answered_s = time.monotonic()

    def send(self, orders: Sequence[tuple[bytes, int]]) -> None:
        """Post orders as lines of JSON, again when the receiver says later; to its one lane."""
        for start in range(0, len(orders), LINES):
            lines = [order for order, _partition in orders[start : start + LINES]]
            while (status := self._post(b"\n".join(lines))) != _TAKEN:
                if status not in {_RETRY_LATER, _UNAVAILABLE}:
                    raise ReceiverError(
                        f"The receiver at {self._address} refused {len(lines)} orders with status"
                        f" {status}; see what it logs."
                    )

    def ends(self) -> Mapping[TopicPartition, int]:
        """Where each lane ends now."""
        journal = Journal.open(str(self._folder))
        bounds = journal.bounds()
        return {TopicPartition(journal.name, lane): end for lane, (_, end) in bounds.items()}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _post(self, body: bytes) -> int:
        """The answer's status, after the time for which it asks the sender to wait."""
        if time.monotonic() - self._answered_s > _IDLE_S:
            self._connection.close()  # before the receiver does, which makes room for others
        try:
            headers = {"Content-Type": "application/x-ndjson"}
            self._connection.request("POST", "/records", body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ReceiverError(
                f"The receiver at {self._address} did not answer: {error}; see that it runs."
            ) from error
        self._answered_s = time.monotonic()
        if answer.status in {_RETRY_LATER, _UNAVAILABLE}:
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        return answer.status


Target = TopicTarget | JournalTarget


@contextmanager
def broker_target(console: Console) -> Iterator[Target]:
    """A topic on a Kafka broker of the demo's own."""
    java = ensure_java()
    jars = kafka_server_jars(java, console.print)
    console.print("Starting a Kafka broker")
    with KafkaBroker(java, jars) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        yield TopicTarget(broker.bootstrap_servers)


@contextmanager
def receiver_target(console: Console, folder: Path, ledger_url: str) -> Iterator[Target]:
    """A journal with a receiver of the demo's own, at the rate of the demo's gate."""
    console.print("Starting a receiver, which takes orders over HTTP into a journal")
    command = [
        *(sys.executable, "-m", "headrace", "receive", "http", "--json", "--port", "0"),
        *("--journal", str(folder / TOPIC), "--gate", GATE, "--ledger", ledger_url),
        # Until the gate has learnt a rate: as fast as the demo's backlog can be sent.
        *("--initial-rate", "1000000"),
    ]
    log_file = folder / "receiver.log"
    with log_file.open("wb") as log:
        # In a session of its own, so that Ctrl-C ends it when the demo does, and not before.
        process = subprocess.Popen(command, stdout=log, start_new_session=True)
    try:
        with closing(JournalTarget(_address(process, log_file), folder / TOPIC)) as target:
            yield target
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[bytes]", log_file: Path) -> str:
    """Where a receiver listens, as its log says."""
    deadline_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        for line in log_file.read_text(encoding="utf-8").splitlines(keepends=True):
            logged = json.loads(line) if line.endswith("\n") else {}
            if logged.get("event") == "receiving":
                return str(urlsplit(logged["address"]).netloc)
        time.sleep(0.1)
    raise ReceiverError("The demo's receiver did not start; run headrace receive to see why.")
