"""Gates: their declarations, the query that owns each, and their throttles.

A gate has one query: of two queries, both would process every record. The query's planner claims
the gate with a lease before planning, and each batch begins under the lease in the same statement.
So a query that has lost its gate begins no batch.

Times are the database's own, so that planners on several machines need no clock in common.
"""

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.core.system import is_gone
from headrace.errors import GateInUseError, LedgerError
from headrace.gate.control.limits import OperatorLimits
from headrace.gate.control.pressure import RateLimit
from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.error_report import storable
from headrace.gate.ledger.operator_limits import in_force
from headrace.gate.ledger.records import BatchRecord, GateMoment, GateRecord, QueryEnd, batch_from
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.transitions import new_call_id

Begun = tuple[int, BatchRecord]
"""Number of calls of a gate's `begin`, and the batch of the last call, whatever its outcome."""


@dataclass(frozen=True, slots=True)
class GateClaim:
    """A query that claims a gate, and the gate's declaration.

    Attributes:
        owner: Name of the planner's run.
        driver: Name of the process of the query's program; None if unknown.
        read: The reader of the gate from which the query was made; None without a `Gate`.
        described: The query's program, for messages.
        estimator: Settings of the rate estimator, as text.
    """

    gate: str
    owner: str
    driver: str | None
    read: str | None
    described: str
    interval_ms: int
    source: str
    estimator: str
    keeps_interval: bool = False
    """Whether an existing interval stays, as an ``auto`` interval does."""


@dataclass(frozen=True, slots=True)
class GateQuery:
    """The query that owns a gate: see `GateClaim`. Times are by the database's clock.

    Attributes:
        checkpoint: Path of the query's checkpoint, once the query's program has reported the path.
        checkpoint_id: Identity of the checkpoint, once the query has begun a batch.
        until_ms: End of the query's lease unless it is renewed.
        begins: Number of calls of the gate's `begin` when the query claimed the gate.
    """

    owner: str
    driver: str | None
    read: str | None
    described: str
    checkpoint: str | None
    checkpoint_id: str | None
    since_ms: int
    until_ms: int
    begins: int

    @property
    def has_ended(self) -> bool:
        """Whether the query's planner or program, on this machine, is known to have ended."""
        return is_gone(self.owner) or (self.driver is not None and is_gone(self.driver))


_SQL: Final = statements("gate")

_QUERY: Final = tuple(field.name for field in fields(GateQuery))
"""Columns of the query that owns a gate, without their prefix ``query_``."""

_THROTTLE: Final = ("throttle_per_s", "throttled_by", "throttle_level", "throttle_origin_per_s")
_OF_OPERATORS: Final = ("at_ms", "last_action", "hold_action", "limit_action", "stop_action")
_THROTTLES: Final = ("per_s", "by", "level", "origin_per_s")
"""Names of the throttle's values, in the order of the fields of `RateLimit`."""


def gate_names(connection: Connection) -> list[str]:
    """Return the names of all gates, in order."""
    return list(execute(connection, _SQL["names"]).scalars())


class GateStore(Store):
    """The gates of a ledger."""

    def declare(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Declare a gate, or replace its declaration; its rate and its history stay."""
        values = {
            "gate": name,
            "interval_ms": interval_ms,
            "source": source,
            "estimator": estimator,
            "gate_id": new_call_id(),
            "created_ms": self._clock(),
        }
        self._database.change(_SQL["declare"], values)

    def all(self) -> tuple[GateRecord, ...]:
        """Return all gates, by name."""
        return tuple(GateRecord(**row._asdict()) for row in self._database.rows(_SQL["gates"]))

    def get(self, name: str) -> GateRecord | None:
        """Return one gate; None if the gate is not declared."""
        rows = self._database.rows(_SQL["gates"], gate=name)
        return GateRecord(**rows[0]._asdict()) if rows else None

    def next_sequence(self, gate_name: str) -> int:
        """Count one more run of a gate's handler; return a number above all earlier numbers.

        Raises:
            LedgerError: The gate is not declared.
        """

        def count(connection: Connection) -> int | None:
            number: int | None = execute(
                connection, _SQL["next_sequence"], {"gate": gate_name}
            ).scalar()
            return number

        number = self._database.alone(count)
        if number is None:
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "declare it first."
            )
        return number

    def claim(
        self, claim: GateClaim, lease_ms: int, *, gone: str | None = None
    ) -> GateQuery | None:
        """Make a query the owner of a gate, and declare the gate with the query's settings.

        The claim succeeds if no query owns the gate, the owner has released the gate, or the
        owner's lease has expired. An owner that is ``gone``, which means known to have ended, is
        replaced at once.

        Returns:
            None if the gate belongs to the query now; else the owning query, and nothing is
            changed.
        """
        values = {
            "gate": claim.gate,
            "gate_id": new_call_id(),
            "created_ms": self._clock(),
            "interval_ms": claim.interval_ms,
            "new_interval_ms": None if claim.keeps_interval else claim.interval_ms,
            "source": claim.source,
            "estimator": claim.estimator,
            "by": claim.owner,
            "driver": claim.driver,
            "read": claim.read,
            "described": storable(claim.described),
            "lease_ms": lease_ms,
            "gone": gone,
        }

        def claimed(connection: Connection) -> GateQuery | None:
            execute(connection, _SQL["declare_new"], values)
            while not changed_rows(connection, _SQL["claim"], values):
                query = query_behind(connection, claim.gate)
                if query is not None:  # Otherwise the gate has just been released.
                    return query
            return None

        return self._database.write(claimed)

    def renew(self, gate_name: str, owner: str, lease_ms: int) -> bool:
        """Renew the lease of a gate; return whether the gate still belongs to the owner."""
        values = {"gate": gate_name, "by": owner, "lease_ms": lease_ms}
        # A lost renewal only makes the lease end one renewal earlier; the owner renews again.
        return self._changes(_SQL["renew"], values, durable=False)

    def release(self, gate_name: str, owner: str) -> bool:
        """Free a gate for the next query; return whether the gate belonged to the owner."""
        return self._changes(_SQL["release"], {"gate": gate_name, "by": owner})

    def end(
        self,
        gate_name: str,
        driver: str,
        how: QueryEnd,
        error: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Record how the query of this program has ended; the gate is free then.

        ``error`` is the error that ended the query, or who stopped it. Returns False, and changes
        nothing, if the gate belongs to another program's query or to another ``owner``.
        """
        values = {"gate": gate_name, "driver": driver, "how": how.value, "owner": owner}
        return self._changes(
            _SQL["end"], {**values, "error": None if error is None else storable(error)}
        )

    def set_checkpoint(self, gate_name: str, owner: str, checkpoint: str) -> None:
        """Record the path of the checkpoint of the query that owns a gate."""
        values = {"gate": gate_name, "by": owner, "checkpoint": storable(checkpoint)}
        self._database.change(_SQL["set_checkpoint"], values)

    def query(self, gate_name: str) -> GateQuery | None:
        """Return the query that owns a gate; None if there is none or its lease has expired."""
        return self.begun_and_query(gate_name)[1]

    def last_queries(
        self, names: Collection[str] | None = None
    ) -> Mapping[str, tuple[GateQuery, bool]]:
        """Return the query that has not released each gate, and whether its lease is in force."""
        rows = self._database.rows(_SQL["last_queries"], names=names)
        return {row.name: (_query_from(row), bool(row.query_lives)) for row in rows}

    def last_begun(self, gate_name: str) -> Begun | None:
        """Return the last call of a gate's `begin`; None before the first call."""
        return self.begun_and_query(gate_name)[0]

    def begun_and_query(self, gate_name: str) -> tuple[Begun | None, GateQuery | None]:
        """Return the answers of `last_begun` and `query` from one consistent read.

        The owner of the gate at that moment had begun that batch, or none yet.
        """
        rows = self._database.rows(_SQL["begun_and_query"], gate=gate_name)
        if not rows:
            return None, None
        row = rows[0]._mapping
        return (
            None if row["batch_key"] is None else (row["begins"], batch_from(row)),
            _query_from(rows[0]) if row["query_lives"] else None,
        )

    def now(self, gate_name: str) -> GateMoment | None:
        """Return one gate at this moment, with all limits of its next batch, or None.

        The result is None if the gate is not declared.
        """
        return next(iter(self.all_now(gate_name)), None)

    def all_now(self, gate_name: str | None = None) -> tuple[GateMoment, ...]:
        """Return all gates, or one gate, at one moment, by name, with a single statement."""

        def now(connection: Connection) -> tuple[GateMoment, ...]:
            rows = execute(connection, _SQL["gates_now"], {"gate": gate_name}).all()
            operators = in_force(connection, rows)
            return tuple(_now_from(row, operators[row.name]) for row in rows)

        return self._database.read(now)

    def ceiling(self, gate_name: str) -> str | None:
        """Return the largest batch that a gate's handler takes, as text; None if unknown."""
        text: str | None = self._database.scalar(_SQL["ceiling"], gate=gate_name)
        return text

    def change_ceiling(self, gate_name: str, before: str | None, after: str | None) -> bool:
        """Replace a gate's ceiling.

        Return False, and change nothing, if the ceiling is not ``before``.
        """
        return self._changes(
            _SQL["change_ceiling"], {"gate": gate_name, "before": before, "after": after}
        )

    def throttle(
        self, gate_name: str, limit: RateLimit | None, lease_ms: int, pressures: str
    ) -> None:
        """Throttle a gate for the time of a lease; None as its limit ends the throttle.

        A later call replaces an earlier one. The text ``pressures`` is stored and returned by
        `pressures`. An undeclared gate is not throttled; a later call may find the gate declared.
        """
        limits = (None,) * 4 if limit is None else astuple(limit)
        values = dict(zip(_THROTTLES, limits, strict=True))
        self._database.change(
            _SQL["throttle"],
            {**values, "gate": gate_name, "lease_ms": lease_ms, "heard": pressures},
        )

    def pressures(self, gate_name: str) -> str | None:
        """Return the text of the last call of `throttle`; None before the first call."""
        text: str | None = self._database.scalar(_SQL["pressures"], gate=gate_name)
        return text


def _query_from(row: Row[Any]) -> GateQuery:
    values = row._mapping
    return GateQuery(**{name: values[f"query_{name}"] for name in _QUERY})


def _now_from(row: Row[Any], operator: OperatorLimits) -> GateMoment:
    values = row._asdict()
    throttle = [values.pop(name) for name in _THROTTLE]
    for name in _OF_OPERATORS:
        del values[name]
    values["has_query"] = bool(row.has_query)  # SQLite returns a number
    rate_limit = None if row.throttle_per_s is None else RateLimit(*throttle)
    return GateMoment(**values, rate_limit=rate_limit, operator=operator)


def refuse_but(connection: Connection, gate_name: str, query: str) -> None:
    """Raise `GateInUseError`, which undoes the transaction, unless this query owns the gate."""
    owner = query_behind(connection, gate_name)
    if owner is None or owner.owner != query:
        raise GateInUseError(
            f"The gate {gate_name!r} was taken over by another query"
            f"{f' ({owner.described})' if owner is not None else ''}, for this one gave no sign of"
            " life until its lease had run out; start this query again once that one has ended."
        )


def query_behind(connection: Connection, gate_name: str) -> GateQuery | None:
    """Return the query that owns a gate, or owned the gate until its lease expired."""
    row = execute(connection, _SQL["query"], {"gate": gate_name}).one_or_none()
    return None if row is None else _query_from(row)
