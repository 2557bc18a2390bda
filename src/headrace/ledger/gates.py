"""The ledger's gates and their rates."""

import math

from sqlalchemy import Connection

from headrace.errors import LedgerError
from headrace.ledger import moves, statements
from headrace.ledger.base import Base
from headrace.ledger.records import GateRecord, RateSample
from headrace.ledger.rows import rate_row
from headrace.ledger.tables import gate


class Gates(Base):
    """Gates as they were declared, and the rates that were learnt."""

    def declare_gate(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Make a gate known, or describe it anew; its rate and its history stay."""
        description = {"interval_ms": interval_ms, "source": source, "estimator": estimator}
        statement = self._database.insert(gate).on_conflict_do_update(
            index_elements=[gate.c.name], set_=description
        )
        self._database.change(statement, {"name": name, "created_ms": self._clock(), **description})

    def next_sequence(self, gate_name: str) -> int:
        """Count one run more of a gate's handler; above every number that was answered before.

        Raises:
            LedgerError: The gate is not declared.
        """

        def count(connection: Connection) -> int | None:
            number: int | None = connection.scalar(statements.NEXT_SEQUENCE, {"of": gate_name})
            return number

        number = self._database.alone(count)
        if number is None:
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "declare it first."
            )
        return number

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
        names a batch, that batch is told its number of records, if any were read. A sample is kept
        once: the same one again changes nothing.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        _refuse_no_rate(sample)
        self._database.write(lambda connection: self._publish(connection, sample))

    def report(
        self, schedule_id: str, query_batch_id: int, start_time_ms: int, sample: RateSample | None
    ) -> None:
        """Take in what the engine reports of a batch that it has done with, in one transaction.

        Args:
            schedule_id: The batch; ``in_progress`` becomes ``success`` (arrow D), and one that the
                gate's own handler has settled already stays as it is.
            query_batch_id: The engine's own number for it.
            start_time_ms: When it began (ms since the epoch).
            sample: What was learnt from it, as `publish_rate` takes it.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        if sample is not None:
            _refuse_no_rate(sample)
        ended = self._ended(schedule_id, None, None)
        attached = {
            "batch": schedule_id,
            "number": query_batch_id,
            "started_ms": start_time_ms,
            "by": None,
            "gone": None,
        }

        def report(connection: Connection) -> None:
            if sample is not None:
                self._publish(connection, sample)
            connection.execute(moves.ATTACH, attached | self._leased(None))
            connection.execute(moves.SUCCEED, ended)

        self._database.write(report)

    def _publish(self, connection: Connection, sample: RateSample) -> None:
        # First, for it makes whoever publishes for this gate wait for the one before.
        in_force = {
            "gate": sample.gate,
            "new_rate": sample.rate_per_s,
            "new_time_ms": sample.time_ms,
        }
        connection.execute(statements.SET_RATE, in_force)
        self._insert_under(sample.gate, connection, statements.KEEP_SAMPLE, rate_row(sample))
        if sample.schedule_id is not None and sample.records:
            count = {"batch": sample.schedule_id, "counted": sample.records}
            connection.execute(statements.SET_RECORDS, count)

    def rates(self, gate_name: str, limit: int = 100) -> tuple[RateSample, ...]:
        """A gate's last rate samples, newest first."""

        def rates(connection: Connection) -> tuple[RateSample, ...]:
            rows = connection.execute(statements.LAST_RATES, {"gate": gate_name, "limit": limit})
            return tuple(RateSample(**row._asdict()) for row in rows)

        return self._database.read(rates)


def _refuse_no_rate(sample: RateSample) -> None:
    new = sample.rate_per_s
    if new is not None and not (math.isfinite(new) and new > 0):
        raise LedgerError(
            f"The rate of gate {sample.gate!r} cannot be {new}; an estimator answers a "
            "positive number of records per second, or None."
        )
