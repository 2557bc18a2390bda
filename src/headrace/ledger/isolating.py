"""How far an isolation has come, from the rows of a batch and its children."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Text, bindparam, func, null, or_, select

from headrace.ledger.batch_rows import has_children
from headrace.ledger.database import changed_rows
from headrace.ledger.pruning import DELETE_BATCHES
from headrace.ledger.store import Store
from headrace.ledger.tables import batch_table, lost
from headrace.ledger.transitions import RENEW, Kind, Status


@dataclass(frozen=True, slots=True)
class IsolationProgress:
    """How far an isolation has come.

    Attributes:
        batch_key: The batch.
        records: The offsets in it.
        runs: About how often its children were run so far; what was cut off for a control, and not
            run as a whole, counts too.
        bad: Records that have failed alone so far.
    """

    batch_key: str
    records: int
    runs: int
    bad: int


_columns = (
    batch_table.c.batch_key,
    batch_table.c.parent,
    batch_table.c.status,
    batch_table.c.attempts,
    batch_table.c.planned_records,
    batch_table.c.owner,
    batch_table.c.outcome_unknown,
)

_ROOT: Final = (
    select(*_columns)
    .where(batch_table.c.gate == bindparam("gate"))
    .where(batch_table.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]))
    .where(or_(batch_table.c.parent.is_(null()), batch_table.c.status == Status.BACKFILLING))
    .where(or_(batch_table.c.kind == Kind.LIVE, batch_table.c.status == Status.BACKFILLING))
    .where(has_children(batch_table.c.batch_key))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(1)
)

_below = (
    select(*_columns)
    .where(batch_table.c.parent == bindparam("root", type_=Text))
    .cte("below", recursive=True)
)
_below = _below.union_all(select(*_columns).where(batch_table.c.parent == _below.c.batch_key))
_parents = _below.alias("parents")
_DESCENDANTS: Final = select(
    _below,
    select(func.count())
    .select_from(_parents)
    .where(_parents.c.parent == _below.c.batch_key)
    .scalar_subquery()
    .label("children"),
)

_HAS_LOST: Final = select(func.count()).where(
    lost.c.batch_key.in_(bindparam("keys", [""], expanding=True))
)


class IsolationQueries(Store):
    """What a ledger answers of batches that are isolated."""

    def isolating(self, gate_name: str) -> IsolationProgress | None:
        """The newest batch of a gate that is isolated now, live or in a backfill, if there is one.

        A batch that a crash has left so counts too, until it is taken over.
        """
        root = next(iter(self._database.rows(_ROOT, gate=gate_name)), None)
        if root is None:
            return None
        rows = self._database.rows(_DESCENDANTS, root=root.batch_key)
        runs = sum(
            row.attempts - (row.status == Status.IN_PROGRESS and row.children == 0) for row in rows
        )
        bad = sum(
            row.planned_records == 1
            and (
                row.status == Status.DEAD or (row.status == Status.IN_PROGRESS and row.attempts > 1)
            )
            for row in rows
        )
        return IsolationProgress(root.batch_key, root.planned_records, runs, bad)

    def undo_split(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Make a batch whole again of which no part has passed, and keep it; whether it is whole.

        It stays as it is where it is another owner's, or one of its parts has passed, is done in
        another way, may be in the sink although it failed, or has lost records.
        """

        def undo(connection: Connection) -> bool:
            mine = {"batch": batch_key, "by": owner, **self._leased(lease_ms)}
            if changed_rows(connection, RENEW, mine) == 0:
                return False
            parts = connection.execute(_DESCENDANTS, {"root": batch_key}).all()
            keys = [each.batch_key for each in parts]
            failed = all(
                each.status == Status.IN_PROGRESS
                and each.owner == owner
                and not each.outcome_unknown
                for each in parts
            )
            if not failed or connection.scalar(_HAS_LOST, {"keys": keys}):
                return False
            connection.execute(DELETE_BATCHES, {"keys": keys})
            return True

        return self._database.write(undo)
