"""Base of all stores of a ledger: its database, and its clock."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import IntegrityError

from headrace.core.timing import WallClock
from headrace.errors import LedgerError
from headrace.ledger.batch_rows import Values, error_values
from headrace.ledger.database import Database, changed_rows
from headrace.ledger.error_report import ErrorReport
from headrace.ledger.tables import lease
from headrace.ledger.transitions import new_call_id


class Store:
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

    def _changes(self, statement: Executable, values: Values | Callable[[], Values]) -> bool:
        """Run a statement that changes one row, or none; whether it has.

        Values that can be called are called for each try, so that a lease begins with that.
        """

        def change(connection: Connection) -> int:
            return changed_rows(connection, statement, values() if callable(values) else values)

        return self._database.alone(change) == 1

    def _leased(self, lease_ms: int | None) -> Values:
        return {"now_ms": self._clock(), **lease(lease_ms)}

    def _ended(self, batch_key: str, owner: str | None, records: int | None) -> Values:
        return {
            "batch": batch_key,
            "call": new_call_id(),
            "by": owner,
            "ended_ms": self._clock(),
            "counted": records,
        }

    def _failed(
        self, batch_key: str, owner: str | None, error: BaseException | ErrorReport
    ) -> Values:
        return self._ended(batch_key, owner, None) | error_values(ErrorReport.of(error))
