"""The demo's database: what its handlers have written, and how long each batch took them."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import sqlalchemy
from sqlalchemy import Column, Connection, Float, Integer, MetaData, Table, Text, event

GATED: Final = "with a gate"
UNGATED: Final = "without a gate"

COST_S: Final = 0.0004
"""Time that a handler takes for each order (s): it waits, as for a service that it calls."""

_CHUNK: Final = 250
_METADATA: Final = MetaData()
_ORDERS: Final = Table("orders", _METADATA, Column("lane", Text, index=True), Column("id", Integer))
"""Without a unique key: what comes twice is seen."""

_RUNS: Final = Table(
    "runs",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("lane", Text),
    Column("began_s", Float),
    Column("ended_s", Float),
    Column("orders", Integer, nullable=False),
    Column("error", Text),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a handler.

    Attributes:
        lane: `GATED` or `UNGATED`.
        began_s: when, in seconds since 1970.
        ended_s: when it ended, in any way; None while it runs.
        orders: how many the batch has; 0 until they are read.
        error: why it has not processed them.
    """

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
    """An SQLite database, for the demo's own process and for its driver.

    Args:
        folder: where its file, and that with the handlers' slowness, are or will be.
    """

    def __init__(self, folder: Path) -> None:
        self._slowness = folder / "slowness"
        self.engine = sqlalchemy.create_engine(f"sqlite:///{folder / 'shop.db'}")
        event.listen(self.engine, "connect", _set_up)
        _METADATA.create_all(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.engine.dispose()

    def slow_down(self, times: int) -> None:
        """Have each order take so many times as long from now on."""
        self._slowness.write_text(str(times))

    def begin(self, lane: str) -> int:
        """A handler is called; answers the run's number."""
        with self.engine.begin() as connection:
            row = {"lane": lane, "began_s": time.time(), "orders": 0}
            inserted = connection.execute(_RUNS.insert().values(row).returning(_RUNS.c.id))
            return int(inserted.scalar_one())

    def process(self, run: int, orders: int) -> None:
        """Do the work of so many orders: wait."""
        self._update(run, orders=orders)
        for done in range(0, orders, _CHUNK):
            slowness = int(self._slowness.read_text() or "1") if self._slowness.exists() else 1
            time.sleep(min(_CHUNK, orders - done) * COST_S * slowness)

    def fail(self, run: int, error: str) -> None:
        """A handler raises."""
        self._update(run, ended_s=time.time(), error=error)

    def store(self, connection: Connection, lane: str, orders: Sequence[int]) -> None:
        """Write orders, in the caller's transaction."""
        if orders:
            rows = [{"lane": lane, "id": number} for number in orders]
            connection.execute(_ORDERS.insert(), rows)

    def end(self, run: int) -> None:
        """A handler returns."""
        self._update(run, ended_s=time.time())

    def end_all(self, error: str) -> None:
        """Nothing runs any more: the driver was killed."""
        with self.engine.begin() as connection:
            connection.execute(
                _RUNS.update()
                .where(_RUNS.c.ended_s.is_(None))
                .values(ended_s=time.time(), error=error)
            )

    def runs(self) -> list[Run]:
        """All calls of both handlers, oldest first."""
        with self.engine.connect() as connection:
            rows = connection.execute(_RUNS.select().order_by(_RUNS.c.id))
            return [Run(**row) for row in rows.mappings()]

    def times(self, lane: str) -> Mapping[int, int]:
        """Return how often each order was written, by its number."""
        with self.engine.connect() as connection:
            of_lane = sqlalchemy.select(_ORDERS.c.id).where(_ORDERS.c.lane == lane)
            return Counter(connection.execute(of_lane).scalars())

    def _update(self, run: int, **values: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(_RUNS.update().where(_RUNS.c.id == run).values(values))


def missing_and_twice(times: Mapping[int, int], sent: int) -> tuple[int, int]:
    """Count the missing orders of 0 up to ``sent``, and those that are there twice or unsent."""
    twice = sum(often > 1 or not 0 <= number < sent for number, often in times.items())
    return sent - sum(0 <= number < sent for number in times), twice


def _set_up(connection: object, _record: object) -> None:
    # Readers and the other lane's writer do not wait for a commit.
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 10000"):
        connection.execute(f"PRAGMA {pragma}")  # type: ignore[attr-defined]
