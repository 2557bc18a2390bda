"""Services of the demo: the source that both lanes read, the driver's process, the dashboard."""

import os
import re
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from headrace.core.system import needs_extra
from headrace.core.timing import wall_clock_ms
from headrace.errors import BrokerError, HeadraceError, SetupError
from headrace.journal import Journal, Records
from headrace.local import KafkaBroker, ensure_java, kafka_server_jars
from headrace.local.servers import ServerProcess

TOPIC: Final = "orders"
PARTITIONS: Final = 4
BAD_ORDER: Final = b"{ this is no order"

_FLUSH_S: Final = 30
_TICK_S: Final = 0.1


class JournalSource:
    """A journal on this disk."""

    kind = "journal"

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.options = {"path": str(folder), "startingOffsets": "earliest"}
        journal = Journal.open(str(folder), create=True)
        self._lanes = [cleanup.enter_context(journal.writer(n)) for n in range(PARTITIONS)]

    def append(self, partition: int, orders: Sequence[bytes]) -> None:
        """Write orders as one block."""
        self._lanes[partition].append(Records.of(orders, timestamp_ms=wall_clock_ms()))


class TopicSource:
    """A topic on a Kafka broker."""

    kind = "kafka"

    def __init__(self, servers: str) -> None:
        self.options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
        }
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(_FLUSH_S)
        self._producer = Producer(
            {"bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True}
        )

    def append(self, partition: int, orders: Sequence[bytes]) -> None:
        """Produce orders."""
        failed: list[str] = []
        for order in orders:
            self._producer.produce(
                TOPIC,
                order,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
            )
        if self._producer.flush(_FLUSH_S) or failed:
            reason = failed[0] if failed else f"no answer in {_FLUSH_S} s"
            raise BrokerError(f"Topic {TOPIC} did not take an order: {reason}; see its broker.")


OrderSource = JournalSource | TopicSource


@contextmanager
def open_source(console: Console, folder: Path, *, broker: bool) -> Iterator[OrderSource]:
    """A journal in the folder, or a topic on a Kafka broker of the demo's own."""
    with ExitStack() as cleanup:
        if not broker:
            yield JournalSource(folder / TOPIC, cleanup)
            return
        java = ensure_java()
        jars = kafka_server_jars(java, console.print)
        console.print("Starting a Kafka broker")
        yield TopicSource(cleanup.enter_context(KafkaBroker(java, jars)).bootstrap_servers)


class OrderSender(AbstractContextManager["OrderSender"]):
    """Sends numbered orders, a backlog at once and then a steady stream, and counts them."""

    def __init__(self, source: OrderSource) -> None:
        self._source = source
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "orders")
        self._running: Future[None] | None = None
        self.sent = 0
        """Good orders that are durable: those with the numbers from 0 up to this."""
        self.bad = 0
        """Bad ones."""
        self.paused = False
        """Whether the stream waits; what it has not sent meanwhile is not sent later."""

    def send(self, orders: int) -> None:
        """Send so many."""
        with self._sending:
            first, each = self.sent, -(-orders // PARTITIONS)
            numbers = range(first, first + orders)
            for partition in range(PARTITIONS):
                mine = numbers[partition * each : (partition + 1) * each]
                if mine:
                    self._source.append(partition, [b'{"id": %d}' % number for number in mine])
            self.sent += orders

    def send_backlog(self, orders: int) -> None:
        """Send so many, in the thread: the first one imports pandas, which can swallow a Ctrl-C."""
        self._thread.submit(self.send, orders).result()

    def send_bad(self) -> None:
        """Send one that no handler can read."""
        with self._sending:
            self._source.append(0, [BAD_ORDER])
            self.bad += 1

    def start(self, orders_per_s: float) -> None:
        """Send on at a steady rate, from a thread."""
        self._running = self._thread.submit(self._stream, orders_per_s)

    def check(self) -> None:
        """Raise what has stopped the stream, if anything has."""
        if self._running is not None and self._running.done():
            self._running.result()

    def stop(self) -> None:
        """Stop, and wait until everything is durable; a second call does nothing."""
        self._stopped.set()
        if self._running is not None:
            self._running.result()

    def __exit__(self, *_raised: object) -> None:
        self._stopped.set()
        self._thread.shutdown()

    def _stream(self, orders_per_s: float) -> None:
        last_s = time.monotonic()
        while not self._stopped.wait(_TICK_S):
            due = int((time.monotonic() - last_s) * orders_per_s)
            last_s += due / orders_per_s
            if not self.paused:
                self.send(due)


_LOG: Final = "server.log"
_LAST_LINES: Final = 12
_START_S: Final = 30
_ADDRESS: Final = re.compile(r"^The dashboard is at (\S+)$", re.MULTILINE)


class PythonProcess(ServerProcess):
    """A module that is run in a folder of its own, and ends when this process does."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__()
        folder.mkdir()
        self._folder = folder
        self._command = (sys.executable, "-m", *arguments)

    def start(self) -> None:
        """Start it, or start it again."""
        self._launch("headrace-demo", self._folder, self._command)

    def log(self) -> str:
        """Output of the process so far."""
        return (self._folder / _LOG).read_text(errors="replace")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            ending = "\n".join(self.log().splitlines()[-_LAST_LINES:])
            raise HeadraceError(f"The demo's {self._command[2]} has ended:\n{ending}")


def show_dashboard(
    process: PythonProcess, console: Console, open_page: Callable[[str], object] | None
) -> None:
    """Start the dashboard, say where it is, and open it; without what it needs, say that."""
    try:
        with needs_extra("dashboard", "The dashboard"):
            import headrace.dashboard  # noqa: F401, PLC0415  (an extra)
    except SetupError as error:
        console.print(f"Without the dashboard: {error}", soft_wrap=True)
        return
    process.start()
    ends_s = time.monotonic() + _START_S
    while (found := _ADDRESS.search(process.log())) is None:
        process.check()
        if time.monotonic() > ends_s:
            raise HeadraceError(f"The demo's dashboard did not start in {_START_S} s.")
        time.sleep(0.05)
    console.print(f"The dashboard is at {found[1]}", soft_wrap=True)
    if open_page is not None:
        open_page(found[1])


def browser(
    variables: Mapping[str, str], platform: str = sys.platform
) -> Callable[[str], object] | None:
    """Return the opener of pages, if there is a display and somebody who looks at it; else None.

    >>> browser({"CI": "true", "DISPLAY": ":0"}, "linux") is browser({}, "linux") is None
    True
    """
    has_display = platform in {"darwin", "win32"} or any(
        variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return webbrowser.open if has_display and not variables.get("CI") else None


def page_opener(console: Console, *, wanted: bool) -> Callable[[str], object] | None:
    """The browser of somebody who sits before this terminal."""
    return browser(os.environ) if wanted and console.is_terminal else None
