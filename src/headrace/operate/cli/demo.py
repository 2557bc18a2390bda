"""``headrace demo``: runs one stream in two queries, with and without a gate, to compare them.

``python -m headrace.operate.cli.demo FOLDER`` is the driver process, which runs both queries. The
demo kills the driver in act 4.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy
import typer

from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError
from headrace.gate import Ledger
from headrace.journal import Journal, Records
from headrace.operate.cli.exits import ENDS, leave
from headrace.operate.local import ensure_java, start_kafka
from headrace.operate.local.servers import ServerProcess
from headrace.operate.status.words import count

GATE, GATED, UNGATED = "headrace-demo", "with a gate", "without a gate"
INTERVAL_S, GATE_OPTIONS = 2, {"backpressure.pid.minRate": "400"}
ORDERS_PER_S = 1_100  # less than half of a handler's capacity before the slowdown
BACKLOG, MOST_WAITING = (
    20_000,
    25_000,
)  # orders at the start; waiting orders above which none are sent
COST_S, SLOWDOWN = 0.0004, 4  # time of a handler for an order, as for the call of a service
DRIVER: Final = (sys.executable, "-m", "headrace.operate.cli.demo")
TOPIC, PARTITIONS, BAD_ORDER = "orders", 4, b"{ this is no order"
_WHOLE_S, _HAPPENS_S, _LOOK_S, _LINE_S = 75.0, 180.0, 0.25, 3.0
_SCHEMA: Final = (
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE IF NOT EXISTS orders (lane TEXT, id INTEGER)",
    "CREATE TABLE IF NOT EXISTS runs (lane, began_s, ended_s, orders, error)",
)
_BEGIN: Final = "INSERT INTO runs (lane, began_s, orders) VALUES (:lane, :now_s, 0) RETURNING rowid"
_END: Final = "UPDATE runs SET ended_s = :now_s, error = :error WHERE ended_s IS NULL"


def open_shop(folder: Path) -> sqlalchemy.Engine:
    """Open the demo's SQLite file, with tables of the arrived orders and of the handlers' calls."""
    shop = sqlalchemy.create_engine(f"sqlite:///{folder}/shop.db", connect_args={"timeout": 10})
    for statement in _SCHEMA:
        _sql(shop, statement)
    return shop


def _sql(shop: sqlalchemy.Engine, statement: str, **values: object) -> list[Any]:
    with shop.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement), values)
        return list(result.all()) if result.returns_rows else []


def handle(folder: Path, shop: sqlalchemy.Engine, df: Any, batch: Any) -> None:
    """Write the orders of a batch into the SQLite file. Both queries use this handler.

    In the query with a gate, write each batch once, and reject bad orders. In the query without a
    gate, ``batch`` is None; raise ValueError for a bad order.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    lane = UNGATED if batch is None else GATED
    run = _sql(shop, _BEGIN, lane=lane, now_s=time.time())[0].rowid
    order = F.from_json(F.col("value").cast("string"), "id long")["id"].alias("id")
    rows = df.select("topic", "partition", "offset", order).toArrow().to_pylist()
    good = [{"lane": lane, "id": row["id"]} for row in rows if row["id"] is not None]
    bad = [row for row in rows if row.pop("id") is None]
    if bad and batch is None:
        error = f"offset {bad[0]['offset']} is no order"
        _sql(shop, f"{_END} AND rowid = :run", now_s=time.time(), error=error, run=run)
        raise ValueError(error)
    if bad:
        batch.reject(bad, "it is no order")
    _sql(shop, "UPDATE runs SET orders = :orders WHERE rowid = :run", orders=len(rows), run=run)
    time.sleep(len(rows) * COST_S * int((folder / "slowness").read_text()))
    with shop.begin() as connection:
        if (batch is None or batch.once(connection)) and good:
            connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:lane, :id)"), good)
    _sql(shop, f"{_END} AND rowid = :run", now_s=time.time(), error=None, run=run)


def drive(folder: Path) -> None:
    """Run both queries until SIGTERM, or until the query behind the gate stops."""
    from headrace.gate import Gate  # noqa: PLC0415
    from headrace.operate.local.session import local_spark  # noqa: PLC0415

    signal.signal(signal.SIGTERM, leave)
    settings, shop = json.loads((folder / "driver.json").read_text()), open_shop(folder)
    name = f"headrace-{settings['source']}"
    options = {**settings["options"], "startingOffsets": "earliest"}
    with local_spark(folder, "headrace demo", 2) as spark:
        gate = Gate(GATE, interval=f"{INTERVAL_S} seconds", ledger=settings["ledger"])
        orders = gate.read(spark, settings["source"]).options(**options, **GATE_OPTIONS).load()
        # Spark's first read takes longest, and would count as the first batch's cost.
        spark.read.format(name).options(**options).load().limit(1).toArrow()
        writer = gate.write(orders, lambda df, batch: handle(folder, shop, df, batch))
        gated = writer.option("checkpointLocation", str(folder / GATED)).start()
        while gated.isActive and gated.lastProgress is None:
            time.sleep(_LOOK_S)  # starting both at once would not be faster
        plain = spark.readStream.format(name).options(**options).load().writeStream
        plain = plain.foreachBatch(lambda df, _: handle(folder, shop, df, None))
        plain = plain.trigger(processingTime=f"{INTERVAL_S} seconds")
        plain.option("checkpointLocation", str(folder / UNGATED)).start()
        while gated.isActive:
            time.sleep(_LOOK_S)
        sys.stderr.write(f"The query stopped: {gated.exception()}\n")


Append = Callable[[int, Sequence[bytes]], object]  # to a partition; durable at the return


def open_journal(cleanup: ExitStack, folder: Path) -> tuple[Append, dict[str, str]]:
    """Create a journal. Return a function that appends orders, and options for reading them."""
    journal = Journal.open(str(folder), create=True)
    lanes = [cleanup.enter_context(journal.writer(lane)) for lane in range(PARTITIONS)]

    def append(lane: int, orders: Sequence[bytes]) -> None:
        lanes[lane].append(Records.of(orders, timestamp_ms=wall_clock_ms()))

    return append, {"path": str(folder)}


def _open_topic(servers: str) -> tuple[Append, dict[str, str]]:
    from headrace.gate import ProducedRecord, produce_all  # noqa: PLC0415

    def append(lane: int, orders: Sequence[bytes]) -> None:
        records = [ProducedRecord(TOPIC, None, order, (), lane) for order in orders]
        produce_all({"bootstrap.servers": servers}, records)

    return append, {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}


@dataclass(slots=True)
class Demo:
    """State of a running demo.

    ``sending_s`` is the monotonic time (s) up to which the demo has sent the orders that were due;
    None while the demo sends no orders.
    """

    folder: Path
    shop: sqlalchemy.Engine
    driver: ServerProcess
    ledger: Ledger
    append: Append
    pace: float
    sent: int = 0
    bad: int = 0
    began_s: float = 0.0
    sending_s: float | None = None


def _send(demo: Demo, orders: int) -> None:
    numbers = range(demo.sent, demo.sent + orders)
    for partition in range(min(PARTITIONS, orders)):
        demo.append(
            partition, [b'{"id": %d}' % number for number in numbers[partition::PARTITIONS]]
        )
    demo.sent += orders


def _runs(demo: Demo, lane: str) -> list[Any]:
    return _sql(demo.shop, "SELECT * FROM runs WHERE lane = :lane ORDER BY rowid", lane=lane)


def _waiting(demo: Demo, lane: str) -> int:
    ended: list[int] = [run.orders for run in _runs(demo, lane) if run.ended_s and not run.error]
    return demo.sent + demo.bad - sum(ended)


def _state(demo: Demo, lane: str) -> str:
    text = "no batch yet"
    for run in _runs(demo, lane)[-1:]:
        batch = f"batch of {count(run.orders)}" if run.orders or run.ended_s else "reads a batch"
        seconds = f"{(run.ended_s or time.time()) - run.began_s:.1f} s"
        text = f"{batch}, {seconds}{'' if run.ended_s else ' so far'}"
        text = f"stopped: {run.error}" if run.error else text
    return f"{text}; {count(_waiting(demo, lane))} wait"


def wait(demo: Demo, seconds: float, until: Callable[[], bool] | None = None) -> None:
    """Send orders and print the queries' state for ``seconds``, or until ``until`` returns True.

    Raise HeadraceError if ``until`` does not return True in time, or if the driver has ended.
    """
    ends_s, line_s = time.monotonic() + seconds, 0.0
    while time.monotonic() < ends_s:
        if until and until():
            return
        if not demo.driver.is_running:
            log = (demo.folder / "server.log").read_text(errors="replace").splitlines()
            raise HeadraceError("\n".join(["The demo's driver has ended:", *log[-12:]]))
        if demo.sending_s is not None:
            due = int((time.monotonic() - demo.sending_s) * ORDERS_PER_S)
            demo.sending_s += due / ORDERS_PER_S
            _send(demo, due if _waiting(demo, GATED) <= MOST_WAITING else 0)
        if demo.began_s and time.monotonic() > line_s:
            at = f"{time.monotonic() - demo.began_s:5.1f} s"
            typer.echo(f"{at}  {_state(demo, UNGATED):<46}  {_state(demo, GATED)}")
            line_s = time.monotonic() + _LINE_S
        time.sleep(_LOOK_S)
    if until:
        raise HeadraceError(
            f"The demo stopped: its next step did not happen within {seconds:.0f} s."
        )


def _backlog(demo: Demo) -> None:
    typer.echo("Starting Spark, with a query without a gate and one with a gate")
    with ThreadPoolExecutor(1) as pool:  # the import of pandas can swallow a Ctrl-C
        pool.submit(_send, demo, round(BACKLOG * demo.pace)).result()
    demo.driver.serve(demo.folder, (*DRIVER, str(demo.folder)))
    wait(demo, _HAPPENS_S, lambda: bool(_runs(demo, GATED)))
    demo.began_s = time.monotonic()
    typer.echo(
        f"1/5 A backlog. {count(demo.sent)} orders wait; {count(ORDERS_PER_S)} come each second."
        f" Without a gate the first batch takes all; the gate learns what fits into {INTERVAL_S} s."
        f"\n{'':9}{UNGATED.capitalize():<46}  {GATED.capitalize()}"
    )
    wait(demo, _HAPPENS_S, lambda: bool(_runs(demo, UNGATED)))
    demo.sending_s = time.monotonic()
    wait(demo, 13 * demo.pace)


def _slow_handler(demo: Demo) -> None:
    typer.echo(
        "2/5 The handler becomes four times slower. Without a gate each batch takes longer than"
        f" the one before. With one the batches shrink, and still take {INTERVAL_S} s."
    )
    (demo.folder / "slowness").write_text(str(SLOWDOWN))
    wait(demo, 8 * demo.pace)
    demo.append(0, [BAD_ORDER])  # the handlers get it after the waiting orders
    demo.bad += 1
    wait(demo, 8 * demo.pace)


def _bad_record(demo: Demo) -> None:
    typer.echo(
        "3/5 A bad record. The handler is fast again, and one order cannot be read. The gate's"
        " handler puts it aside as a dead letter; a plain query stops at it, sooner or later."
    )
    (demo.folder / "slowness").write_text("1")
    wait(demo, _HAPPENS_S, lambda: GATE in demo.ledger.moments.waiting_letters())


def _killed_driver(demo: Demo) -> None:
    typer.echo(
        "4/5 The driver is killed, and its checkpoint is gone: kill -9 in a batch, and no folder of"
        " a checkpoint. The gate goes on where its ledger stands, with the rate that it had learnt."
    )
    wait(
        demo, _HAPPENS_S, lambda: any(run.orders and not run.ended_s for run in _runs(demo, GATED))
    )
    demo.driver.kill()
    shutil.rmtree(demo.folder / GATED)
    _sql(demo.shop, _END, now_s=time.time(), error="killed, restarting")
    before = len(_runs(demo, GATED))
    demo.driver.serve(demo.folder, (*DRIVER, str(demo.folder)))
    # The first batch repeats the batch in which the driver was killed.
    wait(demo, _HAPPENS_S, lambda: len(_runs(demo, GATED)) > before + 1)
    wait(demo, 7 * demo.pace)


def _proof(demo: Demo) -> dict[str, int]:
    typer.echo("5/5 The proof. No more orders come. What arrived is compared with what was sent.")
    demo.sending_s = None
    for _ in range(60):  # an order that has not arrived by then is missing
        wait(demo, _LINE_S if _waiting(demo, GATED) else 0)
    rows = _sql(demo.shop, "SELECT id FROM orders WHERE lane = :lane", lane=GATED)
    letters = demo.ledger.moments.waiting_letters().get(GATE, 0)
    return count_orders([row.id for row in rows], demo.sent) | {"dead_letters": letters}


def count_orders(arrived: Sequence[int], sent: int) -> dict[str, int]:
    """Return the numbers of sent, arrived, missing and duplicate orders.

    ``arrived`` has the orders' numbers. The sent orders are numbered from 0 to ``sent - 1``; an
    order with another number counts as a duplicate.
    """
    times = Counter(arrived)
    missing = sum(number not in times for number in range(sent))
    twice = sum(often > 1 or not 0 <= number < sent for number, often in times.items())
    return {"sent": sent, "arrived": len(times), "missing": missing, "twice": twice}


def demo(
    *,
    broker: Annotated[
        bool,
        typer.Option(
            "--broker",
            help="Use a Kafka broker, which the demo starts, instead of a journal on disk.",
        ),
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=25, max=600, help="Approximate duration of the demo (s).")
    ] = 75,
    ledger: Annotated[
        str | None, typer.Option(help="Keep the ledger at this URL, to look at it afterwards.")
    ] = None,
) -> None:
    """Watch one stream in two queries: without a gate, and with one.

    A backlog waits, the handler gets slower, a record is bad, the driver is killed; in the end, the
    arrived orders are compared with the sent orders.

    The demo prints the command that shows it in the dashboard. It ends by itself and leaves nothing
    running.
    Exit status 0: each order arrived once, and the bad record became a dead letter.
    Exit status 1: an order is missing or arrived twice, or there was an error.
    """
    import pyspark  # noqa: F401, PLC0415  (the driver is a process of its own, and needs it)

    for number in ENDS:
        signal.signal(number, leave)
    logging.getLogger().addHandler(logging.NullHandler())  # only the demo prints
    with ExitStack() as cleanup:
        try:
            playing = prepare(cleanup, ledger, seconds / _WHOLE_S, broker=broker)
            for act in (_backlog, _slow_handler, _bad_record, _killed_driver):
                act(playing)
            counts = _proof(playing)
        finally:
            # Further presses of Ctrl-C do not interrupt the closing.
            for number in (signal.SIGINT, *ENDS):
                signal.signal(number, signal.SIG_IGN)
    words = {name: count(number) if number else "none" for name, number in counts.items()}
    typer.echo(
        f"{words['sent']} orders sent, {words['arrived']} arrived: {words['missing']} missing,"
        f" {words['twice']} twice.\n1 bad record sent, {words['dead_letters']} put aside."
    )
    if counts["missing"] or counts["twice"] or counts["dead_letters"] != 1:
        raise typer.Exit(1)


def prepare(cleanup: ExitStack, ledger: str | None, pace: float, *, broker: bool) -> Demo:
    """Create a temporary folder. Open the demo's ledger, SQLite file, and journal or broker in it.

    When ``cleanup`` closes, the ledger and the journal or broker are closed, the driver is stopped,
    and the folder is deleted.
    """
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
    url = ledger or f"sqlite:///{folder}/headrace.db"
    opened = cleanup.enter_context(Ledger.open(url))
    ensure_java()
    typer.echo(f"To see it in the dashboard: headrace dashboard --ledger {url}")
    if broker:
        append, options = _open_topic(start_kafka(cleanup, [TOPIC], PARTITIONS, typer.echo))
    else:
        append, options = open_journal(cleanup, folder / TOPIC)
    settings = {"ledger": url, "source": "kafka" if broker else "journal", "options": options}
    (folder / "driver.json").write_text(json.dumps(settings))
    (folder / "slowness").write_text("1")
    shop, driver = open_shop(folder), ServerProcess()
    cleanup.callback(driver.stop)
    return Demo(folder, shop, driver, opened, append, pace)


if __name__ == "__main__":
    try:
        drive(Path(sys.argv[1]))
    except Exception:
        logging.exception("The demo's driver failed")
    finally:
        # Killed, because a handler may run for another minute and its result is not needed.
        sys.stderr.flush()
        os._exit(1)
