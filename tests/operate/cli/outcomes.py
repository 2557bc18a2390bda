"""A ledger in which batches have come to every end, and commands run on it."""

import json
import shlex
import shutil
from copy import copy
from pathlib import Path
from typing import Any

from sqlalchemy import Executable, create_engine, text
from tests.gate.ledger.samples import convict
from tests.services.ledgers import new_ledger
from typer.testing import CliRunner, Result

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, DeadLetter, PlannedBatch, PlannedRange
from headrace.operate.cli.app import app

NOW_MS = 1_700_000_000_000
ERROR = ErrorReport(
    "shop.PriceError", "price is -1\nof order 7", "Traceback:\n  line 3\nprice is -1"
)
GONE = ErrorReport("DataLossError", "orders-0 [40, 50) has left Kafka.", "")
LETTER = DeadLetter(
    topic="orders",
    partition=0,
    offset=50,
    key=b"k\x00",
    value=b'{"id": 7, "price": -1}\x1b[2J\xff',
    headers=(("trace", b"\xfe"), ("none", None)),
    timestamp_ms=NOW_MS - 5_000,
    timestamp_type=1,
    error=ERROR,
)
LONG_MS = 60_000
"""A lease that outlasts every test."""


def planned(
    start: int, until: int, gate: str = "orders", checkpoint_id: str = "run"
) -> PlannedBatch:
    """A batch of one range."""
    planned_range = PlannedRange(OffsetRange("orders", 0, start, until), 100, "share")
    return PlannedBatch(
        gate, checkpoint_id, (planned_range,), "rate", "localhost:9092", lag=90, rate_per_s=50.5
    )


def one_range(offsets: OffsetRange, gate: str = "orders", servers: str = "x:1") -> PlannedBatch:
    return PlannedBatch(gate, "run", (PlannedRange(offsets),), "rate", servers)


def add_failed(
    ledger: Ledger, gate: str, offsets: OffsetRange, servers: str, *, source: str = "kafka"
) -> BatchRecord:
    ledger.gates.declare(gate, interval_ms=1_000, source=source, estimator="pid")
    batch = ledger.batches.begin(one_range(offsets, gate, servers))
    ledger.batches.fail(batch.batch_key, ValueError("it was down"))
    found = ledger.batches.get(batch.batch_key)
    assert found is not None
    return found


class Shop:
    """A ledger with a batch for every end; each attribute is a key.

    They follow each other, ten offsets each, one second after the other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/headrace.db"
        self.now_ms = NOW_MS
        with new_ledger(self.url, clock=lambda: self.now_ms) as ledger:
            ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
            keys = []
            for number in range(7):
                self.now_ms += 1_000
                keys.append(ledger.batches.begin(planned(number * 10, number * 10 + 10)).batch_key)
            self.good, self.failed, self.busy, self.left, self.dead, self.isolated, self.open = keys
            ledger.batches.attach(self.good, 7, start_time_ms=self.now_ms)
            self.now_ms += 500
            ledger.batches.succeed(self.good, records=9)
            for key in (self.failed, self.busy, self.left, self.dead):
                ledger.batches.fail(key, ERROR)
            ledger.batches.claim(self.busy, "a backfill", LONG_MS)
            ledger.batches.claim(self.left, "a backfill", 0)
            ledger.batches.claim(self.dead, "a backfill", LONG_MS)
            ledger.batches.mark_dead(self.dead, "a backfill", GONE)
            convict(ledger, self.isolated, LETTER)

    def copied_to(self, folder: Path) -> "Shop":
        """Return the same with a ledger in another folder."""
        own = copy(self)
        own.folder = folder
        own.url = f"sqlite:///{folder}/headrace.db"
        shutil.copyfile(self.url.removeprefix("sqlite:///"), folder / "headrace.db")
        busy = "UPDATE batch SET lease_until_ms = :until_ms WHERE batch_key = :key"
        until_ms = wall_clock_ms() + LONG_MS  # that of the original has ended since
        damage(own.url, text(busy).bindparams(until_ms=until_ms, key=self.busy))
        return own


def invoke(url: str, *arguments: str, width: int = 120) -> Result:
    """Run a command on a ledger, in this process."""
    runner = CliRunner(env={"HEADRACE_LEDGER": url, "COLUMNS": str(width)})
    return runner.invoke(app, arguments)


def told(url: str, command: str, exit_code: int = 0, width: int = 120) -> str:
    """Run a command, written as in a shell; return its output, and assert its exit status."""
    result = invoke(url, *shlex.split(command), width=width)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def rows(url: str, command: str, exit_code: int = 0) -> list[dict[str, Any]]:
    """The JSON objects that it prints with --json, one on each line."""
    return [json.loads(line) for line in told(url, f"{command} --json", exit_code).splitlines()]


def damage(url: str, *statements: Executable) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    engine.dispose()
