"""The ledger's gates and their rates."""

import math

from sqlalchemy import insert

from headgate.errors import LedgerError
from headgate.ledger import statements
from headgate.ledger.base import Base
from headgate.ledger.records import GateRecord, RateSample
from headgate.ledger.rows import rate_row
from headgate.ledger.tables import gate, rate


class Gates(Base):
    """Gates as they were declared, and the rates that were learnt."""

    def declare_gate(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Make a gate known, or describe it anew; its rate and its history stay."""
        description = {"interval_ms": interval_ms, "source": source, "estimator": estimator}
        statement = self._database.insert(gate).on_conflict_do_update(
            index_elements=[gate.c.name], set_=description
        )
        self._database.change(statement, {"name": name, "created_ms": self._clock(), **description})

    def gates(self) -> tuple[GateRecord, ...]:
        """All gates, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(statements.GATES)
            return tuple(GateRecord(**row._asdict()) for row in rows)

    def rate(self, gate_name: str) -> float | None:
        """The gate's current rate, in records per second; None while none has been learnt."""
        with self._database.reading() as connection:
            return connection.scalar(statements.CURRENT_RATE, {"gate": gate_name})

    def publish_rate(self, sample: RateSample) -> None:
        """Keep what the estimator made of a batch, and put its new rate in force.

        Where it gave none (``rate_per_s`` is None) the current rate stays in force. If the sample
        names a batch, that batch is told its number of records.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        new = sample.rate_per_s
        if new is not None and not (math.isfinite(new) and new > 0):
            raise LedgerError(
                f"The rate of gate {sample.gate!r} cannot be {new}; an estimator answers a "
                "positive number of records per second, or None."
            )
        with self._database.writing() as connection:
            self._insert_under(sample.gate, connection, insert(rate), rate_row(sample))
            if new is not None:
                in_force = {"gate": sample.gate, "new_rate": new, "new_time_ms": sample.time_ms}
                connection.execute(statements.SET_RATE, in_force)
            if sample.schedule_id is not None:
                count = {"batch": sample.schedule_id, "counted": sample.records}
                connection.execute(statements.SET_RECORDS, count)

    def rates(self, gate_name: str, limit: int = 100) -> tuple[RateSample, ...]:
        """A gate's last rate samples, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(statements.LAST_RATES, {"gate": gate_name, "limit": limit})
            return tuple(RateSample(**row._asdict()) for row in rows)
