"""Gates: their declarations, their owning queries and their throttles.

Only one query may own a gate, because two queries would each process every record. The planner of
the query claims the gate with a lease before planning. The statement that begins a batch also
checks the lease. So a query that has lost its gate begins no batch.

All times are from the database's clock, so the clocks of the planners' machines may differ.
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
"""Number of batches that Spark has requested from a gate so far, and the batch requested last,
whatever its status."""


@dataclass(frozen=True, slots=True)
class GateClaim:
    """A query's claim of a gate, with the declaration of the gate.

    Attributes:
        owner: Id of the planner that claims the gate; a restarted planner has another id.
        driver: Id of the process that runs the query's program; None if unknown.
        read: Id of the `Gate.read` call that created the query's input; None for a query without a
            `Gate`.
        described: Description of the query's program, for messages.
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
    """Whether the gate keeps its stored interval: True for the interval ``auto``."""


@dataclass(frozen=True, slots=True)
class GateQuery:
    """The query that owns a gate. Times are by the database's clock (ms).

    Attributes:
        checkpoint: Path of the query's checkpoint; None until the query's program has reported the
            path.
        checkpoint_id: Id of the checkpoint; None until the query has begun a batch.
        until_ms: Time at which the query's lease ends if it is not renewed.
        begins: Number of batches that Spark had requested from the gate when the query claimed the
            gate.
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
        """Whether the planner or the program of the query ran on this machine and has ended."""
        return is_gone(self.owner) or (self.driver is not None and is_gone(self.driver))


_SQL: Final = statements("gate")

_QUERY: Final = tuple(field.name for field in fields(GateQuery))
"""Columns of the table ``gate`` that describe the owning query, without the prefix ``query_``."""

_THROTTLE: Final = ("throttle_per_s", "throttled_by", "throttle_level", "throttle_origin_per_s")
_OF_OPERATORS: Final = ("at_ms", "last_action", "hold_action", "limit_action", "stop_action")
_THROTTLES: Final = ("per_s", "by", "level", "origin_per_s")
"""Parameters of the throttle statement, in the order of the fields of `RateLimit`."""


def gate_names(connection: Connection) -> list[str]:
    """Return the names of all declared gates, sorted."""
    return list(execute(connection, _SQL["names"]).scalars())


class GateStore(Store):
    """Declarations, claims and throttles of gates in the ledger."""

    def declare(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Declare a gate, or replace its declaration without changing its rate and history."""
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
        """Return all declared gates, sorted by name."""
        return tuple(GateRecord(**row._asdict()) for row in self._database.rows(_SQL["gates"]))

    def get(self, name: str) -> GateRecord | None:
        """Return one gate; None if the gate is not declared."""
        rows = self._database.rows(_SQL["gates"], gate=name)
        return GateRecord(**rows[0]._asdict()) if rows else None

    def next_sequence(self, gate_name: str) -> int:
        """Count a new run of a gate's handler; return its sequence number.

        The number is above all earlier sequence numbers of the gate.

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
                "start its query, which declares the gate."
            )
        return number

    def claim(
        self, claim: GateClaim, lease_ms: int, *, gone: str | None = None
    ) -> GateQuery | None:
        """Make a query the owner of a gate, and declare the gate with the query's settings.

        The claim succeeds if no query owns the gate, or the owner's lease has expired. ``gone`` is
        an owner whose process is known to have ended: its claim is replaced even before its lease
        expires.

        Returns:
            None if the claim succeeded. Otherwise the other query that owns the gate; nothing is
            changed then.
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
        """Renew an owner's lease of a gate. Return False if the owner has lost the gate."""
        values = {"gate": gate_name, "by": owner, "lease_ms": lease_ms}
        # If a renewal is lost, the lease ends one renewal earlier; the owner renews it again.
        return self._changes(_SQL["renew"], values, durable=False)

    def release(self, gate_name: str, owner: str) -> bool:
        """Release a gate for another query. Return False if the owner did not own the gate."""
        return self._changes(_SQL["release"], {"gate": gate_name, "by": owner})

    def end(
        self,
        gate_name: str,
        driver: str,
        how: QueryEnd,
        error: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Record how a program's query ended, and release the gate; return True if recorded.

        ``error`` is the error that ended the query, or the person who stopped the query. The result
        is False, and nothing is changed, if another program's query or another ``owner`` owns the
        gate.
        """
        values = {"gate": gate_name, "driver": driver, "how": how.value, "owner": owner}
        return self._changes(
            _SQL["end"], {**values, "error": None if error is None else storable(error)}
        )

    def set_checkpoint(self, gate_name: str, owner: str, checkpoint: str) -> None:
        """Record the checkpoint path of the query that owns a gate."""
        values = {"gate": gate_name, "by": owner, "checkpoint": storable(checkpoint)}
        self._database.change(_SQL["set_checkpoint"], values)

    def query(self, gate_name: str) -> GateQuery | None:
        """Return the query that owns a gate; None if no query owns it or the lease has expired."""
        return self.begun_and_query(gate_name)[1]

    def last_queries(
        self, names: Collection[str] | None = None
    ) -> Mapping[str, tuple[GateQuery, bool]]:
        """Return, by gate, the newest query, and whether its lease is still in force.

        A gate that its newest query has released has no entry. ``names`` of None means all gates.
        """
        rows = self._database.rows(_SQL["last_queries"], names=names)
        return {row.name: (_query_from(row), bool(row.query_lives)) for row in rows}

    def last_begun(self, gate_name: str) -> Begun | None:
        """Return a gate's `Begun` values; None if Spark has not requested a batch from the gate."""
        return self.begun_and_query(gate_name)[0]

    def begun_and_query(self, gate_name: str) -> tuple[Begun | None, GateQuery | None]:
        """Return the results of `last_begun` and `query` from one consistent read.

        The query owned the gate at the moment when the returned batch was the newest.
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
        """Return the current state of one gate, with all limits of its next batch.

        The result is None if the gate is not declared.
        """
        return next(iter(self.all_now(gate_name)), None)

    def all_now(self, gate_name: str | None = None) -> tuple[GateMoment, ...]:
        """Return the current state of all gates, sorted by name, or of one gate."""

        def now(connection: Connection) -> tuple[GateMoment, ...]:
            rows = execute(connection, _SQL["gates_now"], {"gate": gate_name}).all()
            operators = in_force(connection, rows)
            return tuple(_now_from(row, operators[row.name]) for row in rows)

        return self._database.read(now)

    def ceiling(self, gate_name: str) -> str | None:
        """Return the text of a gate's `SizeCeiling`; None if no size limit was learnt."""
        text: str | None = self._database.scalar(_SQL["ceiling"], gate=gate_name)
        return text

    def change_ceiling(self, gate_name: str, before: str | None, after: str | None) -> bool:
        """Replace the text of a gate's `SizeCeiling` if it equals ``before``.

        The result is False, and nothing is changed, if another text is stored.
        """
        return self._changes(
            _SQL["change_ceiling"], {"gate": gate_name, "before": before, "after": after}
        )

    def throttle(
        self, gate_name: str, limit: RateLimit | None, lease_ms: int, pressures: str
    ) -> None:
        """Limit the rate of a gate for ``lease_ms``; a limit of None ends the throttle.

        Each call replaces the throttle and the stored text of the previous call. ``pressures`` is
        the text to store; the method `pressures` returns it. For an undeclared gate the call has no
        effect and raises no error.
        """
        limits = (None,) * 4 if limit is None else astuple(limit)
        values = dict(zip(_THROTTLES, limits, strict=True))
        self._database.change(
            _SQL["throttle"],
            {**values, "gate": gate_name, "lease_ms": lease_ms, "heard": pressures},
        )

    def pressures(self, gate_name: str) -> str | None:
        """Return the text ``pressures`` of the newest `throttle` call; None before a first call."""
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
    """Raise `GateInUseError`, which rolls back the transaction, unless ``query`` owns the gate."""
    owner = query_behind(connection, gate_name)
    if owner is None or owner.owner != query:
        raise GateInUseError(
            f"The gate {gate_name!r} was taken over by another query"
            f"{f' ({owner.described})' if owner is not None else ''}, because this query did not"
            " renew its lease in time; start this query again once the other query has ended."
        )


def query_behind(connection: Connection, gate_name: str) -> GateQuery | None:
    """Return the query that claimed a gate last, even if its lease has expired.

    The result is None if no query has claimed the gate, or the last query has released it.
    """
    row = execute(connection, _SQL["query"], {"gate": gate_name}).one_or_none()
    return None if row is None else _query_from(row)
