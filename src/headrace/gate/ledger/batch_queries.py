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
    or_,
    select,
)

from headrace.core.ranges import shared_offsets
from headrace.core.timing import LONGEST_LEASE_MS
from headrace.errors import LedgerError
from headrace.gate.control.parts import is_within
from headrace.gate.ledger.batch_rows import (
    BATCH,
    RANGES,
    UNRESOLVED_COUNTS,
    WAITING_LETTERS,
    batch_from,
    created_within,
    is_error,
    range_from,
    rows_of,
    unresolved,
    unresolved_from,
)
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import BAD_VALUE, REJECTED, ErrorReport
from headrace.gate.ledger.gates import GATES
from headrace.gate.ledger.records import BatchRecord, PlannedRange, Unresolved, part_of
from headrace.gate.ledger.tables import (
    NowMs,
    batch_range,
    batch_table,
    dead_letter,
    gate,
    has_run_out,
)
from headrace.gate.ledger.transitions import Status


@dataclass(frozen=True, slots=True)
class IsolatedBatches:
    """Batches with records that were found bad because the handler raised.

    Attributes:
        keys: The batches.
        error: What the handler raised for the newest of the records, without its trace.
    """

    keys: frozenset[str]
    error: ErrorReport


_MOST_BAD: Final = 1_000
"""Bad records that are looked at for one gate, the newest ones."""

# A record that the handler or the schema rejected has another class.
_BAD: Final = (
    select(dead_letter.c.batch_key, dead_letter.c.error_class, dead_letter.c.error_message)
    .join(batch_table, batch_table.c.batch_key == dead_letter.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"))
    .where(batch_table.c.created_time_ms >= bindparam("since_ms"))
    .where(dead_letter.c.error_class.not_in([REJECTED, BAD_VALUE]))
    .order_by(dead_letter.c.dead_letter_id.desc())
    .limit(_MOST_BAD)
)


_SERVERS: Final = (
    select(batch_range.c.bootstrap_servers)
    .where(batch_range.c.batch_key == bindparam("batch_key"))
    .limit(1)
)

_OPEN_BATCH: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("gate"), batch_table.c.status == Status.IN_PROGRESS)
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(1)
)

_LIVE: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("gate"))
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


class BatchQueries(Store):
    """Queries of batches."""

    def isolated(self, gate_name: str, since_ms: int) -> IsolatedBatches | None:
        """Batches planned since then with records that are bad because the handler raised.

        Batches of which each part passed, and records that the handler rejected, do not count. Of
        very many such records the newest are looked at. None if there is none.
        """
        bad = self._database.rows(_BAD, gate=gate_name, since_ms=since_ms)
        if not bad:
            return None
        keys = frozenset(row.batch_key for row in bad)
        return IsolatedBatches(keys, ErrorReport(bad[0].error_class, bad[0].error_message, ""))

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

    def is_over(self, key: str) -> bool:
        """Whether what has this key, a batch or a part of one, will not be run any more."""
        batch_key, path = part_of(key)
        batch = self.get(batch_key)
        if batch is None:
            return False
        return batch.status in {Status.SUCCESS, Status.DEAD} or is_within(path, batch.parts.done)

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
    ) -> tuple[BatchRecord, ...]:
        """The last batches of one gate or of all, newest first; of every status if none is named.

        They were created at ``since_ms`` or later, and before ``until_ms``.
        """
        created = created_within(batch_table.c.created_time_ms, since_ms, until_ms)
        query = select(batch_table).where(*created)
        query = query.order_by(batch_table.c.created_time_ms.desc()).limit(limit)

        def newest(connection: Connection) -> list[BatchRecord]:
            names = [gate_name] if gate_name is not None else connection.scalars(GATES).all()
            queries = [query.where(batch_table.c.gate == name) for name in names]
            if statuses:
                queries = [
                    each.where(batch_table.c.status == s) for each in queries for s in set(statuses)
                ]
            return [batch_from(row) for row in rows_of(connection, queries)]

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

        They are ``failed``, ``backfilling`` or ``dead``; neither dead letters, nor dropped batches.
        They were created at ``since_ms`` or later, and before ``until_ms``; the class of the
        exception is named with its module or without.
        """
        created = created_within(batch_table.c.created_time_ms, since_ms, until_ms)
        query = _UNRESOLVED.where(*created).limit(limit)
        if error_class is not None:
            query = query.where(is_error(batch_table.c.error_class, error_class))
        return self._select(query, gate=gate_name)

    def count_unresolved(self, gate_name: str) -> Unresolved:
        """Count a gate's unresolved batches and records."""

        def count(connection: Connection) -> Unresolved:
            batches, letters = (
                connection.execute(counts.where(gate.c.name == gate_name))
                for counts in (UNRESOLVED_COUNTS, WAITING_LETTERS)
            )
            return unresolved_from(batches, letters).get(gate_name, Unresolved())

        return self._database.read(count)

    def with_prefix(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches whose key begins with these hexadecimal digits, by key."""
        above = prefix + "g"  # above all digits
        return self._select(_BY_PREFIX, prefix=prefix, above=above, limit=limit)

    def _select(self, statement: Executable, **values: Any) -> tuple[BatchRecord, ...]:
        return tuple(batch_from(row._mapping) for row in self._database.rows(statement, **values))


def ranges_of(connection: Connection, batch_key: str) -> tuple[PlannedRange, ...]:
    """Return the ranges of a batch, by topic, partition and offset.

    Raises:
        LedgerError: Two of them share an offset, so nobody could run each record once.
    """
    planned = tuple(range_from(row) for row in connection.execute(RANGES, {"batch_key": batch_key}))
    if (shared := shared_offsets(one.offsets for one in planned)) is not None:
        raise LedgerError(
            f"The ledger has two ranges of batch {batch_key} with the offsets {shared}, so the"
            " batch is not run; restore the ledger from a copy."
        )
    return planned
