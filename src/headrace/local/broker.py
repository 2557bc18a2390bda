"""A Kafka broker of one's own: one process, in a folder of its own, on the loopback address."""

import atexit
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.errors import SetupError
from headrace.local.java import Java
from headrace.local.server import ServerProcess, free_ports

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
POLL_S = 0.05
LAST_WORDS = 20
"""Lines of the broker's log that an error shows."""
PORT_CHOICES = 3
"""Number of times that other ports are chosen when another process took the first."""

SETTINGS = {
    # One process is the broker and its own controller.
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One replica of everything, and only as many internal partitions as one machine wants.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Nobody waits for what happens seldom on a real cluster. A killed broker may come back when
    # its session has ended, after 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    # The default of 128 MB would be a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": "8388608",
}


class KafkaBroker(ServerProcess):
    """A Kafka broker (and its controller) in one Java process on ports of its own.

    It ends with :meth:`close`, at the exit of this process at the latest, and also when this
    process is killed; its data go with it. Between :meth:`start` and :meth:`close` it can be
    stopped, killed and started again, with its data and its address kept. Its methods are for one
    thread at a time.

    ::

        java = ensure_java()
        with KafkaBroker(java, kafka_server_jars(java)) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    """

    def __init__(
        self,
        java: Java,
        jars: Path,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        quick_start: bool = True,
    ) -> None:
        """Describe a broker; nothing runs before :meth:`start`, which settles its address.

        Args:
            java: The Java to run it on.
            jars: The folder of its jars, from :func:`headrace.local.kafka_server_jars`.
            settings: Settings of ``server.properties``, over the defaults in ``SETTINGS``.
            heap_mb: Its largest heap.
            quick_start: Have Java compile fast rather than well: starts sooner, serves slower.
        """
        super().__init__()
        self._java = java
        self._jars = jars
        self._heap_mb = heap_mb
        self._quick_start = quick_start
        self._settings = settings or {}
        self.folder: Path | None = None
        self._choose_ports()

    @property
    def pid(self) -> int | None:
        """The process id of the broker; none while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the broker and wait until it answers; does nothing if it runs.

        Raises:
            SetupError: It did not come up; the message ends with the last lines of its log.
        """
        if self._process:
            return
        if self.folder is not None:
            self._serve(self.folder)
            return
        for choice in range(PORT_CHOICES):
            self.folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
            atexit.register(self.close)
            self._format(self.folder)
            try:
                self._serve(self.folder)
            except SetupError as error:
                if "Address already in use" not in str(error) or choice + 1 == PORT_CHOICES:
                    raise
                self.close()
                self._choose_ports()
            else:
                return

    def _serve(self, folder: Path) -> None:
        """Start its process in its folder and wait until it answers."""
        server = [*self._java_command(), "kafka.Kafka", str(folder / "server.properties")]
        process = self._launch("headrace-kafka", folder, server)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise SetupError(
                    f"The Kafka broker at {self.bootstrap_servers} did not start; "
                    f"its last words:\n{_last_words(folder / 'server.log')}"
                )
            time.sleep(POLL_S)

    def restart(self) -> None:
        """Stop and start: the same address, the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker and delete its data."""
        self.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except SetupError:
            self.close()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _choose_ports(self) -> None:
        self._ports = free_ports(2)
        self.bootstrap_servers = f"{HOST}:{self._ports[0]}"

    def _format(self, folder: Path) -> None:
        """Write ``server.properties`` and the empty storage it speaks of."""
        broker, controller = (f"{HOST}:{port}" for port in self._ports)
        properties = {
            **SETTINGS,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            **self._settings,
            "log.dirs": str(folder / "data"),
        }
        file = folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        done = subprocess.run(
            [
                *(*self._java_command(), "kafka.tools.StorageTool"),
                # Use "=", for an id may begin with "-".
                *("format", f"--cluster-id={cluster_id}", "--config", str(file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(
                f"The storage of a Kafka broker could not be made in {folder}; "
                f"its tool said:\n{done.stdout.strip()}"
            )

    def _java_command(self) -> list[str]:
        return [
            str(self._java.executable),
            f"-Xmx{self._heap_mb}m",
            *(("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") if self._quick_start else ()),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", f"{self._jars}/*"),
        ]

    def _answers(self) -> bool:
        """Whether clients are served: the socket is tried first, for librdkafka would log."""
        host, _, port = self.bootstrap_servers.rpartition(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return False
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return False


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_WORDS:])
