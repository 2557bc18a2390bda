"""Operators' actions on running gates, one row each; a gate's row refers to the actions in force.

A gate's planner reads the references in the query that reads its rate, and the few actions in force
by key. No row is overwritten, so the history of operators' actions is complete. The planner records
in an action's row that it has seen the action. Without this, a drain could not report when the
query can be stopped: an earlier plan might still begin a batch.

Times are the database's own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.core.options import require_number, require_whole
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.limits import (
    LAST_MS,
    OperatorAction,
    OperatorActionKind,
    OperatorLimits,
)
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import storable
from headrace.gate.ledger.pruning import ROWS_AT_ONCE, some_at_once
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.transitions import Status, new_call_id

MOST_BY: Final = 100
"""Maximum length of an operator's name (characters)."""

MOST_WHY: Final = 500
"""Maximum length of a reason (characters)."""

_SQL: Final = statements("action")

_CONTROLS: Final = statements("gate")["controls"]

RESTART_LASTS_MS: Final = 86_400_000
"""Time for which a `restart` waits for a start with a new checkpoint (ms). A forgotten restart
must not read everything again when a checkpoint is lost months later."""

_PUT_IN_FORCE: Final = {
    OperatorActionKind.PAUSE: _SQL["hold"],
    OperatorActionKind.DRAIN: _SQL["hold"],
    OperatorActionKind.RESUME: _SQL["end_hold"],
    OperatorActionKind.LIMIT: _SQL["limit"],
    OperatorActionKind.UNLIMIT: _SQL["end_limit"],
    OperatorActionKind.STOP: _SQL["stop"],
    OperatorActionKind.LIFT_CEILING: _SQL["lift_ceiling"],
}
"""Statements for the kinds of actions that a planner obeys at its next plan; other kinds are
only recorded."""


class OperatorLimitStore(Store):
    """Operators' settings for each gate. A setting stays in force until an operator changes it.

    The gate's planner obeys a setting at its next plan, in any process, and after a restart too.
    Batches that have begun, and backfills, are not affected. Each method that changes a setting
    adds a row, even if nothing changes, and returns the settings then in force.

    A method raises `LedgerError` for an undeclared gate. It raises `OptionError` for a name or
    reason that is too long, or a limit out of its range.
    """

    def pause(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Stop planning batches with records for a gate; a drain becomes a pause."""
        return self._do(gate_name, OperatorActionKind.PAUSE, by, why)

    def drain(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Plan no more batches with records, to stop the query when its begun batches end."""
        return self._do(gate_name, OperatorActionKind.DRAIN, by, why)

    def resume(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """End a pause or a drain; a limit stays."""
        return self._do(gate_name, OperatorActionKind.RESUME, by, why)

    def limit(
        self,
        gate_name: str,
        records_per_s: float,
        by: str,
        why: str = "",
        until_ms: int | None = None,
    ) -> OperatorLimits:
        """Cap the rate of a gate; the cap replaces a limit that is in force.

        Args:
            gate_name: The gate.
            records_per_s: The cap over all partitions (records/s); above 0. A cap below 1 counts as
                1. The floor of each partition, ``minRatePerPartition``, takes precedence.
            by: The operator.
            why: The reason.
            until_ms: End of the cap by the ledger's clock (`Ledger.database_time_ms`). An end in
                the past has no effect. Default: None, until `unlimit` is called.
        """
        require_number("A limit", records_per_s, "records/s", above=True)
        if until_ms is not None:
            require_whole("The end of a limit", until_ms, 0, LAST_MS, unit="ms")
        return self._do(
            gate_name,
            OperatorActionKind.LIMIT,
            by,
            why,
            records_per_s=records_per_s,
            until_ms=until_ms,
        )

    def unlimit(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """End a limit before its time."""
        return self._do(gate_name, OperatorActionKind.UNLIMIT, by, why)

    def stop(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """End the query that owns a gate once the query's current batch is finished.

        The planner plans no further batch, and the query's process ends the query. The next query
        is not affected.
        """
        return self._do(gate_name, OperatorActionKind.STOP, by, why)

    def to_stop(self, gate_names: Collection[str]) -> list[str]:
        """Return the names of these gates whose query an operator has asked to end."""
        return [row.name for row in self._database.rows(_SQL["to_stop"], names=gate_names)]

    def withdraw_stop(self, gate_name: str) -> None:
        """Delete the stop of a query that has ended, before the next query starts.

        The planner also deletes the stop when it claims the gate, but the process looks for stops
        earlier.
        """
        self._database.change(_SQL["withdraw_stop"], {"gate": gate_name})

    def lift_ceiling(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Remove the size ceiling that a gate learnt from failed batches; a limit stays."""
        return self._do(gate_name, OperatorActionKind.LIFT_CEILING, by, why)

    def adopt(self, gate_name: str, target: str, by: str, why: str) -> OperatorLimits:
        """Allow the next start to use a checkpoint of another or an older ledger, by its id."""
        return self._do(gate_name, OperatorActionKind.ADOPT, by, why, target=target)

    def restart(self, gate_name: str, by: str, why: str) -> OperatorLimits:
        """Make the next start with a new checkpoint, within a day, begin by ``startingOffsets``."""
        return self._do(gate_name, OperatorActionKind.RESTART, by, why)

    def continued(self, gate_name: str, why: str) -> None:
        """Record that a query with a new checkpoint continues from the ledger's position."""
        self._do(gate_name, OperatorActionKind.CONTINUED, "headrace", why[:MOST_WHY])

    def new_checkpoints(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Return the reason of the last `continued` of each gate with a new checkpoint."""
        rows = self._database.rows(_SQL["continued"], names=names)
        return {row.gate: row.why for row in rows}

    def for_the_start(self, gate_name: str) -> tuple[OperatorAction, ...]:
        """Return the `adopt`, `restart` and `continued` actions that no start has seen yet."""
        rows = self._database.rows(
            _SQL["for_the_start"], gate=gate_name, restart_lasts_ms=RESTART_LASTS_MS
        )
        return tuple(_action(row.gate, tuple(row)) for row in rows)

    def start_obeyed(self, gate_name: str) -> None:
        """Record that a query has started, and needs no `adopt` any more."""
        self._database.change(_SQL["start_obeyed"], {"gate": gate_name})

    def restarted(self, gate_name: str) -> None:
        """Record that a query has begun a checkpoint by `restart`, so that no other query does."""
        self._database.change(_SQL["restarted"], {"gate": gate_name})

    def of(self, gate_name: str) -> OperatorLimits:
        """Return the settings in force for a gate; none for a gate that is not declared."""
        by_name = self._in_force(gate=gate_name)
        return by_name.get(gate_name) or OperatorLimits(gate_name, self._clock())

    def all(self, names: Collection[str] | None = None) -> Mapping[str, OperatorLimits]:
        """Return the settings in force for these gates, by name, from one consistent read."""
        return self._in_force(names=names)

    def _in_force(self, **values: Any) -> Mapping[str, OperatorLimits]:
        return self._database.read(
            lambda connection: in_force(connection, execute(connection, _CONTROLS, values).all())
        )

    def history(
        self, gate_name: str | None, limit: int = 100, *, before: int | None = None
    ) -> tuple[OperatorAction, ...]:
        """Return the operators' actions on a gate, or on all gates, newest first.

        With ``before``, only actions with a lower number are returned.
        """
        rows = self._database.rows(_SQL["history"], gate=gate_name, before=before, limit=limit)
        return tuple(_action(row.gate, tuple(row)) for row in rows)

    def open_batches(self, gate_name: str) -> Mapping[Status, int]:
        """Return the number of a gate's open batches, by status; dead batches are not open."""
        rows = self._database.rows(_SQL["open_batches"], gate=gate_name)
        return {Status(row.status): row.number for row in rows}

    def mark_seen(self, gate_name: str, newest: int) -> None:
        """Record that a gate's planner obeys its actions up to this number."""
        self._database.change(
            _SQL["mark_seen"], {"gate": gate_name, "newest": newest, "kinds": _PUT_IN_FORCE}
        )

    def _do(
        self,
        gate_name: str,
        kind: OperatorActionKind,
        by: str,
        why: str,
        *,
        records_per_s: float | None = None,
        until_ms: int | None = None,
        target: str | None = None,
    ) -> OperatorLimits:
        values = {
            "gate": gate_name,
            "kind": kind,
            "by_whom": operator_text("Who does it", by, 1, MOST_BY),
            "why": operator_text("The reason", why, 0, MOST_WHY),
            "records_per_s": records_per_s,
            "until_ms": until_ms,
            "target": target,
            "call": new_call_id(),
        }

        def do(connection: Connection) -> OperatorLimits:
            # Lock first: of two concurrent calls, the later row must be in force.
            if execute(connection, statements("gate")["lock"], values).scalar() is None:
                raise LedgerError(
                    f"Gate {gate_name!r} is not declared in the ledger {self._database.name};"
                    " `headrace status` lists those that are."
                )
            number = execute(connection, _SQL["new"], values).scalar()
            # There is no number if this call was made before, and its answer was lost.
            if number is not None and kind in _PUT_IN_FORCE:
                execute(connection, _PUT_IN_FORCE[kind], {"gate": gate_name, "number": number})
            rows = execute(connection, _CONTROLS, {"gate": gate_name}).all()
            return in_force(connection, rows)[gate_name]

        return self._database.write(do)


def in_force(connection: Connection, rows: Sequence[Row[Any]]) -> dict[str, OperatorLimits]:
    """Return the settings in force by gate, from rows of `controls` or `gates_now`.

    Few gates have actions in force, so a second query reads the actions: as columns, the actions
    would make each row twice as wide. LedgerError is raised for an action of an unknown kind.
    """
    by_gate: dict[str, OperatorLimits] = {}
    numbers = {number for row in rows for number in _referred(row) if number is not None}
    actions = {
        row.action_id: _action(row.gate, tuple(row))
        for some in some_at_once(list(numbers), ROWS_AT_ONCE)
        for row in execute(connection, _SQL["in_force"], {"numbers": some})
    }
    for row in rows:
        hold, limit, stop = map(actions.get, _referred(row))
        if limit is not None and limit.until_ms is not None and limit.until_ms <= row.at_ms:
            limit = None
        by_gate[row.name] = OperatorLimits(row.name, row.at_ms, hold, limit, row.last_action, stop)
    return by_gate


def _referred(row: Row[Any]) -> tuple[int | None, ...]:
    return row.hold_action, row.limit_action, row.stop_action


def _action(gate_name: str, values: Sequence[Any]) -> OperatorAction:
    number, of, kind, *details = values
    if kind not in set(OperatorActionKind):
        raise LedgerError(
            f"Action {number} on gate {gate_name!r} is {kind!r}, which is none of"
            f" {', '.join(OperatorActionKind)}, so its row was changed or damaged; restore the"
            " ledger from a copy."
        )
    return OperatorAction(number, of, OperatorActionKind(kind), *details)


def operator_text(what: str, text: str, least: int, most: int) -> str:
    """Return an operator's text on one line; raise `OptionError` for a wrong length."""
    text = " ".join(storable(text).split())
    if not least <= len(text) <= most:
        raise OptionError(f"{what} has {len(text)} characters; give {least} to {most}.")
    return text
