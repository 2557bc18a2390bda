"""Read-only queries of batches."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
)

from headrace.core.timing import LONGEST_LEASE_MS
from headrace.ledger.batch_rows import (
    BATCH,
    CHILDREN,
    RANGES,
    UNRESOLVED_COUNTS,
    WAITING_LETTERS,
    batch_from,
    created_within,
    has_children,
    has_dead_letters,
    is_error,
    range_from,
    together,
    unresolved,
    unresolved_from,
)
from headrace.ledger.database import Store, changed_rows
from headrace.ledger.error_report import ErrorReport
from headrace.ledger.gates import GATES
from headrace.ledger.pruning import DELETE_BATCHES
from headrace.ledger.records import BatchRecord, PlannedRange, Unresolved
from headrace.ledger.tables import (
    NowMs,
    batch_range,
    batch_table,
    gate,
    has_run_out,
    lost,
)
from headrace.ledger.transitions import RENEW, Kind, Status


@dataclass(frozen=True, slots=True)
class IsolationProgress:
    """Progress of an isolation.

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


@dataclass(frozen=True, slots=True)
class IsolatedBatches:
    """Batches with records that were found bad because the handler raised.

    Attributes:
        keys: The batches that the engine asked for, not their children.
        error: What the handler raised for the newest of the records, without its trace.
    """

    keys: frozenset[str]
    error: ErrorReport


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

_MOST_BAD: Final = 1_000
"""Bad records that are looked at for one gate, the newest ones."""

_MOST_PARENTS: Final = 300
"""Parents of these whose ancestors are looked up, the newest ones: five for each of 60 batches, as
many as the default budget of an isolation finds in a batch of a thousand records."""

# A record that was rejected is a dead letter of a batch that is a success.
_BAD: Final = (
    select(
        func.coalesce(batch_table.c.parent, batch_table.c.batch_key).label("key"),
        batch_table.c.created_time_ms,
    )
    .where(batch_table.c.gate == bindparam("gate"), batch_table.c.status == Status.DEAD)
    .where(batch_table.c.created_time_ms >= bindparam("since_ms"))
    .where(batch_table.c.error_class.is_not(None), has_dead_letters)
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(bindparam("limit"))
)
_bad = _BAD.subquery("bad")
_parents_of_bad = (
    select(_bad.c.key)
    .group_by(_bad.c.key)
    .order_by(func.max(_bad.c.created_time_ms).desc())
    .limit(_MOST_PARENTS)
    .subquery("parents_of_bad")
)
_above = (
    select(batch_table.c.batch_key, batch_table.c.parent)
    .join(_parents_of_bad, _parents_of_bad.c.key == batch_table.c.batch_key)
    .cte("above", recursive=True)
)
# UNION, without ALL: the children of one batch have ancestors in common.
_above = _above.union(
    select(batch_table.c.batch_key, batch_table.c.parent).where(
        batch_table.c.batch_key == _above.c.parent
    )
)
_ISOLATED: Final = select(_above.c.batch_key).where(_above.c.parent.is_(null()))
_NEWEST_BAD: Final = _BAD.with_only_columns(batch_table.c.error_class, batch_table.c.error_message)

_HAS_LOST: Final = select(func.count()).where(
    lost.c.batch_key.in_(bindparam("keys", [""], expanding=True))
)


class IsolationQueries(Store):
    """Queries of batches that are being isolated."""

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

    def isolated(self, gate_name: str, since_ms: int) -> IsolatedBatches | None:
        """Batches of a gate since then with records that are bad because the handler raised.

        Batches of which each part passed, and records that the handler rejected, do not count. Of
        very many such records the newest are looked at. None if there is none.
        """
        values = {"gate": gate_name, "since_ms": since_ms}

        def isolated(connection: Connection) -> IsolatedBatches | None:
            roots = connection.scalars(_ISOLATED, values | {"limit": _MOST_BAD}).all()
            if not roots:
                return None
            newest = connection.execute(_NEWEST_BAD, values | {"limit": 1}).first()
            return newest and IsolatedBatches(frozenset(roots), ErrorReport(*newest, ""))

        return self._database.read(isolated)

    def undo_split(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Undo the split of a batch that has no passed part, and keep it; whether it is whole.

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


_SERVERS: Final = (
    select(batch_range.c.bootstrap_servers)
    .where(batch_range.c.batch_key == bindparam("batch_key"))
    .limit(1)
)

_OPEN_BATCH: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("gate"), batch_table.c.status == Status.IN_PROGRESS)
    .where(batch_table.c.kind == Kind.LIVE, batch_table.c.parent.is_(None))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(1)
)

_LIVE: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("gate"))
    .where(batch_table.c.kind == Kind.LIVE, batch_table.c.parent.is_(None))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(1)
)

_SPANS: Final = _LIVE.with_only_columns(
    batch_table.c.created_time_ms, batch_table.c.end_time_ms
).limit(bindparam("limit"))

_named_or_all_gates = select(gate.c.name).where(
    or_(bindparam("gate", type_=Text).is_(None), gate.c.name == bindparam("gate"))
)

_FAILED_BATCHES: Final = (
    select(batch_table)
    .where(batch_table.c.gate.in_(_named_or_all_gates))
    .where(batch_table.c.status.in_([Status.FAILED, Status.BACKFILLING]))
    .where(or_(batch_table.c.status == Status.FAILED, has_run_out()))
    .order_by(batch_table.c.created_time_ms, batch_table.c.batch_key)
    .limit(bindparam("limit"))
)

# A backfill whose lease has run out has failed, though nobody has counted it yet.
_expired = batch_table.c.status == Status.BACKFILLING

_ended_ms = case(
    (and_(_expired, batch_table.c.lease_until_ms <= NowMs()), batch_table.c.lease_until_ms),
    else_=func.coalesce(
        batch_table.c.end_time_ms, batch_table.c.start_time_ms, batch_table.c.created_time_ms
    ),
)

_backfills = batch_table.c.backfills + case((_expired, 1), else_=0)


def _has_waited(waits_ms: Sequence[int], now_ms: int) -> ColumnElement[bool]:
    """Whether a batch that failed has waited since; an end that lies ahead is not believed."""
    *some, longest_ms = (literal(each, BigInteger) for each in waits_ms)
    cases = [(_backfills == number, wait_ms) for number, wait_ms in enumerate(some)]
    wait_ms = case(*cases, else_=longest_ms) if cases else longest_ms
    now = literal(now_ms, BigInteger)
    asked = batch_table.c.retry_ms >= _ended_ms
    return or_(asked, _ended_ms + wait_ms <= now, _ended_ms > now + LONGEST_LEASE_MS)


_BY_PREFIX: Final = (
    select(batch_table)
    .where(batch_table.c.batch_key >= bindparam("prefix"))
    .where(batch_table.c.batch_key < bindparam("above"))
    .order_by(batch_table.c.batch_key)
    .limit(bindparam("limit"))
)

_UNRESOLVED: Final = (
    select(batch_table)
    .where(batch_table.c.gate.in_(_named_or_all_gates))
    .where(unresolved)
    .order_by(batch_table.c.created_time_ms, batch_table.c.batch_key)
)


class BatchQueries(IsolationQueries):
    """Queries of batches."""

    def get(self, batch_key: str) -> BatchRecord | None:
        """One batch, if it is in the ledger."""
        return next(iter(self._select(BATCH, batch_key=batch_key)), None)

    def ranges(self, batch_key: str) -> tuple[PlannedRange, ...]:
        """Return the ranges of a batch, by topic, partition and offset; they never change."""
        return self._database.read(lambda connection: ranges_of(connection, batch_key))

    def servers(self, batch_key: str) -> str | None:
        """The brokers on which a batch was planned; None where it is not in the ledger."""
        servers: str | None = self._database.scalar(_SERVERS, batch_key=batch_key)
        return servers

    def children(self, batch_key: str) -> tuple[BatchRecord, ...]:
        """Return the children of a batch, in the order of the split; empty if it was not split."""
        return self._select(CHILDREN, batch_key=batch_key)

    def open_batch(self, gate_name: str) -> BatchRecord | None:
        """The newest batch of the gate's live stream that is ``in_progress``, if there is one."""
        return next(iter(self._select(_OPEN_BATCH, gate=gate_name)), None)

    def live(self, gate_name: str, number: int | None = None) -> BatchRecord | None:
        """The newest batch of a gate's live stream, or the newest with the engine's ``number``."""
        query = _LIVE if number is None else _LIVE.where(batch_table.c.query_batch_id == number)
        return next(iter(self._select(query, gate=gate_name)), None)

    def newest(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        statuses: Collection[Status] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
        kind: Kind | None = None,
        children: bool = True,
    ) -> tuple[BatchRecord, ...]:
        """The last batches of one gate or of all, newest first; of every status if none is named.

        They were created at ``since_ms`` or later, and before ``until_ms``. The children of batches
        that were split may be left out.
        """
        created = created_within(batch_table.c.created_time_ms, since_ms, until_ms)
        query = select(batch_table).where(*created)
        query = query.order_by(batch_table.c.created_time_ms.desc()).limit(limit)
        if kind is not None:
            query = query.where(batch_table.c.kind == kind)
        if not children:
            query = query.where(batch_table.c.parent.is_(None))

        def newest(connection: Connection) -> list[BatchRecord]:
            names = [gate_name] if gate_name is not None else connection.scalars(GATES).all()
            queries = [query.where(batch_table.c.gate == name) for name in names]
            if statuses:
                queries = [
                    each.where(batch_table.c.status == s) for each in queries for s in set(statuses)
                ]
            if not queries:
                return []
            rows = connection.execute(together(queries))
            return [batch_from(row) for row in rows.mappings()]

        found = self._database.read(newest)
        return tuple(sorted(found, key=lambda batch: -batch.created_time_ms)[:limit])

    def spans(self, gate_name: str, limit: int) -> list[tuple[int, int | None]]:
        """When the last batches of a gate's live stream began and ended (ms), newest first.

        One that runs has not ended: None.
        """
        rows = self._database.rows(_SPANS, gate=gate_name, limit=limit)
        return [(row.created_time_ms, row.end_time_ms) for row in rows]

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """Return the batches that a backfill could claim now, oldest first, of one gate or of all.

        These batches are ``failed``, or ``backfilling`` with a lease that has run out. ``waits_ms``
        has the wait after its last run: after 0, 1, 2 ... failed backfills, and the last one after
        more; batches that still wait are left out.
        """
        query = _FAILED_BATCHES
        if waits_ms:
            query = query.where(_has_waited(waits_ms, self._clock()))
        return self._select(query, gate=gate_name, limit=limit)

    def unresolved(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[BatchRecord, ...]:
        """Return the failed, unresolved batches, oldest first, of one gate or of all.

        They are ``failed``, ``backfilling``, or ``dead`` as a whole; neither single dead letters,
        nor dropped batches. They were created at ``since_ms`` or later, and before ``until_ms``;
        the class of the exception is named with its module or without.
        """
        created = created_within(batch_table.c.created_time_ms, since_ms, until_ms)
        query = _UNRESOLVED.where(*created).limit(limit)
        if error_class is not None:
            query = query.where(is_error(batch_table.c.error_class, error_class))
        return self._select(query, gate=gate_name)

    def count_unresolved(self, gate_name: str) -> Unresolved:
        """Count a gate's unresolved batches, children and records."""

        def count(connection: Connection) -> Unresolved:
            batches, letters = (
                connection.execute(counts.where(gate.c.name == gate_name))
                for counts in (UNRESOLVED_COUNTS, WAITING_LETTERS)
            )
            return unresolved_from(batches, letters).get(gate_name, Unresolved())

        return self._database.read(count)

    def with_prefix(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches and children whose key begins with these hexadecimal digits, by key."""
        above = prefix + "g"  # above all digits
        return self._select(_BY_PREFIX, prefix=prefix, above=above, limit=limit)

    def _select(self, statement: Executable, **values: Any) -> tuple[BatchRecord, ...]:
        return tuple(batch_from(row._mapping) for row in self._database.rows(statement, **values))


def ranges_of(connection: Connection, batch_key: str) -> tuple[PlannedRange, ...]:
    """Return the ranges of a batch, by topic, partition and offset."""
    rows = connection.execute(RANGES, {"batch_key": batch_key})
    return tuple(range_from(row) for row in rows)
