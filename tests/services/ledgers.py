"""The tables of a new ledger, of which the tests make a thousand, sooner than by its migrations.

It is what those said to a database of the same kind, told to this one in one go.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import Engine, event, make_url

from headrace.core.timing import Clock
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import GateMoment, PlannedBatch, RateSample

_CHANGES: Final = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE")
_said: Final[dict[str, str]] = {}
"""By the kind of database."""


def new_ledger(url: str, **options: Any) -> Ledger:
    """A ledger that is not there yet, opened with these options of `Ledger.open`."""
    make_tables(url)
    return Ledger.open(url, **options)


def gated_ledger(
    url: str, gate: str = "orders", *done: PlannedBatch, source: str = "kafka", **options: Any
) -> Ledger:
    """A new ledger with a gate, and batches that have succeeded."""
    ledger = new_ledger(url, **options)
    ledger.gates.declare(gate, interval_ms=1_000, source=source, estimator="pid")
    succeed(ledger, *done)
    return ledger


def gate_now(ledger: Ledger, name: str = "orders") -> GateMoment:
    """A declared gate at this moment."""
    found = ledger.gates.now(name)
    assert found is not None
    return found


def succeed(ledger: Ledger, *planned: PlannedBatch) -> list[str]:
    """Begin batches, each of which succeeds; their keys."""
    keys = []
    for each in planned:
        keys.append(ledger.batches.begin(each).batch_key)
        ledger.batches.succeed(keys[-1])
    return keys


def make_tables(url: str) -> None:
    """Make those of a ledger that is not there yet; `Ledger.open` finds them up to date."""
    kind = make_url(url).get_backend_name()
    if kind not in _said:
        with _listening() as statements:
            Ledger.open(url).close()
        assert any(each.lstrip().startswith("CREATE") for each in statements), f"{url} is not new"
        _said[kind] = ";\n".join(["BEGIN", *statements, "COMMIT"])
    elif kind == "sqlite":
        with closing(sqlite3.connect(make_url(url).database or "")) as file:
            file.executescript(_said[kind])
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_said[kind].encode())


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Yield the statements by which this thread changes databases, while the block runs."""
    statements: list[str] = []
    here = threading.get_ident()

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.get_ident() == here and statement.lstrip().startswith(_CHANGES):
            statements.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", hear)


def patient(time: Clock, retry_s: float = 600) -> Timeouts:
    """Return timeouts that use this clock; the ledger's own wait for a locked file is short."""
    return Timeouts(retry_s, lock_s=0.05, clock=time)


def report_sample(ledger: Ledger, sample: RateSample) -> None:
    """Have the ledger learn a rate as from a report, of a batch that stays as it is."""
    ledger.rates.report("a batch that is not there", 0, 0, sample)
