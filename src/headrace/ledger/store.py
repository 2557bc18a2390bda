"""The ledger: the one place where planner, driver, command line and other applications meet."""

from typing import Self

from headrace.core.clock import WallClock, wall_clock_ms
from headrace.ledger import schema
from headrace.ledger.backfills import Backfills
from headrace.ledger.batches import Batches
from headrace.ledger.checkpoints import Checkpoints
from headrace.ledger.claims import Claims
from headrace.ledger.dead_letters import DeadLetters
from headrace.ledger.engine import Database
from headrace.ledger.gates import Gates
from headrace.ledger.history import History
from headrace.ledger.holds import Holds
from headrace.ledger.outputs import Outputs
from headrace.ledger.parts import Parts
from headrace.ledger.receivers import Receivers
from headrace.ledger.retention import Retention
from headrace.ledger.search import Search
from headrace.ledger.signals import SignalStore


class Ledger(
    Gates,
    Claims,
    Holds,
    Batches,
    Backfills,
    Parts,
    DeadLetters,
    Receivers,
    SignalStore,
    Outputs,
    Retention,
    Search,
    Checkpoints,
    History,
):
    """Gates, batches, dead letters, receivers, signals: in a database that processes share.

    Every method is one transaction (``prune`` is several): durable when it returns, without effect
    when it raises. Each raises :class:`LedgerError` when the database cannot be read or written,
    whatever the cause. They can be called from any thread, and from several processes at once.

    A ledger with patience waits where the database cannot be reached, cuts the connection or is
    locked by somebody else, and does again what it was asked for: whether it had been done, with
    only the answer lost, or not, the answer and what is in the ledger are the same. `coverage` is
    not begun again, nor is what somebody did in a `transaction`. If patience ends, or there is
    none, a write whose answer was lost may have had its effect.

    The status of a batch moves only along the arrows of :mod:`headrace.ledger.status`, each by
    compare-and-set: of two callers that try the same move, one is told True. A batch has one owner,
    for as long as the owner renews its lease. Leases are measured by the database's clock alone, so
    the clocks of the processes may differ. A lease that ends further ahead than a lease can be long
    has run out: it was written before the database's clock was set back.

    ::

        with Ledger.open("sqlite:///headrace.db") as ledger:
            ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
            batch = ledger.begin(planned)              # before any of its data is read
            ledger.succeed(batch.schedule_id)          # or: ledger.fail(batch.schedule_id, error)
            ledger.publish_rate(sample)                # what the estimator made of it
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = True,
        clock: WallClock = wall_clock_ms,
        database_clock: WallClock | None = None,
        patience_s: float = 0,
    ) -> Self:
        """Open a ledger; several processes may do so at the same time, the first time too.

        Args:
            url: ``sqlite:///file.db`` (its folder must exist) or ``postgresql://...``.
            create: Make the ledger if there is none, and bring an older one up to date. If False,
                nothing is ever written, and the right to read is enough.
            clock: Where the times of batches come from.
            database_clock: Stands in for the database's own clock, by which leases are measured;
                for tests.
            patience_s: How long each call waits for a database that was there and is not any more.
                Opening does not wait: what cannot be reached then is more likely the wrong URL.

        Raises:
            LedgerError: The URL is not a ledger's, the database cannot be reached or used, or, with
                ``create=False``, holds no ledger.
            SchemaError: The ledger is a newer Headrace's, or its tables are somebody else's; with
                ``create=False``, also an older Headrace's.
        """
        database = Database(url, read_only=not create, patience_s=patience_s, clock=database_clock)
        try:
            if create:
                schema.prepare(database)
            else:
                schema.check(database)
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    @classmethod
    def join(cls, url: str, *, patience_s: float = 0) -> Self:
        """Open a ledger that others keep, to write into it: it is neither made nor upgraded.

        Args:
            url: As for `open`.
            patience_s: As for `open`.

        Raises:
            LedgerError: The database cannot be reached or used, or holds no ledger.
            SchemaError: The ledger is of another Headrace's version.
        """
        database = Database(url, read_only=False, must_exist=True, patience_s=patience_s)
        try:
            schema.check(database)
        except BaseException:
            database.close()
            raise
        return cls(database, wall_clock_ms)

    @property
    def url(self) -> str:
        """Where it is, in full: never to be shown, for it may hold a password."""
        return self._database.url

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.name!r})"
