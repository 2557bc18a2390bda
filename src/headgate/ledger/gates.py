"""The ledger's gates and their rates."""

import math

from sqlalchemy import Connection

from headgate.errors import LedgerError
from headgate.ledger import statements
from headgate.ledger.base import Base
from headgate.ledger.records import GateRecord, RateSample
from headgate.ledger.rows import rate_row
from headgate.ledger.tables import gate


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

        def gates(connection: Connection) -> tuple[GateRecord, ...]:
            rows = connection.execute(statements.GATES)
            return tuple(GateRecord(**row._asdict()) for row in rows)

        return self._database.read(gates)

    def rate(self, gate_name: str) -> float | None:
        """The gate's current rate, in records per second; None while none has been learnt."""

        def rate(connection: Connection) -> float | None:
            return connection.scalar(statements.CURRENT_RATE, {"gate": gate_name})

        return self._database.read(rate)

    def publish_rate(self, sample: RateSample) -> None:
        """Keep what the estimator made of a batch, and put its new rate in force.

        Where it gave none (``rate_per_s`` is None) the current rate stays in force. If the sample
        names a batch, that batch is told its number of records. A sample is kept once: the same
        one again changes nothing.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        new = sample.rate_per_s
        if new is not None and not (math.isfinite(new) and new > 0):
            raise LedgerError(
                f"The rate of gate {sample.gate!r} cannot be {new}; an estimator answers a "
                "positive number of records per second, or None."
            )
        in_force = {"gate": sample.gate, "new_rate": new, "new_time_ms": sample.time_ms}
        count = {"batch": sample.schedule_id, "counted": sample.records}

        def publish(connection: Connection) -> None:
            # First, for it makes whoever publishes for this gate wait for the one before.
            connection.execute(statements.SET_RATE, in_force)
            self._insert_under(sample.gate, connection, statements.KEEP_SAMPLE, rate_row(sample))
            if sample.schedule_id is not None:
                connection.execute(statements.SET_RECORDS, count)

        self._database.write(publish)

    def rates(self, gate_name: str, limit: int = 100) -> tuple[RateSample, ...]:
        """A gate's last rate samples, newest first."""

        def rates(connection: Connection) -> tuple[RateSample, ...]:
            rows = connection.execute(statements.LAST_RATES, {"gate": gate_name, "limit": limit})
            return tuple(RateSample(**row._asdict()) for row in rows)

        return self._database.read(rates)
