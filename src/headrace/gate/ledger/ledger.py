"""The ledger: the store that planner, driver, command line and other applications share."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Connection, inspect, text

from headrace.core.timing import WallClock, wall_clock_ms
from headrace.errors import LedgerSchemaError, NoLedgerError
from headrace.gate.ledger.batches import BatchStore
from headrace.gate.ledger.connection import NO_RETRIES, Timeouts
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.dead_letters import DeadLetterStore
from headrace.gate.ledger.flows import OutputStore, SignalStore
from headrace.gate.ledger.gates import GateStore
from headrace.gate.ledger.history import HistoryStore
from headrace.gate.ledger.moments import MomentStore
from headrace.gate.ledger.operator_limits import OperatorLimitStore
from headrace.gate.ledger.proof import ProofStore
from headrace.gate.ledger.rates import RateStore, SinkOutageStore
from headrace.gate.ledger.receivers import ReceiverStore
from headrace.gate.ledger.repairs import RepairStore
from headrace.gate.ledger.sqlite import OTHER_LEDGER
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

_SQL: Final = statements("ledger")

MIGRATIONS: Final = Path(__file__).parent / "migrations"

# Key of the PostgreSQL advisory lock for schema changes: an arbitrary, unique number.
_MIGRATION_LOCK: Final = 0x48_45_41_44_47_41_54_45

# Alembic keeps its state in globals.
_one_upgrade_at_a_time = threading.Lock()


class Ledger:
    """Database of gates, batches, dead letters, receivers and signals that processes share.

    Every method of the stores runs one transaction; ``history.prune`` runs several. A transaction
    is durable when the method returns, and has no effect when the method raises. A method raises
    :class:`LedgerError` when the database cannot be read or written. Methods can be called from any
    thread, and from several processes at once.

    If the database cannot be reached, cuts the connection or is locked by another client, a ledger
    with a retry timeout waits and repeats the call. A repeated call gives the same result, even if
    only the answer to the first call was lost. `HistoryStore.coverage` is not repeated, nor are the
    caller's statements in a `BatchStore.transaction`. If the retry timeout passes, or the ledger
    has none, a write whose answer was lost may have taken effect.

    The status of a batch changes only by the transitions of
    :mod:`headrace.gate.ledger.transitions`, each by compare-and-set: if two callers try the same
    transition, only one gets True. A batch has one owner, for as long as the owner renews its
    lease. Only the database's clock measures leases, so the clocks of the processes may differ. A
    lease that ends later than now plus the longest allowed lease counts as expired: it was written
    before the database's clock was set back.

    ::

        with Ledger.open("sqlite:///headrace.db") as ledger:
            ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
            batch = ledger.batches.begin(planned)  # before any of its data is read
            ledger.batches.succeed(batch.batch_key)  # or: fail(batch.batch_key, error)
            ledger.rates.history("orders")  # the rates learnt from the batch

    Attributes:
        batches: Planned batches of gates, and the outcomes of the batches.
        operator_limits: The pauses, rate limits and drains that operators have set on gates.
        gates: Declared gates, and for each gate its owning query and its throttle.
        rates: For each gate, the rate in force, and the samples from which its rates were learnt.
        dead_letters: Records that cannot be processed.
        history: Losses, coverage, checkpoints, and the pruning of old rows.
        receivers: The receivers of each gate.
        signals: The throttle signals between the stages of a flow.
        sink_outages: The sink outages during which gates hold their batches.
        outputs: The attempts to write batches into topics.
        proofs: For each gate, the check that it leaves no offset out, and its lost and skipped
            offsets.
        repairs: Operators' actions on failed batches and dead letters, such as a retry or a drop.
        moments: Consistent snapshots of all gates, and the history of one gate.
    """

    def __init__(self, database: Database, clock: WallClock) -> None:
        self._database: Final = database
        self.batches = BatchStore(database, clock)
        self.gates = GateStore(database, clock)
        self.operator_limits = OperatorLimitStore(database, clock)
        self.rates = RateStore(database, clock)
        self.dead_letters = DeadLetterStore(database, clock)
        self.history = HistoryStore(database, clock)
        self.receivers = ReceiverStore(database, clock)
        self.signals = SignalStore(database, clock)
        self.sink_outages = SinkOutageStore(database, clock)
        self.outputs = OutputStore(database, clock)
        self.moments = MomentStore(database, clock)
        self.proofs = ProofStore(database, clock)
        self.repairs = RepairStore(database, clock)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = True,
        clock: WallClock = wall_clock_ms,
        database_clock: WallClock | None = None,
        timeouts: Timeouts = NO_RETRIES,
    ) -> Self:
        """Open a ledger. Several processes may open or create the same ledger at once.

        Args:
            url: ``sqlite:///file.db`` (its folder must exist) or ``postgresql://...``.
            create: Create a missing ledger, and upgrade an older ledger. If False, nothing is ever
                written, and read permission on the database is enough.
            clock: Clock for the times of batches (ms since the epoch).
            database_clock: Replacement for the database's own clock, which measures leases; for
                tests.
            timeouts: Timeouts of each call, and of opening.

        Raises:
            LedgerError: The URL is not a ledger URL, the database cannot be reached or used, or the
                database holds no ledger and ``create`` is False.
            LedgerSchemaError: A newer Headrace (with ``create=False``, a newer or an older one) has
                created the ledger, or another program's tables are in the database.
        """
        database = Database(url, read_only=not create, timeouts=timeouts, clock=database_clock)
        return cls._prepared(database, clock, create=create)

    @classmethod
    def join(cls, url: str, *, timeouts: Timeouts = NO_RETRIES) -> Self:
        """Open another process's ledger for writing, without creating or upgrading the ledger.

        Raises:
            LedgerError: The database cannot be reached or used, or holds no ledger.
            LedgerSchemaError: The ledger has the schema of another version of Headrace.
        """
        database = Database(url, read_only=False, must_exist=True, timeouts=timeouts)
        return cls._prepared(database, wall_clock_ms, create=False)

    @classmethod
    def _prepared(cls, database: Database, clock: WallClock, *, create: bool) -> Self:
        try:
            (_prepare if create else _check)(database)
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    @property
    def url(self) -> str:
        """The complete URL; never show it, because it may contain a password."""
        return self._database.url

    def database_time_ms(self) -> int:
        """Return the time of the database's clock, which measures leases (ms since the epoch)."""
        now_ms: int = self._database.scalar(_SQL["now"])
        return now_ms

    def shorten_log(self) -> int:
        """Truncate the ``-wal`` file of a SQLite ledger; return its remaining size (bytes).

        The size is 0 for PostgreSQL. If it is above 0, another process still needs the file.
        """
        return self._database.shorten_log()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.name!r})"


def _prepare(database: Database) -> None:
    """Create or upgrade the tables; other processes wait until this is done.

    LedgerError is raised if the database cannot be read or written, and LedgerSchemaError if a
    newer Headrace or another program created the tables.
    """
    version = _found_version(database)
    if database.is_sqlite:
        database.use_write_ahead_log()
    if version == SCHEMA_VERSION:
        return

    def upgrade(connection: Connection) -> None:
        if not database.is_sqlite:
            # Another process may need longer than `lock_timeout` to make the tables.
            connection.exec_driver_sql("SET LOCAL lock_timeout TO DEFAULT")
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        _upgrade(connection)  # without effect if another process has just upgraded

    database.write(upgrade)


def _check(database: Database) -> None:
    """Check that the tables have this version's schema, without changing anything.

    LedgerError is raised if the database cannot be read or holds no ledger. LedgerSchemaError is
    raised if the tables are another version's or another program's.
    """
    version = _found_version(database)
    if version is None:
        raise NoLedgerError(f"There is no ledger in {database.name}; {OTHER_LEDGER}.")
    if version != SCHEMA_VERSION:
        raise LedgerSchemaError(
            f"The ledger {database.name} has schema {version}, but this version of Headrace needs "
            f"schema {SCHEMA_VERSION}; start a gated query with this version to upgrade the ledger."
        )


def _found_version(database: Database) -> str | None:
    def version(connection: Connection) -> str | None:
        # Read the names of all tables at once: between two reads, another process could create a
        # ledger.
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE in tables:
            return execute(connection, _SQL["version"]).scalar()
        _refuse_strangers(database, tables)
        return None

    schema = database.read(version)
    _refuse_others(database, schema)
    return schema


def _refuse_strangers(database: Database, tables: Iterable[str]) -> None:
    taken = sorted(metadata.tables.keys() & tables)
    if taken:
        raise LedgerSchemaError(
            f"The database {database.name} has a table {taken[0]!r} that Headrace did not create; "
            "use another database for the ledger, or with PostgreSQL another schema: add "
            "?options=-csearch_path%3Dheadrace to the URL."
        )


def _refuse_others(database: Database, found: str | None) -> None:
    if found is not None and found > SCHEMA_VERSION:
        raise LedgerSchemaError(
            f"The ledger {database.name} has schema {found} of a newer Headrace, but this version "
            f"reads schemas up to {SCHEMA_VERSION}; install the newer Headrace here too, or use "
            "another ledger."
        )


def _upgrade(connection: Connection) -> None:
    # Alembic is slow to import, and a ledger that is up to date does not need Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _one_upgrade_at_a_time:
        command.upgrade(config, "head")
