"""Operators' actions on running gates, such as a pause or a limit.

Each action is a row, and a gate's row refers to its actions in force. A planner reads these
references together with the gate's rate, and then reads the few referenced actions by key. No row
is overwritten, so the history of actions is complete. The planner marks each action that it has
applied. A drained query can be stopped after this mark; until then, an earlier plan may still begin
a batch.

All times are from the database's clock.
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
"""Maximum length of an operator's reason (characters)."""

_SQL: Final = statements("action")

_CONTROLS: Final = statements("gate")["controls"]

RESTART_LASTS_MS: Final = 86_400_000
"""Time for which a `restart` is valid (ms). A forgotten restart must not make a query read all
records again when its checkpoint is lost much later."""

_PUT_IN_FORCE: Final = {
    OperatorActionKind.PAUSE: _SQL["hold"],
    OperatorActionKind.DRAIN: _SQL["hold"],
    OperatorActionKind.RESUME: _SQL["end_hold"],
    OperatorActionKind.LIMIT: _SQL["limit"],
    OperatorActionKind.UNLIMIT: _SQL["end_limit"],
    OperatorActionKind.STOP: _SQL["stop"],
    OperatorActionKind.LIFT_CEILING: _SQL["lift_ceiling"],
}
"""Statement for each kind of action that a planner applies at its next plan. Actions of other kinds
are only recorded."""


class OperatorLimitStore(Store):
    """Operators' settings of gates; a setting stays in force until an operator changes it.

    The gate's planner applies a setting from its next plan on, even after a restart. Begun batches
    and backfills are not affected. Each method that changes a setting adds a row, even if the
    setting was in force already, and returns all settings in force.

    A method raises `LedgerError` if the gate is not declared. It raises `OptionError` if the name
    or the reason is too long, or a limit is out of its range.
    """

    def pause(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Make a gate plan no more batches with records until `resume`; this replaces a drain."""
        return self._do(gate_name, OperatorActionKind.PAUSE, by, why)

    def drain(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Make a gate plan no more batches with records, so that the query can be stopped.

        Begun batches finish.
        """
        return self._do(gate_name, OperatorActionKind.DRAIN, by, why)

    def resume(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """End a gate's pause or drain; a rate limit stays in force."""
        return self._do(gate_name, OperatorActionKind.RESUME, by, why)

    def limit(
        self,
        gate_name: str,
        records_per_s: float,
        by: str,
        why: str = "",
        until_ms: int | None = None,
    ) -> OperatorLimits:
        """Limit the rate of a gate; this replaces a limit in force.

        Args:
            gate_name: Name of the gate.
            records_per_s: Limit over all partitions (records/s); above 0. A limit below 1 counts as
                1. ``minRatePerPartition`` takes precedence over the limit.
            by: Name of the operator.
            why: The operator's reason.
            until_ms: Time at which the limit ends, by the ledger's clock
                (`Ledger.database_time_ms`). A limit with a past time has no effect. Default: None,
                no end before `unlimit`.
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
        """Remove a gate's rate limit."""
        return self._do(gate_name, OperatorActionKind.UNLIMIT, by, why)

    def stop(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Stop the query that owns a gate after the query's current batch.

        The planner plans no further batch, and the query's process then ends the query. A query
        that starts later is not affected.
        """
        return self._do(gate_name, OperatorActionKind.STOP, by, why)

    def to_stop(self, gate_names: Collection[str]) -> list[str]:
        """Return the gates whose query an operator has stopped, a subset of ``gate_names``."""
        return [row.name for row in self._database.rows(_SQL["to_stop"], names=gate_names)]

    def withdraw_stop(self, gate_name: str) -> None:
        """Remove the stop of a query that has ended, before the next query starts.

        The new query's planner also removes the stop, when it claims the gate. That is too late for
        the query's process, which checks for a stop earlier.
        """
        self._database.change(_SQL["withdraw_stop"], {"gate": gate_name})

    def lift_ceiling(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Delete the batch size limit that a gate learnt from failures; a rate limit stays."""
        return self._do(gate_name, OperatorActionKind.LIFT_CEILING, by, why)

    def adopt(self, gate_name: str, target: str, by: str, why: str) -> OperatorLimits:
        """Allow a gate's next query to start with an older checkpoint, or one of another ledger.

        ``target`` is the id of the older checkpoint, or the id of the gate in the other ledger.
        """
        return self._do(gate_name, OperatorActionKind.ADOPT, by, why, target=target)

    def restart(self, gate_name: str, by: str, why: str) -> OperatorLimits:
        """Let a query that starts a new checkpoint within a day begin at ``startingOffsets``."""
        return self._do(gate_name, OperatorActionKind.RESTART, by, why)

    def continued(self, gate_name: str, why: str) -> None:
        """Record that a query with a new checkpoint continues at the position in the ledger."""
        self._do(gate_name, OperatorActionKind.CONTINUED, "headrace", why[:MOST_WHY])

    def new_checkpoints(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Return the reason of the newest unused `continued` action, by gate."""
        rows = self._database.rows(_SQL["continued"], names=names)
        return {row.gate: row.why for row in rows}

    def for_the_start(self, gate_name: str) -> tuple[OperatorAction, ...]:
        """Return a gate's `adopt`, `restart` and `continued` actions for its query's next start.

        Actions that a start has used are left out. A `restart` older than a day is also left out.
        """
        rows = self._database.rows(
            _SQL["for_the_start"], gate=gate_name, restart_lasts_ms=RESTART_LASTS_MS
        )
        return tuple(_action(row.gate, tuple(row)) for row in rows)

    def start_obeyed(self, gate_name: str) -> None:
        """Mark a gate's `adopt` and `continued` actions as used, because a query has started."""
        self._database.change(_SQL["start_obeyed"], {"gate": gate_name})

    def restarted(self, gate_name: str) -> None:
        """Mark a gate's `restart` actions as used, because a query has started a new checkpoint."""
        self._database.change(_SQL["restarted"], {"gate": gate_name})

    def of(self, gate_name: str) -> OperatorLimits:
        """Return the settings in force for a gate; for an undeclared gate, empty settings."""
        by_name = self._in_force(gate=gate_name)
        return by_name.get(gate_name) or OperatorLimits(gate_name, self._clock())

    def all(self, names: Collection[str] | None = None) -> Mapping[str, OperatorLimits]:
        """Return the settings in force by gate, from one consistent read.

        ``names`` of None means all gates.
        """
        return self._in_force(names=names)

    def _in_force(self, **values: Any) -> Mapping[str, OperatorLimits]:
        return self._database.read(
            lambda connection: in_force(connection, execute(connection, _CONTROLS, values).all())
        )

    def history(
        self, gate_name: str | None, limit: int = 100, *, before: int | None = None
    ) -> tuple[OperatorAction, ...]:
        """Return the operators' actions on a gate, or on all gates, newest first.

        With ``before``, only actions with a lower id are returned.
        """
        rows = self._database.rows(_SQL["history"], gate=gate_name, before=before, limit=limit)
        return tuple(_action(row.gate, tuple(row)) for row in rows)

    def open_batches(self, gate_name: str) -> Mapping[Status, int]:
        """Return the number of a gate's unfinished batches, by status.

        ``success`` and ``dead`` are not counted.
        """
        rows = self._database.rows(_SQL["open_batches"], gate=gate_name)
        return {Status(row.status): row.number for row in rows}

    def mark_seen(self, gate_name: str, newest: int) -> None:
        """Mark a gate's actions up to the id ``newest`` as applied by its planner."""
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
            "by_whom": operator_text("The operator's name", by, 1, MOST_BY),
            "why": operator_text("The reason", why, 0, MOST_WHY),
            "records_per_s": records_per_s,
            "until_ms": until_ms,
            "target": target,
            "call": new_call_id(),
        }

        def do(connection: Connection) -> OperatorLimits:
            # Lock first, so that of two concurrent calls the later row is in force.
            if execute(connection, statements("gate")["lock"], values).scalar() is None:
                raise LedgerError(
                    f"Gate {gate_name!r} is not declared in the ledger {self._database.name};"
                    " `headrace status` lists the declared gates."
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

    Few gates have actions in force, so a second query reads the actions. As columns of the gate's
    row, the actions would double its width. LedgerError is raised for an action of an unknown kind.
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
            f"Action {number} on gate {gate_name!r} has the unknown kind {kind!r} (known:"
            f" {', '.join(OperatorActionKind)}), so its row was changed or damaged; restore the"
            " ledger from a backup."
        )
    return OperatorAction(number, of, OperatorActionKind(kind), *details)


def operator_text(what: str, text: str, least: int, most: int) -> str:
    """Return an operator's text on one line; raise `OptionError` if its length is wrong."""
    text = " ".join(storable(text).split())
    if not least <= len(text) <= most:
        raise OptionError(f"{what} has {len(text)} characters; give {least} to {most}.")
    return text
