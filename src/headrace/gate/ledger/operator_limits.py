"""Operators' actions on running gates, one row each; a gate's row refers to those in force.

A gate's planner reads them in the query that reads its rate. Times are the database's own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    and_,
    bindparam,
    func,
    or_,
    select,
    update,
)

from headrace.core.options import require_number, require_whole
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.limits import (
    LAST_MS,
    OperatorAction,
    OperatorActionKind,
    OperatorLimits,
)
from headrace.gate.ledger.batch_rows import among
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import storable
from headrace.gate.ledger.pruning import LOCK_GATE
from headrace.gate.ledger.tables import NowMs, action, batch_table, gate
from headrace.gate.ledger.transitions import Status, new_call_id

MOST_BY: Final = 100
"""The longest name of who did it (characters)."""

MOST_WHY: Final = 500
"""The longest reason (characters)."""

_COLUMNS: Final = (
    "action_id",
    "gate",
    "kind",
    "by_whom",
    "why",
    "time_ms",
    "records_per_s",
    "until_ms",
    "seen_ms",
    "target",
    "outcome",
)

hold_action: Final = action.alias("hold_action")
limit_action: Final = action.alias("limit_action")
stop_action: Final = action.alias("stop_action")

CONTROL_COLUMNS: Final = (
    NowMs().label("at_ms"),
    gate.c.last_action,
    *[hold_action.c[name].label(f"hold_{name}") for name in _COLUMNS],
    *[limit_action.c[name].label(f"limit_{name}") for name in _COLUMNS],
    *[stop_action.c[name].label(f"stop_{name}") for name in _COLUMNS],
)
"""Columns that `control_from` reads, of `CONTROLLED_GATE`."""

CONTROLLED_GATE: Final = (
    gate.outerjoin(hold_action, hold_action.c.action_id == gate.c.hold_action)
    .outerjoin(stop_action, stop_action.c.action_id == gate.c.stop_action)
    .outerjoin(
        limit_action,
        and_(
            limit_action.c.action_id == gate.c.limit_action,
            or_(limit_action.c.until_ms.is_(None), limit_action.c.until_ms > NowMs()),
        ),
    )
)
"""Gates, each with the actions in force."""

_CONTROLS: Final = (
    select(gate.c.name, *CONTROL_COLUMNS).select_from(CONTROLLED_GATE).order_by(gate.c.name)
)
_CONTROL: Final = _CONTROLS.where(gate.c.name == bindparam("of"))

_STOPS: Final = (
    select(gate.c.name)
    .where(gate.c.stop_action.is_not(None))
    .where(gate.c.ended.is_(None))  # else the stop was of the query that has ended
    .where(gate.c.name.in_(bindparam("names", expanding=True)))
)

_WITHDRAW_STOP: Final = (
    update(gate)
    .where(gate.c.name == bindparam("of"))
    .where(gate.c.stop_action.is_not(None))
    .values(stop_action=None)
)

_HISTORY: Final = (
    select(action.c.gate, *action.c[_COLUMNS])
    .order_by(action.c.action_id.desc())
    .limit(bindparam("limit"))
)

_AT_A_START: Final = (
    OperatorActionKind.ADOPT,
    OperatorActionKind.RESTART,
    OperatorActionKind.CONTINUED,
)
"""Kinds of what the next start of a query sees, and no plan."""

_UNSEEN: Final = (
    update(action)
    .where(action.c.gate == bindparam("of"), action.c.seen_ms.is_(None))
    .values(seen_ms=NowMs())
)
_START_OBEYED: Final = _UNSEEN.where(
    action.c.kind.in_(_AT_A_START), action.c.kind != OperatorActionKind.RESTART
)
_RESTARTED: Final = _UNSEEN.where(action.c.kind == OperatorActionKind.RESTART)

RESTART_LASTS_MS: Final = 86_400_000
"""How long a `restart` waits for a start with a new checkpoint (ms): one that was forgotten must
not read everything again when a checkpoint is lost months later."""

_FOR_THE_START: Final = (
    select(action.c.gate, *action.c[_COLUMNS])
    .where(action.c.gate == bindparam("of"), action.c.seen_ms.is_(None))
    .where(action.c.kind.in_(_AT_A_START))
    .where(
        or_(
            action.c.kind != OperatorActionKind.RESTART,
            action.c.time_ms > NowMs() - RESTART_LASTS_MS,
        )
    )
    .order_by(action.c.action_id)
)

_CONTINUED: Final = (
    select(action.c.gate, action.c.why)
    .where(action.c.seen_ms.is_(None))
    .where(action.c.kind == OperatorActionKind.CONTINUED)
    .order_by(action.c.action_id)
)

_OPEN_BATCHES: Final = (
    select(batch_table.c.status, func.count().label("number"))
    .where(batch_table.c.gate == bindparam("of"))
    .where(batch_table.c.status.in_([Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING]))
    .group_by(batch_table.c.status)
)

_number = bindparam("number", type_=BigInteger)

_PUT_IN_FORCE: Final = {
    kind: update(gate)
    .where(gate.c.name == bindparam("of"))
    .values({column: value, "last_action": _number})
    for kind, column, value in (
        (OperatorActionKind.PAUSE, "hold_action", _number),
        (OperatorActionKind.DRAIN, "hold_action", _number),
        (OperatorActionKind.RESUME, "hold_action", None),
        (OperatorActionKind.LIMIT, "limit_action", _number),
        (OperatorActionKind.UNLIMIT, "limit_action", None),
        (OperatorActionKind.STOP, "stop_action", _number),
        (OperatorActionKind.LIFT_CEILING, "size_ceiling", None),
    )
}
"""What a planner obeys at its next plan; other kinds are only written down."""

_SEEN: Final = _UNSEEN.where(
    action.c.action_id <= bindparam("newest"), action.c.kind.in_(list(_PUT_IN_FORCE))
)


class OperatorLimitStore(Store):
    """Operators' settings for each gate. A setting stays in force until an operator changes it.

    The gate's planner obeys at its next plan, whichever process that runs in, and after a restart
    too. Batches that are begun already, and backfills, are not touched. Each method that changes a
    setting keeps a row of it, even if nothing changes by it, and returns the settings in force
    then.

    Each raises `LedgerError` for a gate that is not declared, and `OptionError` for a name or a
    reason that is too long, or a limit out of its range.
    """

    def pause(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Have a gate plan no batch with records; a drain becomes a pause."""
        return self._do(gate_name, OperatorActionKind.PAUSE, by, why)

    def drain(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Have a gate plan no batch with records, to stop its query when begun batches are done."""
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
        """Cap the rate of a gate, instead of a limit that is in force.

        Args:
            gate_name: The gate.
            records_per_s: The cap over all its partitions (records/s); above 0. Below 1 it counts
                as 1; the floor of each partition, ``minRatePerPartition``, is stronger.
            by: The operator.
            why: Why.
            until_ms: When it ends by itself, by the ledger's clock (`Ledger.database_time_ms`). One
                that is over has no effect. Default: None, when `unlimit` is called.
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
        """Have the query that stands behind a gate end once its batch is done.

        It plans no batch more, and its process ends it. The next query is not touched.
        """
        return self._do(gate_name, OperatorActionKind.STOP, by, why)

    def to_stop(self, gate_names: Collection[str]) -> list[str]:
        """Those of these gates whose query an operator has asked to end."""
        return [row.name for row in self._database.rows(_STOPS, names=list(gate_names))]

    def withdraw_stop(self, gate_name: str) -> None:
        """Forget the stop of a query that has ended, before the next one starts.

        Its planner forgets it too when it claims the gate, but the process looks for stops earlier.
        """
        self._database.change(_WITHDRAW_STOP, {"of": gate_name})

    def lift_ceiling(self, gate_name: str, by: str, why: str = "") -> OperatorLimits:
        """Forget that batches of a gate have failed for their size; a limit stays."""
        return self._do(gate_name, OperatorActionKind.LIFT_CEILING, by, why)

    def adopt(self, gate_name: str, target: str, by: str, why: str) -> OperatorLimits:
        """Allow the next start a checkpoint of another ledger, or an older one, by its id."""
        return self._do(gate_name, OperatorActionKind.ADOPT, by, why, target=target)

    def restart(self, gate_name: str, by: str, why: str) -> OperatorLimits:
        """Have the next start with a new checkpoint, within a day, begin by ``startingOffsets``."""
        return self._do(gate_name, OperatorActionKind.RESTART, by, why)

    def continued(self, gate_name: str, why: str) -> None:
        """Write down that a query with a new checkpoint goes on from the ledger's position."""
        self._do(gate_name, OperatorActionKind.CONTINUED, "headrace", why[:MOST_WHY])

    def new_checkpoints(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Return what `continued` was told at the last start of each gate with a new checkpoint."""
        rows = self._database.rows(among(_CONTINUED, action.c.gate, names))
        return {row.gate: row.why for row in rows}

    def for_the_start(self, gate_name: str) -> tuple[OperatorAction, ...]:
        """Return what `adopt`, `restart` and `continued` wrote, and no start has seen yet."""
        rows = self._database.rows(_FOR_THE_START, of=gate_name)
        return tuple(_action(row.gate, tuple(row)[1:]) for row in rows)

    def start_obeyed(self, gate_name: str) -> None:
        """Write down that a query has started, and needs no `adopt` any more."""
        self._database.change(_START_OBEYED, {"of": gate_name})

    def restarted(self, gate_name: str) -> None:
        """Write down that a query has begun a checkpoint by `restart`, so no other one does."""
        self._database.change(_RESTARTED, {"of": gate_name})

    def of(self, gate_name: str) -> OperatorLimits:
        """Return the settings in force for a gate; none for a gate that is not declared."""
        found = self._database.rows(_CONTROL, of=gate_name)
        return operator_limits_from(found[0]) if found else OperatorLimits(gate_name, self._clock())

    def all(self, names: Collection[str] | None = None) -> Mapping[str, OperatorLimits]:
        """Return the settings in force for these gates, by name, from one consistent read."""
        rows = self._database.rows(among(_CONTROLS, gate.c.name, names))
        return {row.name: operator_limits_from(row) for row in rows}

    def history(
        self, gate_name: str | None, limit: int = 100, *, before: int | None = None
    ) -> tuple[OperatorAction, ...]:
        """Return the operators' actions on a gate, or on all gates, the newest first.

        With ``before``, only the actions with a lower number.
        """
        query = _HISTORY
        if gate_name is not None:
            query = query.where(action.c.gate == gate_name)
        if before is not None:
            query = query.where(action.c.action_id < before)
        rows = self._database.rows(query, limit=limit)
        return tuple(_action(row.gate, tuple(row)[1:]) for row in rows)

    def open_batches(self, gate_name: str) -> Mapping[Status, int]:
        """Count a gate's open batches, by status; dead ones are not open."""
        rows = self._database.rows(_OPEN_BATCHES, of=gate_name)
        return {Status(row.status): row.number for row in rows}

    def mark_seen(self, gate_name: str, newest: int) -> None:
        """Write down that a gate's planner plans by its actions up to this one's number."""
        self._database.change(_SEEN, {"of": gate_name, "newest": newest})

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
        call = new_call_id()
        inserted = (
            self._database.insert(action)
            .values(
                gate=gate_name,
                kind=kind,
                by_whom=operator_text("Who does it", by, 1, MOST_BY),
                why=operator_text("The reason", why, 0, MOST_WHY),
                time_ms=NowMs(),
                records_per_s=records_per_s,
                until_ms=until_ms,
                target=target,
                last_call=call,
            )
            .on_conflict_do_nothing(index_elements=[action.c.last_call])
            .returning(action.c.action_id)
        )

        def do(connection: Connection) -> OperatorLimits:
            # First, so that of two calls the later row is the one in force.
            if connection.scalar(LOCK_GATE, {"gate": gate_name}) is None:
                raise LedgerError(
                    f"Gate {gate_name!r} is not declared in the ledger {self._database.name};"
                    " `headrace status` lists those that are."
                )
            number = connection.scalar(inserted)
            # Without a number this call was made before, and its answer was lost.
            if number is not None and kind in _PUT_IN_FORCE:
                connection.execute(_PUT_IN_FORCE[kind], {"of": gate_name, "number": number})
            return operator_limits_from(connection.execute(_CONTROL, {"of": gate_name}).one())

        return self._database.write(do)


def operator_limits_from(row: Row[Any]) -> OperatorLimits:
    """Return the settings in force, from a row with `CONTROL_COLUMNS` and the gate's name.

    Raises:
        LedgerError: One of the actions is of no known kind.
    """
    values = row._mapping
    name = values["name"]
    hold, limit, stop = (
        None
        if values[f"{what}_action_id"] is None
        else _action(name, [values[f"{what}_{column}"] for column in _COLUMNS])
        for what in ("hold", "limit", "stop")
    )
    return OperatorLimits(name, values["at_ms"], hold, limit, values["last_action"], stop)


def _action(gate_name: str, values: Sequence[Any]) -> OperatorAction:
    number, of, kind, *others = values
    if kind not in set(OperatorActionKind):
        raise LedgerError(
            f"Action {number} on gate {gate_name!r} is {kind!r}, which is none of"
            f" {', '.join(OperatorActionKind)}, so its row was changed or damaged; restore the"
            " ledger from a copy."
        )
    return OperatorAction(number, of, OperatorActionKind(kind), *others)


def operator_text(what: str, text: str, least: int, most: int) -> str:
    """Return an operator's text on one line; `OptionError` for too few characters or too many."""
    text = " ".join(storable(text).split())
    if not least <= len(text) <= most:
        raise OptionError(f"{what} has {len(text)} characters; give {least} to {most}.")
    return text
