"""What all parts of the ledger have: its database, and its clock."""

from typing import Any, Final

from sqlalchemy import Connection, Executable, select
from sqlalchemy.exc import IntegrityError

from headrace.core.clock import WallClock
from headrace.errors import LedgerError
from headrace.ledger.engine import Database, changed_rows
from headrace.ledger.leases import lease
from headrace.ledger.moves import new_move
from headrace.ledger.now import NowMs
from headrace.ledger.records import BatchRecord, ErrorReport
from headrace.ledger.rows import Values, batch_from, error_values

_NOW: Final = select(NowMs())


class Base:
    """A database, and where the times of batches come from."""

    def __init__(self, database: Database, clock: WallClock) -> None:
        self._database = database
        self._clock = clock

    def _insert_under(
        self,
        gate_name: str,
        connection: Connection,
        statement: Executable,
        values: dict[str, Any] | list[dict[str, Any]],
    ) -> int:
        """Insert rows that belong to a gate; how many."""
        try:
            return changed_rows(connection, statement, values)
        except IntegrityError as error:
            # The gate is all that these tables refer to.
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "declare it first."
            ) from error

    def _batches(self, statement: Executable, **values: Any) -> tuple[BatchRecord, ...]:
        return self._database.read(
            lambda connection: tuple(
                map(batch_from, connection.execute(statement, values).mappings())
            )
        )

    def database_time_ms(self) -> int:
        """The time by the database's clock, by which leases are measured (ms since the epoch)."""
        return self._database.read(lambda connection: connection.execute(_NOW).scalar_one())

    def _lease(self, statement: Executable, values: Values, lease_ms: int | None) -> bool:
        """Run a statement that begins a lease, from when it is run, however late that is."""

        def run(connection: Connection) -> int:
            return changed_rows(connection, statement, values | self._leased(lease_ms))

        return self._database.alone(run) == 1

    def _leased(self, lease_ms: int | None) -> Values:
        return {"now_ms": self._clock(), **lease(lease_ms)}

    def _ended(self, schedule_id: str, owner: str | None, records: int | None) -> Values:
        return {
            "batch": schedule_id,
            "move": new_move(),
            "by": owner,
            "ended_ms": self._clock(),
            "counted": records,
        }

    def _failed(
        self, schedule_id: str, owner: str | None, error: BaseException | ErrorReport
    ) -> Values:
        report = error if isinstance(error, ErrorReport) else ErrorReport.of(error)
        return {
            "batch": schedule_id,
            "move": new_move(),
            "by": owner,
            "ended_ms": self._clock(),
            **error_values(report),
        }
