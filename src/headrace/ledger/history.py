"""What was lost, and old history: deleted in steps that keep no batch waiting."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import pruning, statements
from headrace.ledger.base import Base
from headrace.ledger.bulk import insert_rows
from headrace.ledger.checkpoints import COUNT_LOSSES
from headrace.ledger.engine import Database
from headrace.ledger.identity import schedule_id
from headrace.ledger.records import Covered, Loss, Pruned
from headrace.ledger.rows import Values, known_status, loss_from, loss_row, strangeness
from headrace.ledger.tables import lost, pruned

ROWS_AT_ONCE: Final = 100
"""Batches, or rate samples, that one transaction deletes: some 10 ms."""

_KEYS_AT_ONCE: Final = 500
"""In one statement; each database has a limit of its own, some far above this."""

_BEFORE_ALL_MS: Final = -(2**63)


class History(Base):
    """Losses, and the end of old rows."""

    def record_losses(
        self,
        gate_name: str,
        ranges: Iterable[OffsetRange],
        topic_ids: Mapping[str, str] | None = None,
        *,
        schedule_id: str | None = None,
        reasons: Mapping[OffsetRange, str] | None = None,
    ) -> None:
        """Count offsets that were gone from the source before they were read.

        A loss is known by its topic, the position it begins at, and the batch that could not read
        it: recorded again, by a plan or a task that runs again, it is counted once, up to the
        offset it has reached by then.

        Args:
            gate_name: Whose they are.
            ranges: Which.
            topic_ids: Tell the topics from others made before and later under their names; by name,
                of those that have an id.
            schedule_id: The batch that could not read them; None where they were gone before one
                was planned.
            reasons: Why, by range.

        Raises:
            LedgerError: The gate is not declared, or has no such batch here.
        """
        now_ms, ids, why = self._clock(), topic_ids or {}, reasons or {}
        rows = [
            loss_row(
                Loss(
                    gate=gate_name,
                    time_ms=now_ms,
                    offsets=offsets,
                    topic_id=ids.get(offsets.topic),
                    schedule_id=schedule_id,
                    reason=why.get(offsets),
                )
            )
            for offsets in ranges
            if offsets.count
        ]
        statement = self._database.insert(lost)
        longer = statement.excluded.until_offset
        statement = statement.on_conflict_do_update(
            index_elements=list(lost.primary_key),
            set_={"until_offset": longer},
            where=lost.c.until_offset < longer,
        )

        def record(connection: Connection) -> None:
            # First, for the sum is to be of all losses that anybody has written down.
            connection.execute(pruning.LOCK_GATE, {"gate": gate_name})
            # In one transaction: a file of that name on another machine is another ledger.
            if schedule_id is not None and gate_name != connection.scalar(
                statements.GATE_OF, {"batch": schedule_id}
            ):
                raise LedgerError(
                    f"The ledger {self._database.name} has no batch {schedule_id} of gate"
                    f" {gate_name!r}, so it is not the ledger that the gate uses; give every"
                    " machine the same one."
                )
            self._insert_under(gate_name, connection, statement, rows)
            connection.execute(COUNT_LOSSES, {"of": gate_name})

        if rows:
            self._database.write(record)

    def losses(self, gate_name: str) -> tuple[Loss, ...]:
        """Everything a gate has lost, oldest first."""

        def losses(connection: Connection) -> tuple[Loss, ...]:
            return tuple(map(loss_from, connection.execute(statements.LOSSES, {"gate": gate_name})))

        return self._database.read(losses)

    def losses_of(self, schedule_ids: Collection[str]) -> Mapping[str, tuple[Loss, ...]]:
        """What batches could not read, by their keys; those that have read all are left out."""
        found: dict[str, list[Loss]] = defaultdict(list)

        def losses(connection: Connection) -> None:
            found.clear()
            for keys in _some_at_once(list(schedule_ids)):
                for row in connection.execute(statements.LOSSES_OF_BATCHES, {"batches": keys}):
                    found[row.schedule_id].append(loss_from(row))

        self._database.read(losses)
        return {key: tuple(each) for key, each in found.items()}

    def coverage(self, gate_name: str) -> Iterator[Covered]:
        """Every range of a gate's batches, by run, topic, the topic's id, partition and offset.

        Of a batch that was split both it and its parts are told. The status of one whose row says
        what no status is counts as failed; `misfits` names it. What was pruned is told too, with
        neighbouring ranges as one. The answer is read from the database bit by bit, as it stood
        when the first one was asked for.
        """
        with self._database.streaming() as connection:
            for row in connection.execute(pruning.COVERAGE, {"gate": gate_name}):
                yield Covered(
                    run_id=row.run_id,
                    schedule_id=row.schedule_id,
                    parent=row.parent,
                    has_parts=bool(row.has_parts),
                    status=known_status(row.status),
                    offsets=OffsetRange(
                        row.topic, row.partition, row.start_offset, row.until_offset
                    ),
                    created_time_ms=row.created_time_ms,
                    topic_id=row.topic_id or None,
                )

    def pruned_ranges(
        self, gate_name: str, run_id: str
    ) -> tuple[tuple[str | None, OffsetRange], ...]:
        """What the batches of one checkpoint read that were deleted as old, with the topics' ids.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        rows = self._database.read(
            lambda connection: connection.execute(pruning.PRUNED_RANGES, {"gate": gate_name}).all()
        )
        return tuple(
            (row.topic_id or None, OffsetRange(row.topic, row.partition, row[4], row[5]))
            for row in rows
            if row.run_id == run_id
        )

    def misfits(self, gate_name: str) -> Iterator[tuple[str, str]]:
        """The keys of a gate's batches and parts whose rows cannot be right; each with a sentence.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._database.streaming() as connection:
            rows = connection.execute(pruning.NAMED_RANGES, {"gate": gate_name})
            for (key, run_id, kind, status, records), of_batch in groupby(
                rows, key=lambda row: row[:5]
            ):
                ranges, ids = list[OffsetRange](), dict[str, str]()
                for row in of_batch:
                    if row.topic is None:
                        continue
                    ranges.append(
                        OffsetRange(row.topic, row.partition, row.start_offset, row.until_offset)
                    )
                    if row.topic_id is not None:
                        ids[row.topic] = row.topic_id
                planned = sum(each.count for each in ranges)
                if (strange := strangeness(kind, status)) is not None:
                    yield key, f"Batch {key} has {strange}."
                elif schedule_id(gate_name, run_id, ranges, ids) != key:
                    yield key, f"Batch {key} has other ranges than those that its key stands for."
                elif planned != records:
                    yield key, f"Batch {key} has planned {records} offsets, and has {planned}."

    def prune(self, before_ms: int) -> Pruned:
        """Delete what ended before this time: batches and rate samples, of all gates.

        A batch goes with its parts and dead letters, once it and each part is ``success``, or is
        ``dead`` with dead letters that are all resolved. Anything else is open, and never deleted,
        whatever its age; nor is a gate's newest batch: were it forgotten, an engine that repeats it
        after a crash would process it twice; nor is one that has read what another of its run has
        read too, which would be forgotten with it. Losses are kept, and so is which offsets the
        deleted batches had read. Each of its transactions is short, so that no batch waits for it.
        Of one whose answer was lost in an outage the rows are deleted, and not counted.
        """
        gates = self._database.read(
            lambda connection: [row.name for row in connection.execute(statements.GATES)]
        )
        return Pruned(
            batches=sum(_prune_batches(self._database, name, before_ms) for name in gates),
            rates=sum(_prune_rates(self._database, name, before_ms) for name in gates),
        )


def _prune_batches(database: Database, gate: str, before_ms: int) -> int:
    deleted, after_ms = 0, _BEFORE_ALL_MS
    while True:
        old = {"gate": gate, "before_ms": before_ms, "after_ms": after_ms, "limit": ROWS_AT_ONCE}
        count, last_ms = database.write(partial(_prune_some, old))
        deleted += count
        if last_ms is None:
            return deleted
        after_ms = last_ms


def _prune_some(old: Values, connection: Connection) -> tuple[int, int | None]:
    """Delete some batches; how many, and when the last one was created if there may be more."""
    connection.execute(pruning.LOCK_GATE, {"gate": old["gate"]})
    found = connection.execute(pruning.OLD_BATCHES, old).all()
    last_ms = found[-1].created_time_ms if len(found) == old["limit"] else None
    roots = [row.schedule_id for row in found]
    root_of, leaves = _closed_families(connection, roots)
    known = connection.execute(pruning.PRUNED_RANGES, {"gate": old["gate"]}).all()
    own = [
        (*row, root_of[key])
        for keys in _some_at_once(leaves)
        for key, *row in connection.execute(pruning.OLD_RANGES, {"keys": keys})
    ]
    read_twice = _read_twice([*((*row, None) for row in known), *own])
    closed = [key for key, root in root_of.items() if root not in read_twice]
    if closed:
        _remember(
            connection, old["gate"], [*known, *(r for *r, key in own if key not in read_twice)]
        )
        for keys in _some_at_once(closed):
            connection.execute(pruning.DELETE_BATCHES, {"keys": keys})
    return len({*roots}.intersection(closed)), last_ms


def _closed_families(
    connection: Connection, roots: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Those of these batches with no open part.

    Returns:
        Them and all their parts, each with the batch that it comes from; and which were not split.

    One recursive query would do. But PostgreSQL, which cannot tell how many parts it will find,
    reads the whole table for it; therefore the parts are asked for, and then the parts of these.
    """
    root_of, split, still_open = {key: key for key in roots}, set[str](), set[str]()
    level = roots
    while level:
        parts = [
            part
            for keys in _some_at_once(level)
            for part in connection.execute(pruning.PARTS_OF, {"keys": keys})
        ]
        for part in parts:
            root_of[part.schedule_id] = root_of[part.parent]
            split.add(part.parent)
            if not part.is_closed:
                still_open.add(root_of[part.parent])
        level = [part.schedule_id for part in parts]
    closed = {key: root for key, root in root_of.items() if root not in still_open}
    return closed, [key for key in closed if key not in split]


def _some_at_once(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """All of them, but no more in one statement than a database takes."""
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        yield keys[first : first + _KEYS_AT_ONCE]


def _read_twice(ranges: Iterable[tuple[Any, ...]]) -> set[str]:
    """The batches of which somebody else has read a part: the proof that there is an overlap.

    Args:
        ranges: Where a range is, its start and its end, and the batch; None where that is pruned.
    """
    found: set[str | None] = set()
    at: list[Any] = []
    reached, last = 0, None
    for *place, start, until, batch in sorted(ranges, key=lambda each: each[:-1]):
        if place != at:
            at, reached, last = place, start, None
        if start < reached:
            found |= {batch, last}
        if until > reached:
            reached, last = until, batch
    return {batch for batch in found if batch is not None}


def _remember(connection: Connection, gate: str, ranges: Iterable[Sequence[Any]]) -> None:
    """Keep that these ranges, all that there are, have been read."""
    rows: list[Values] = []
    at = None
    for *place, start, until in sorted(map(tuple, ranges)):
        if place == at and start == rows[-1]["until_offset"]:
            rows[-1]["until_offset"] = until
            continue
        at = place
        run_id, topic, topic_id, partition = place
        rows.append(
            {
                "gate": gate,
                "run_id": run_id,
                "topic": topic,
                "topic_id": topic_id,
                "partition": partition,
                "start_offset": start,
                "until_offset": until,
            }
        )
    connection.execute(pruning.FORGET_PRUNED_RANGES, {"gate": gate})
    insert_rows(connection, pruned, rows)


def _prune_rates(database: Database, gate: str, before_ms: int) -> int:
    deleted = 0
    values = {"gate": gate, "before_ms": before_ms, "limit": ROWS_AT_ONCE}
    while True:
        step = database.change(pruning.DELETE_OLD_RATES, values)
        deleted += step
        if step < ROWS_AT_ONCE:
            return deleted
