"""``headrace demo``: one stream in two queries, without a gate and with one, and the proof.

``python -m headrace.cli.demo FOLDER`` runs both queries, in a process that is killed in the middle.
"""

import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import sqlalchemy
import typer
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.exits import ENDS, leave
from headrace.cli.printing import count, plural, print_json, write_picture
from headrace.core.system import needs_extra
from headrace.core.timing import wall_clock_ms
from headrace.errors import BrokerError, HeadraceError, SetupError
from headrace.journal import Journal, Records
from headrace.ledger import Ledger
from headrace.local import KafkaBroker, ensure_java, kafka_server_jars
from headrace.local.servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.execution import Batch

GATE, GATED, UNGATED = "headrace-demo", "with a gate", "without a gate"
GATED_CHECKPOINT: Final = Path("checkpoints", "gated")
INTERVAL_S, MIN_RATE_PER_S = 2, 400
ORDERS_PER_S: Final = 1_100
"""Less than half of what a handler can process, and much more than it can when it is slow."""
BACKLOG, MOST_WAITING = 20_000, 25_000
"""Orders at the start, and those behind the gate with which a slow machine gets no more."""
COST_S, CHUNK, SLOWDOWN = 0.0004, 250, 4
"""Seconds that a handler waits for each order, as for a service, and how often it looks."""
TOPIC, PARTITIONS, BAD_ORDER = "orders", 4, b"{ this is no order"
ACTS: Final = (
    (
        "A backlog",
        f"{count(BACKLOG)} orders wait, and {count(ORDERS_PER_S)} more come each second. Without a"
        f" gate the first batch takes all; the gate learns what fits into {INTERVAL_S} s.",
    ),
    (
        "The handler becomes four times slower",
        "Without a gate each batch takes longer than the one before. With one the batches shrink,"
        f" and still take {INTERVAL_S} s.",
    ),
    (
        "A bad record",
        "The handler is fast again, and one order cannot be read. The gate's handler puts it"
        " aside as a dead letter; a plain query stops at it, sooner or later.",
    ),
    (
        "The driver is killed, and its checkpoint is gone",
        "kill -9 in a batch, and the folder of the gate's checkpoint is deleted. The gate goes on"
        " where its ledger stands, with the rate that it had learnt.",
    ),
    ("The proof", "No more orders come. What arrived is compared with what was sent."),
)
_HOLDS_S: Final = (13.0, 8.0, 0.0, 7.0)
"""Durations of the acts, and of both halves of the second one, last in a demo of `_WHOLE_S` (s)."""
_WHOLE_S, _START_S, _HAPPENS_S, _LOOK_S, _LINE_S = 75.0, 180.0, 120.0, 0.25, 3.0
_SCHEMA: Final = (
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE IF NOT EXISTS orders (lane TEXT, id INTEGER)",
    "CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, lane TEXT, began_s REAL,"
    " ended_s REAL, orders INTEGER, error TEXT)",
)


class Run(NamedTuple):
    """One call of a handler; ``ended_s`` is None while it runs."""

    id: int
    lane: str
    began_s: float
    ended_s: float | None
    orders: int
    error: str | None

    def took_s(self, now_s: float) -> float:
        """Return how long the run took, or has taken so far."""
        return (self.ended_s or now_s) - self.began_s


class Shop:
    """What the handlers have written and how long it took them, in an SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.slowness = folder / "slowness"
        arguments = {"timeout": 10}
        self.engine = sqlalchemy.create_engine(
            f"sqlite:///{folder / 'shop.db'}", connect_args=arguments
        )
        for statement in _SCHEMA:
            self.sql(statement)

    def sql(self, statement: str, **values: object) -> list[Any]:
        """Run one statement in a transaction of its own; return its rows."""
        with self.engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement), values)
            return list(result.all()) if result.returns_rows else []

    def handle(self, lane: str, df: "DataFrame", batch: "Batch | None") -> None:
        """Put bad orders aside and write the others once; without a gate, stop at a bad one."""
        began = "INSERT INTO runs (lane, began_s, orders) VALUES (:lane, :now_s, 0) RETURNING id"
        run = self.sql(began, lane=lane, now_s=time.time())[0].id
        orders, bad = read_orders(df)
        if bad and batch is None:
            error = f"partition {bad[0]['partition']} offset {bad[0]['offset']} is no order"
            self.end(error, run)
            raise ValueError(error)
        if bad and batch is not None:
            batch.reject(bad, "it is no order")
        number = len(orders) + len(bad)
        self.sql("UPDATE runs SET orders = :number WHERE id = :run", number=number, run=run)
        for done in range(0, number, CHUNK):
            times = int(self.slowness.read_text() or "1") if self.slowness.exists() else 1
            time.sleep(min(CHUNK, number - done) * COST_S * times)
        with self.engine.begin() as connection:
            if (batch is None or batch.once(connection)) and orders:
                rows = [{"lane": lane, "id": order} for order in orders]
                connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:lane, :id)"), rows)
        self.end(None, run)

    def end(self, error: str | None, run: int | None = None) -> None:
        """End a call of a handler, or all of them."""
        ended = "UPDATE runs SET ended_s = :now_s, error = :error WHERE ended_s IS NULL"
        self.sql(f"{ended} AND id = coalesce(:run, id)", now_s=time.time(), error=error, run=run)

    def runs(self, lane: str | None = None) -> list[Run]:
        """Return all calls of the handlers, or those of one lane, oldest first."""
        return [
            Run(*row)
            for row in self.sql("SELECT * FROM runs ORDER BY id")
            if lane in (None, row.lane)
        ]


def read_orders(df: "DataFrame") -> tuple[list[int], list[dict[str, object]]]:
    """Return the numbers of a batch's orders, and where those are that cannot be read."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    order = F.from_json(F.col("value").cast("string"), "id long")
    rows = df.select("topic", "partition", "offset", order["id"].alias("id")).toArrow().to_pylist()
    bad = [row for row in rows if row["id"] is None]
    places = [{name: row[name] for name in ("topic", "partition", "offset")} for row in bad]
    return [row["id"] for row in rows if row["id"] is not None], places


def start_queries(spark: "SparkSession", folder: Path, shop: Shop) -> Any:
    """Start both queries; return the one behind the gate."""
    from headrace.execution import Gate  # noqa: PLC0415

    settings = json.loads((folder / "driver.json").read_text())
    gate = Gate(GATE, interval=f"{INTERVAL_S} seconds", ledger=settings["ledger"])
    orders = gate.read(spark, settings["source"]).options(**settings["options"])
    orders = orders.option("backpressure.pid.minRate", str(MIN_RATE_PER_S))
    name = f"headrace-{settings['source']}"
    # Spark's first read takes longer than any other, and would be the first batch's.
    read_orders(spark.read.format(name).options(**settings["options"]).load().limit(1))
    checkpoints = folder / "checkpoints"
    writer = gate.write(orders.load(), lambda df, batch: shop.handle(GATED, df, batch))
    gated = writer.option("checkpointLocation", str(folder / GATED_CHECKPOINT)).start()
    while gated.isActive and gated.lastProgress is None:
        time.sleep(_LOOK_S)  # to start both at once would take both as long as one after the other
    plain = spark.readStream.format(name).options(**settings["options"]).load().writeStream
    plain = plain.foreachBatch(lambda df, _: shop.handle(UNGATED, df, None))
    plain = plain.trigger(processingTime=f"{INTERVAL_S} seconds")
    plain.option("checkpointLocation", str(checkpoints / "ungated")).start()
    return gated


def drive(folder: Path) -> None:
    """Run both queries until SIGTERM, or until the query behind the gate stops."""
    from headrace.local.session import local_spark  # noqa: PLC0415

    signal.signal(signal.SIGTERM, leave)
    with local_spark(folder, "headrace demo", 2) as spark:
        query = start_queries(spark, folder, Shop(folder))
        while query.isActive:
            time.sleep(_LOOK_S)
        sys.stderr.write(f"The query stopped: {query.exception()}\n")


class Sender:
    """Sends numbered orders to a source, and counts those that are durable."""

    def __init__(self, kind: str, append: Callable[[int, Sequence[bytes]], object]) -> None:
        self.kind, self._append = kind, append
        self.sent = self.bad = 0

    def send(self, orders: int) -> None:
        """Send so many."""
        numbers, each = range(self.sent, self.sent + orders), -(-orders // PARTITIONS)
        for partition in range(PARTITIONS):
            if mine := numbers[partition * each : (partition + 1) * each]:
                self._append(partition, [b'{"id": %d}' % number for number in mine])
        self.sent += orders

    def send_bad(self) -> None:
        """Send one that no handler can read."""
        self._append(0, [BAD_ORDER])
        self.bad += 1


@contextmanager
def open_journal(folder: Path) -> Iterator[tuple[Sender, dict[str, str]]]:
    """A sender to a journal in the folder, and the options to read it with."""
    with ExitStack() as cleanup:
        journal = Journal.open(str(folder), create=True)
        lanes = [cleanup.enter_context(journal.writer(lane)) for lane in range(PARTITIONS)]

        def append(lane: int, orders: Sequence[bytes]) -> None:
            lanes[lane].append(Records.of(orders, timestamp_ms=wall_clock_ms()))

        yield Sender("journal", append), {"path": str(folder), "startingOffsets": "earliest"}


@contextmanager
def open_topic(console: Console) -> Iterator[tuple[Sender, dict[str, str]]]:
    """A sender to a topic of a Kafka broker, and the options to read it with."""
    from confluent_kafka import Producer  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    java = ensure_java()
    jars = kafka_server_jars(java, console.print)
    console.print("Starting a Kafka broker")
    with KafkaBroker(java, jars) as broker:
        servers: dict[str, str | int | float | bool] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "log_level": 0,
        }
        admin = AdminClient(servers)  # without a name it would be gone before the answer
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        producer = Producer(servers | {"enable.idempotence": True})

        def append(partition: int, orders: Sequence[bytes]) -> None:
            failed: list[object] = []
            for order in orders:
                producer.produce(
                    TOPIC,
                    order,
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            if producer.flush(30) or failed:
                reason = failed[0] if failed else "no answer in 30 s"
                raise BrokerError(f"Topic {TOPIC} did not take an order: {reason}; see its broker.")

        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}
        yield Sender("kafka", append), options | {"startingOffsets": "earliest"}


class PythonProcess(ServerProcess):
    """A module that is run in a folder of its own, and ends when this process does."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__()
        folder.mkdir()
        self._folder, self._command = folder, (sys.executable, "-m", *arguments)

    def start(self) -> None:
        """Start it, or start it again."""
        self._launch("headrace-demo", self._folder, self._command)

    def log(self) -> str:
        """Return the output of the process so far, once it is seen to run."""
        log = (self._folder / "server.log").read_text(errors="replace")
        if self._process is not None and self._process.poll() is not None:
            ending = "\n".join(log.splitlines()[-12:])
            raise HeadraceError(f"The demo's {self._command[2]} has ended:\n{ending}")
        return log


def show_dashboard(process: PythonProcess, console: Console, *, open_page: bool) -> None:
    """Start the dashboard, say where it is, and open it; without what it needs, say that."""
    try:
        with needs_extra("dashboard", "The dashboard"):
            import headrace.dashboard  # noqa: F401, PLC0415  (an extra)
    except SetupError as error:
        console.print(f"Without the dashboard: {error}", soft_wrap=True)
        return
    process.start()
    ends_s = time.monotonic() + 30
    while (found := re.search(r"^The dashboard is at (\S+)$", process.log(), re.MULTILINE)) is None:
        if time.monotonic() > ends_s:
            raise HeadraceError("The demo's dashboard did not start in 30 s.")
        time.sleep(0.05)
    console.print(f"The dashboard is at {found[1]}", soft_wrap=True)
    if open_page and has_display(os.environ):
        webbrowser.open(found[1])


def has_display(variables: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether there is a display, and somebody who looks at it."""
    shown = platform in {"darwin", "win32"} or {"DISPLAY", "WAYLAND_DISPLAY"} & set(variables)
    return bool(shown) and not variables.get("CI")


@dataclass(frozen=True, slots=True)
class Frame:
    """The demo at one moment, drawn as both lanes side by side against one scale of time.

    ``marks`` are the times at which the acts began, and ``span_s`` is the least time of the charts.
    """

    title: str
    caption: str
    marks: Sequence[float]
    runs: Sequence[Run]
    sent: int
    now_s: float
    span_s: float

    @property
    def began_s(self) -> float:
        """Time at which the first handler was called."""
        return self.runs[0].began_s if self.runs else self.now_s

    def state(self, lane: str) -> str:
        """Return the state of a lane, in one short line."""
        last = next((run for run in reversed(self.runs) if run.lane == lane), None)
        if last is None:
            return "no batch yet"
        if last.error is not None:
            return f"stopped: {last.error}"
        took = f"{last.took_s(self.now_s):.1f} s"
        end = f", {took} so far" if last.ended_s is None else f" took {took}"
        return f"batch of {count(last.orders)}{end}"

    def waiting(self, lane: str) -> int:
        """Return the number of orders that a lane has still to process."""
        ended = (run for run in self.runs if run.lane == lane and run.ended_s and not run.error)
        return max(self.sent - sum(run.orders for run in ended), 0)

    def line(self) -> str:
        """Return the line for a log."""
        lanes = (
            f"{lane}: {self.state(lane)}, {count(self.waiting(lane))} wait"
            for lane in (UNGATED, GATED)
        )
        return f"{self.now_s - self.began_s:5.1f} s  {'; '.join(lanes)}"

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        elapsed = f"{self.now_s - self.began_s:3.0f} s  "
        lanes = Table.grid(padding=(0, 3, 0, 0))
        width = (options.max_width - 3) // 2
        for _ in range(2):
            lanes.add_column(width=width, no_wrap=True, overflow="ellipsis")
        lanes.add_row(self._lane(UNGATED, width, "red"), self._lane(GATED, width, "green"))
        yield Text.assemble((elapsed, "dim"), (self.title, "bold"))
        yield Text(self.caption)
        yield ""
        yield lanes

    def _lane(self, lane: str, width: int, style: str) -> Group:
        took = {run: run.took_s(self.now_s) for run in self.runs}
        runs = [run for run in self.runs if run.lane == lane]
        sizes = self._columns(width, {run: run.orders for run in runs})
        longest_s = max(took.values(), default=0.0)
        head = Text(lane.capitalize(), style=f"bold {style}")
        head.append(f" · {plural(self.waiting(lane), 'order')} waiting", style="not bold default")
        marks = [" "] * width
        for number, at_s in enumerate(self.marks, start=1):
            marks[self._column(at_s, width)] = str(number)
        return Group(
            head,
            Text(self.state(lane), no_wrap=True, overflow="ellipsis"),
            Text(f"batch time, of {max(longest_s, 1):.0f} s", style="dim"),
            *chart(self._columns(width, {run: took[run] for run in runs}), longest_s, 6, style),
            Text(f"orders in a batch, of {count(round(max(sizes)))}", style="dim"),
            *chart(sizes, max(sizes), 4, style),
            Text("".join(marks), style="dim"),
        )

    def _columns(self, width: int, values: Mapping[Run, float]) -> list[float]:
        columns = [0.0] * width
        for run, value in values.items():
            first = self._column(run.began_s, width)
            # A run that ends where a column begins is not in it.
            last = self._column((run.ended_s or self.now_s) - 0.01, width)
            for column in range(first, max(first, last) + 1):
                columns[column] = max(columns[column], value)
        return columns

    def _column(self, at_s: float, width: int) -> int:
        seconds_each = max(self.span_s, self.now_s - self.began_s) / width
        return min(max(int((at_s - self.began_s) / seconds_each), 0), width - 1)


def chart(values: Sequence[float], top: float, rows: int, style: str) -> list[Text]:
    """Bars side by side, one character wide each; what is not 0 is seen.

    >>> [line.plain for line in chart([0, 1, 8, 16], 16, 2, "red")]
    ['   █', ' ▁██']
    """
    eighths = [max(round(8 * rows * value / (top or 1)), int(value > 0)) for value in values]
    lines = [Text(no_wrap=True) for _ in range(rows)]
    for row, line in enumerate(reversed(lines)):
        for each in eighths:
            level = min(max(each - 8 * row, 0), 8)
            # A full cell is its background, too: a font may leave a seam between two lines.
            line.append(" ▁▂▃▄▅▆▇█"[level], f"{style} on {style}" if level == 8 else style)
    return lines


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of the lane with a gate.

    ``sent``, ``arrived``, ``missing`` and ``twice`` are orders that can be read. The climb ends
    with the first batch of 0.8 of ``sustained``, the median before the handler became slow.
    """

    sent: int
    arrived: int
    missing: int
    twice: int
    bad_sent: int
    dead_letters: int
    climb_s: float | None
    sustained: int | None
    after_restart: int | None
    acts_s: tuple[float, ...]

    @property
    def proof(self) -> str:
        """Counts, in two sentences."""
        return (
            f"{count(self.sent)} orders sent, {count(self.arrived)} arrived:"
            f" {count(self.missing) if self.missing else 'none'} missing,"
            f" {count(self.twice) if self.twice else 'none'} twice.\n"
            f"{plural(self.bad_sent, 'bad record')} sent, {count(self.dead_letters)} put aside."
        )

    def __str__(self) -> str:
        climb = f"{self.climb_s:.1f} s" if self.climb_s is not None else "unknown"
        return (
            f"{self.proof}\n"
            f"The climb to {count(self.sustained)} orders a batch took {climb}; the first batch"
            f" after the restart had {count(self.after_restart)}."
        )


def missing_and_twice(times: Mapping[int, int], sent: int) -> tuple[int, int]:
    """Count the missing orders of 0 up to ``sent``, and those that are there twice or unsent."""
    twice = sum(often > 1 or not 0 <= number < sent for number, often in times.items())
    return sent - sum(0 <= number < sent for number in times), twice


@dataclass(slots=True)
class Course:
    """The acts, one after the other, on the screen of a terminal or as lines."""

    shop: Shop
    ledger: Ledger
    driver: PythonProcess
    sender: Sender
    console: Console
    pace: float
    marks: list[float] = field(default_factory=list)
    killed_s: float = float("inf")
    _live: Live | None = None
    _line_s: float = 0.0
    _sent_s: float | None = None

    def play(self) -> Outcome:
        """Play all acts; return what was counted."""
        self.console.print("Starting Spark, with a query without a gate and one with a gate")
        backlog = round(BACKLOG * self.pace)
        with ThreadPoolExecutor(1) as pool:  # it imports pandas, which can swallow a Ctrl-C
            pool.submit(self.sender.send, backlog).result()
        self.driver.start()
        self._until(lambda: bool(self.shop.runs(GATED)), _START_S, "Spark has no first batch")
        with ExitStack() as shown:
            if self.console.is_terminal:
                live = Live(console=self.console, screen=True, auto_refresh=False)
                self._live = shown.enter_context(live)
            self._play()
        outcome = self._outcome()
        if self.console.is_terminal:
            self.console.print(self.frame(outcome.proof))
        return outcome

    def frame(self, proof: str | None = None) -> Frame:
        """The demo at this moment."""
        number = max(len(self.marks), 1)
        name, caption = ACTS[number - 1]
        sent, span_s = self.sender.sent + self.sender.bad, _WHOLE_S * self.pace - 10
        title, runs = f"{number}/{len(ACTS)} {name}", self.shop.runs()
        return Frame(title, proof or caption, self.marks, runs, sent, time.time(), span_s)

    def _play(self) -> None:
        self._begin()
        # Spark starts the second query when the first has had a batch.
        self._until(lambda: bool(self.shop.runs(UNGATED)), _HAPPENS_S, "a query did not start")
        self._sent_s = time.monotonic()
        self._hold(0)
        self._begin()
        self.shop.slowness.write_text(str(SLOWDOWN))
        self._hold(1)
        self.sender.send_bad()  # it reaches the handlers after what waits
        self._hold(1)
        self._begin()
        self.shop.slowness.write_text("1")
        self._until(lambda: self._letters() > 0, _HAPPENS_S, "the bad record was not put aside")
        self._hold(2)
        self._begin()
        self._until(self._is_in_batch, _HAPPENS_S, "no batch began")
        self.driver.kill()
        shutil.rmtree(self.shop.slowness.parent / GATED_CHECKPOINT)
        self.killed_s = time.time()
        self.shop.end("killed")
        self.driver.start()
        self._until(lambda: bool(self._after_restart()), _HAPPENS_S, "no batch began again")
        self._hold(3)
        self._begin()
        self._sent_s = None
        self._until(lambda: self.frame().waiting(GATED) == 0, _HAPPENS_S, None)

    def _begin(self) -> None:
        name, caption = ACTS[len(self.marks)]
        self.marks.append(time.time())
        if self._live is None:
            title = f"{len(self.marks)}/{len(ACTS)} {name}. {caption}"
            self.console.print(title, soft_wrap=True)

    def _hold(self, act: int) -> None:
        ends_s = time.monotonic() + _HOLDS_S[act] * self.pace
        self._until(lambda: time.monotonic() >= ends_s, 2 * _WHOLE_S * self.pace, None)

    def _until(self, done: Callable[[], bool], most_s: float, failure: str | None) -> None:
        ends_s = time.monotonic() + most_s
        while not done():
            self.driver.log()
            if time.monotonic() > ends_s:
                if failure is None:
                    return
                raise HeadraceError(f"The demo stopped, because {failure} in {most_s:.0f} s.")
            frame = self.frame()
            if self._sent_s is not None:
                due = int((time.monotonic() - self._sent_s) * ORDERS_PER_S)
                self._sent_s += due / ORDERS_PER_S
                self.sender.send(due if frame.waiting(GATED) <= MOST_WAITING else 0)
            if self._live is not None:
                self._live.update(frame, refresh=True)
            elif self.marks and time.monotonic() > self._line_s:
                self.console.print(frame.line(), soft_wrap=True)
                self._line_s = time.monotonic() + _LINE_S
            time.sleep(_LOOK_S)

    def _is_in_batch(self) -> bool:
        runs = self.shop.runs(GATED)
        return bool(runs) and runs[-1].ended_s is None and runs[-1].orders > 0

    def _after_restart(self) -> list[Run]:
        """Batches of the driver that came back; the first of them repeats the one it was in."""
        runs = self.shop.runs(GATED)
        return [run for run in runs if run.began_s > self.killed_s and run.orders][1:]

    def _letters(self) -> int:
        return self.ledger.batches.count_unresolved(GATE).letters

    def _outcome(self) -> Outcome:
        rows = self.shop.sql("SELECT id FROM orders WHERE lane = :lane", lane=GATED)
        times = Counter(row.id for row in rows)
        missing, twice = missing_and_twice(times, self.sender.sent)
        gated = self.shop.runs(GATED)
        before = [run for run in gated if run.began_s < self.marks[1] and run.ended_s]
        sustained = round(median(run.orders for run in before[-5:])) if before else None
        climbed = (run.began_s for run in before if run.orders >= 0.8 * (sustained or 0))
        first = next(iter(self._after_restart()), None)
        ends = zip(self.marks, [*self.marks[1:], time.time()], strict=True)
        return Outcome(
            sent=self.sender.sent,
            arrived=len(times),
            missing=missing,
            twice=twice,
            bad_sent=self.sender.bad,
            dead_letters=self._letters(),
            climb_s=round(next(climbed) - before[0].began_s, 1) if before else None,
            sustained=sustained,
            after_restart=first.orders if first else None,
            acts_s=tuple(round(end - begin, 1) for begin, end in ends),
        )


def demo(
    *,
    broker: Annotated[
        bool, typer.Option("--broker", help="Start a Kafka broker, instead of a journal on disk.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=25, max=600, help="About how long it lasts.")
    ] = 75.0,
    picture: Annotated[
        Path | None,
        typer.Option(help="Write a picture of it (SVG) to this file.", dir_okay=False),
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Keep the ledger at this URL, to look at it afterwards.")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the dashboard in a browser.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was counted as JSON, and nothing else.")
    ] = False,
) -> None:
    """Watch one stream in two queries: without a gate, and with one.

    A backlog waits, the handler gets slower, a record is bad, the driver is killed; in the end,
    what arrived is compared with what was sent.

    The dashboard shows the ledger meanwhile; it is opened where there is a display.
    It ends by itself and leaves nothing running.
    Exit status 0: each order arrived once, and the bad record was put aside.
    Exit status 1: one is missing or came twice, or there was an error.
    """
    if picture is not None and not picture.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"--picture is {picture}, in a folder that does not exist; make it."
        )
    import pyspark  # noqa: F401, PLC0415  (the driver is a process of its own, and needs it)

    for number in ENDS:
        signal.signal(number, leave)
    logging.getLogger().addHandler(logging.NullHandler())  # the screen is the demo's
    console = Console(highlight=False, quiet=as_json)
    with ExitStack() as cleanup:
        try:
            course = _prepared(cleanup, console, ledger, broker=broker, opens=not no_browser)
            course.pace = seconds / _WHOLE_S
            outcome = course.play()
            if picture is not None:
                write_picture(course.frame(outcome.proof), picture, "headrace demo")
        finally:
            # Closing goes on, however often the user presses Ctrl-C.
            for number in (signal.SIGINT, *ENDS):
                signal.signal(number, signal.SIG_IGN)
    if as_json:
        print_json(asdict(outcome))
    console.print(str(outcome), soft_wrap=True)
    if outcome.missing or outcome.twice or outcome.dead_letters != outcome.bad_sent:
        raise typer.Exit(1)


def _prepared(
    cleanup: ExitStack, console: Console, ledger: str | None, *, broker: bool, opens: bool
) -> Course:
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
    url = ledger or f"sqlite:///{folder}/headrace.db"
    book = cleanup.enter_context(Ledger.open(url))
    command = "headrace", "dashboard", "--port", "0", "--ledger", url
    dashboard = PythonProcess(folder / "dashboard", *command)
    cleanup.callback(dashboard.stop)
    show_dashboard(dashboard, console, open_page=opens and console.is_terminal)
    ensure_java()
    opened = open_topic(console) if broker else open_journal(folder / TOPIC)
    sender, options = cleanup.enter_context(opened)
    work = folder / "driver"
    driver = PythonProcess(work, "headrace.cli.demo", str(work))
    settings = {"ledger": url, "source": sender.kind, "options": options}
    (work / "driver.json").write_text(json.dumps(settings))
    shop = Shop(work)
    cleanup.callback(shop.engine.dispose)
    cleanup.callback(driver.stop)
    return Course(shop, book, driver, sender, console, pace=1.0)


if __name__ == "__main__":
    try:
        drive(Path(sys.argv[1]))
    except Exception:  # noqa: BLE001  (it is printed)
        traceback.print_exc()
    finally:
        # A handler may still work for a minute, of which nobody wants anything any more.
        sys.stderr.flush()
        os._exit(1)
