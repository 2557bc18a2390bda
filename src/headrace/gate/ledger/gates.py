"""Gates: their declarations, the query that owns each, and their throttles.

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
"""Number of calls of a gate's `begin`, and the batch of the last one, whatever its outcome."""


@dataclass(frozen=True, slots=True)
class GateClaim:
    """A query that asks for a gate, and how it declares it.

    Attributes:
        owner: names the run of the query's planner.
        driver: names the process of the query's program; None where that is not known.
        read: the reader of the gate that the query was made of; None for one without a `Gate`.
        described: the query's program, for messages.
        estimator: the settings of the rate estimator, as text.
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
    """Whether an interval that is there already stays, as one that is ``auto`` does."""


@dataclass(frozen=True, slots=True)
class GateQuery:
    """The query that stands behind a gate: see `GateClaim`. Times are by the database's clock.

    Attributes:
        checkpoint: path of its checkpoint, once its program has reported it.
        checkpoint_id: the identity of its checkpoint, once it has begun a batch.
        until_ms: when its lease runs out if it is not renewed.
        begins: number of calls of the gate's `begin` when it claimed the gate.
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
        """Whether it is known to have ended: its planner or its program is gone from here."""
        return is_gone(self.owner) or (self.driver is not None and is_gone(self.driver))


_SQL: Final = statements("gate")

_QUERY: Final = tuple(field.name for field in fields(GateQuery))
"""The columns of the query behind a gate, without their prefix ``query_``."""

_THROTTLE: Final = ("throttle_per_s", "throttled_by", "throttle_level", "throttle_origin_per_s")
_OF_OPERATORS: Final = ("at_ms", "last_action", "hold_action", "limit_action", "stop_action")
_THROTTLES: Final = ("per_s", "by", "level", "origin_per_s")
"""As the fields of a `RateLimit`."""


def gate_names(connection: Connection) -> list[str]:
    """Return the names of all gates, in order."""
    return list(execute(connection, _SQL["names"]).scalars())


class GateStore(Store):
    """The gates of a ledger."""

    def declare(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Make a gate known, or describe it again; its rate and its history stay."""
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
        """All gates, by name."""
        return tuple(GateRecord(**row._asdict()) for row in self._database.rows(_SQL["gates"]))

    def get(self, name: str) -> GateRecord | None:
        """One gate, if it is declared."""
        found = self._database.rows(_SQL["gates"], gate=name)
        return GateRecord(**found[0]._asdict()) if found else None

    def next_sequence(self, gate_name: str) -> int:
        """Count one run more of a gate's handler; above every number that was answered before.

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
        """Have a query stand behind a gate, which is declared, or described again, with that.

        It can if no other query does: none has claimed the gate, or it has released it, or its
        lease has run out, or it is ``gone``: known to have ended, which replaces it at once.

        Returns:
            None if the gate is the query's now; else the query that has it, and nothing is changed.
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
                found = query_behind(connection, claim.gate)
                if found is not None:  # else it was released just now
                    return found
            return None

        return self._database.write(claimed)

    def renew(self, gate_name: str, owner: str, lease_ms: int) -> bool:
        """Keep a gate for as long again; whether it is still the owner's."""
        values = {"gate": gate_name, "by": owner, "lease_ms": lease_ms}
        # Losing it makes the lease end one renewal earlier; its owner then renews it again.
        return self._changes(_SQL["renew"], values, durable=False)

    def release(self, gate_name: str, owner: str) -> bool:
        """Let the next query have a gate at once; whether it was the owner's."""
        return self._changes(_SQL["release"], {"gate": gate_name, "by": owner})

    def end(
        self,
        gate_name: str,
        driver: str,
        how: QueryEnd,
        error: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Say how the query of this program behind a gate has ended; the gate is free then.

        ``error`` is what ended it, or who has stopped it. Nothing is changed, and the answer is no,
        where another program's query is behind the gate, or one of another ``owner`` than is named.
        """
        values = {"gate": gate_name, "driver": driver, "how": how.value, "owner": owner}
        return self._changes(
            _SQL["end"], {**values, "error": None if error is None else storable(error)}
        )

    def set_checkpoint(self, gate_name: str, owner: str, checkpoint: str) -> None:
        """Say where the checkpoint is of the query that stands behind a gate."""
        values = {"gate": gate_name, "by": owner, "checkpoint": storable(checkpoint)}
        self._database.change(_SQL["set_checkpoint"], values)

    def query(self, gate_name: str) -> GateQuery | None:
        """The query that stands behind a gate; None if none does, or its lease has run out."""
        return self.begun_and_query(gate_name)[1]

    def last_queries(
        self, names: Collection[str] | None = None
    ) -> Mapping[str, tuple[GateQuery, bool]]:
        """The query that has not left each of these gates, and whether its lease is in force."""
        rows = self._database.rows(_SQL["last_queries"], names=names)
        return {row.name: (_query_from(row), bool(row.query_lives)) for row in rows}

    def last_begun(self, gate_name: str) -> Begun | None:
        """Return the last call of a gate's `begin`; None before the first one."""
        return self.begun_and_query(gate_name)[0]

    def begun_and_query(self, gate_name: str) -> tuple[Begun | None, GateQuery | None]:
        """Return the answers of `last_begun` and `query` from one consistent read.

        The query that owned the gate at that moment had begun that batch, or none yet.
        """
        found = self._database.rows(_SQL["begun_and_query"], gate=gate_name)
        if not found:
            return None, None
        row = found[0]._mapping
        return (
            None if row["batch_key"] is None else (row["begins"], batch_from(row)),
            _query_from(found[0]) if row["query_lives"] else None,
        )

    def now(self, gate_name: str) -> GateMoment | None:
        """One gate at this moment, with all that bounds its next batch; None if not declared."""
        return next(iter(self.all_now(gate_name)), None)

    def all_now(self, gate_name: str | None = None) -> tuple[GateMoment, ...]:
        """All gates at one moment, by name, or one; a statement, however many there are."""

        def now(connection: Connection) -> tuple[GateMoment, ...]:
            rows = execute(connection, _SQL["gates_now"], {"gate": gate_name}).all()
            operators = in_force(connection, rows)
            return tuple(_now_from(row, operators[row.name]) for row in rows)

        return self._database.read(now)

    def ceiling(self, gate_name: str) -> str | None:
        """The largest batch that a gate's handler takes, as text; None where nothing is known."""
        text: str | None = self._database.scalar(_SQL["ceiling"], gate=gate_name)
        return text

    def change_ceiling(self, gate_name: str, before: str | None, after: str | None) -> bool:
        """Replace a gate's ceiling; False, and nothing is changed, where another one is there."""
        return self._changes(
            _SQL["change_ceiling"], {"gate": gate_name, "before": before, "after": after}
        )

    def throttle(
        self, gate_name: str, limit: RateLimit | None, lease_ms: int, pressures: str
    ) -> None:
        """Throttle a gate for the time of a lease; None as its limit ends the throttle.

        A later call replaces it; `pressures` returns this text from now on. A gate that is not
        declared yet is not throttled: the next call may find it.
        """
        limits = (None,) * 4 if limit is None else astuple(limit)
        values = dict(zip(_THROTTLES, limits, strict=True))
        self._database.change(
            _SQL["throttle"],
            {**values, "gate": gate_name, "lease_ms": lease_ms, "heard": pressures},
        )

    def pressures(self, gate_name: str) -> str | None:
        """The text that `throttle` was given last; None if there was none."""
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
    values["has_query"] = bool(row.has_query)  # SQLite has no truth values
    rate_limit = None if row.throttle_per_s is None else RateLimit(*throttle)
    return GateMoment(**values, rate_limit=rate_limit, operator=operator)


def refuse_but(connection: Connection, gate_name: str, query: str) -> None:
    """Raise unless this query owns the gate; its changes are undone then."""
    found = query_behind(connection, gate_name)
    if found is None or found.owner != query:
        raise GateInUseError(
            f"The gate {gate_name!r} was taken over by another query"
            f"{f' ({found.described})' if found is not None else ''}, for this one gave no sign of"
            " life until its lease had run out; start this query again once that one has ended."
        )


def query_behind(connection: Connection, gate_name: str) -> GateQuery | None:
    """The query that stands behind a gate, or did until its lease ran out."""
    row = execute(connection, _SQL["query"], {"gate": gate_name}).one_or_none()
    return None if row is None else _query_from(row)
