"""Losses of gates, ranges that their batches have read, and the pruning of both."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    func,
    not_,
    select,
)

from headrace.core.ranges import OffsetRange, TopicPartition, merge
from headrace.errors import LedgerError
from headrace.gate.ledger import batch_rows
from headrace.gate.ledger.checkpoints import (
    CHECKPOINTS,
    COUNT_LOSSES,
    CheckpointRecord,
    checkpoint_from,
)
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import MAX_MESSAGE_LENGTH, storable
from headrace.gate.ledger.gates import GATES
from headrace.gate.ledger.pruning import (
    CLOSED,
    COVERAGE,
    LOCK_GATE,
    PRUNED_RANGES,
    ROWS_AT_ONCE,
    prune_batches,
    prune_rates,
    some_at_once,
)
from headrace.gate.ledger.records import Covered, Loss, Processed, Pruned
from headrace.gate.ledger.statements import Values, offsets_in
from headrace.gate.ledger.tables import batch_range, batch_table, gate, lost, position
from headrace.gate.ledger.transitions import Status


def _select_losses(which: ColumnElement[bool]) -> Select[Any]:
    """Losses with the checkpoint of their batch, if they have one."""
    return (
        select(lost, batch_table.c.checkpoint_id)
        .outerjoin_from(lost, batch_table, batch_table.c.batch_key == lost.c.batch_key)
        .where(which)
        .order_by(
            lost.c.time_ms,
            lost.c.topic,
            lost.c.topic_id,
            lost.c.partition,
            lost.c.from_offset,
            lost.c.batch_key,
        )
    )


LOSSES: Final = _select_losses(lost.c.gate == bindparam("gate"))

LOSSES_OF_BATCHES: Final = _select_losses(
    lost.c.batch_key.in_(bindparam("batches", [""], expanding=True))
)

WITHDRAW_LOSS: Final = delete(lost).where(
    lost.c.gate == bindparam("gate"),
    lost.c.topic == bindparam("topic"),
    lost.c.partition == bindparam("partition"),
    lost.c.topic_id == bindparam("topic_id"),
    lost.c.batch_key == "",
    lost.c.from_offset == bindparam("position"),
)

_planned_of = batch_range.c["topic", "partition", "topic_id"]

LATEST_SEEN: Final = (
    select(*_planned_of, func.max(batch_range.c.latest_offset).label("latest"))
    .join(batch_table, batch_table.c.batch_key == batch_range.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"), batch_range.c.latest_offset.is_not(None))
    .group_by(*_planned_of)
)

POSITIONS: Final = select(position.c.gate, position.c.until_offsets).where(
    position.c.topic_id == bindparam("topic_id")
)

_batch_range = (
    batch_range.c.partition,
    batch_range.c.start_offset,
    batch_table.c.batch_key,
    batch_table.c.status,
)

OPEN_RANGES: Final = (
    select(*_batch_range)
    .join(batch_range, batch_range.c.batch_key == batch_table.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"), batch_range.c.topic_id == bindparam("topic_id"))
    .where(batch_table.c.status.in_([status for status in Status if status is not Status.SUCCESS]))
    .where(not_(CLOSED))
)

LAST_RANGES: Final = (
    select(*_batch_range)
    .join_from(gate, batch_table, batch_table.c.batch_key == gate.c.begun)
    .join(batch_range, batch_range.c.batch_key == batch_table.c.batch_key)
    .where(gate.c.name == bindparam("gate"), batch_range.c.topic_id == bindparam("topic_id"))
)


class HistoryStore(Store):
    """The losses and the coverage of gates."""

    def record_losses(
        self,
        gate_name: str,
        ranges: Iterable[OffsetRange],
        topic_ids: Mapping[str, str] | None = None,
        *,
        batch_key: str | None = None,
        reasons: Mapping[OffsetRange, str] | None = None,
    ) -> None:
        """Count offsets that were gone from the source before they were read.

        A loss is known by its topic, the position it begins at, and the batch that could not read
        it: recorded again, by a plan or a task that runs again, it is counted once, up to the
        offset it has reached by then. It has no batch where it was gone before one was planned. The
        topics' ids, by name, distinguish them from others made before and later under their names.

        Raises:
            LedgerError: The gate is not declared, or has no such batch here.
        """
        key = {"gate": gate_name, "time_ms": self._clock(), "batch_key": batch_key or ""}
        rows = [
            key | _loss_row(each, topic_ids or {}, reasons or {}) for each in ranges if each.count
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
            connection.execute(LOCK_GATE, {"gate": gate_name})
            # Check in the same transaction: a file of that name on another machine is another
            # ledger.
            if batch_key is not None and gate_name != connection.scalar(
                batch_rows.GATE_OF, {"batch": batch_key}
            ):
                raise LedgerError(
                    f"The ledger {self._database.name} has no batch {batch_key} of gate"
                    f" {gate_name!r}, so it is not the ledger that the gate uses; give every"
                    " machine the same one."
                )
            self._insert_under(gate_name, connection, statement, rows)
            connection.execute(COUNT_LOSSES, {"of": gate_name})

        if rows:
            self._database.write(record)

    def withdraw_loss(
        self, gate_name: str, tp: TopicPartition, topic_id: str | None, position: int
    ) -> None:
        """Delete the losses after this position that were recorded before a batch was planned."""

        def withdraw(connection: Connection) -> None:
            connection.execute(LOCK_GATE, {"gate": gate_name})
            connection.execute(
                WITHDRAW_LOSS,
                {
                    "gate": gate_name,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "topic_id": topic_id or "",
                    "position": position,
                },
            )
            connection.execute(COUNT_LOSSES, {"of": gate_name})

        self._database.write(withdraw)

    def latest_seen(self, gate_name: str) -> dict[tuple[TopicPartition, str | None], int]:
        """The highest end of each partition that a plan of the gate has seen, by the topic's id.

        A lower bound: the log may have grown since, and pruned batches do not count.
        """
        return {
            (TopicPartition(row.topic, row.partition), row.topic_id): row.latest
            for row in self._database.rows(LATEST_SEEN, gate=gate_name)
        }

    def losses(self, gate_name: str) -> tuple[Loss, ...]:
        """Everything a gate has lost, oldest first."""
        return tuple(map(_loss_from, self._database.rows(LOSSES, gate=gate_name)))

    def losses_of(self, batch_keys: Collection[str]) -> Mapping[str, tuple[Loss, ...]]:
        """Return the losses of batches, by key; batches that have read everything are left out."""
        found: dict[str, list[Loss]] = defaultdict(list)
        for keys in some_at_once(list(batch_keys), ROWS_AT_ONCE):
            for row in self._database.rows(LOSSES_OF_BATCHES, batches=keys):
                found[row.batch_key].append(_loss_from(row))
        return {key: tuple(each) for key, each in found.items()}

    def coverage(self, gate_name: str) -> Iterator[Covered]:
        """Every range of a gate's batches, by run, topic, the topic's id, partition and offset.

        Pruned ranges are included, with neighbouring ranges as one. All is as of the first row.
        """
        with self._database.snapshot() as connection:
            for row in connection.execute(COVERAGE, {"gate": gate_name}):
                yield Covered(
                    checkpoint_id=row.checkpoint_id,
                    batch_key=row.batch_key,
                    status=Status(row.status),
                    offsets=_offsets_from(row),
                    topic_id=row.topic_id or None,
                )

    def pruned_ranges(
        self, gate_name: str, checkpoint_id: str
    ) -> tuple[tuple[str | None, OffsetRange], ...]:
        """Return the ranges of the pruned batches of one checkpoint, with the topics' ids."""
        rows = self._database.rows(PRUNED_RANGES, gate=gate_name)
        return tuple(
            (row.topic_id or None, _offsets_from(row))
            for row in rows
            if row.checkpoint_id == checkpoint_id
        )

    def checkpoints(self, gate_name: str) -> tuple[CheckpointRecord, ...]:
        """Return what each checkpoint of a gate has planned, by its id and topic."""
        rows = self._database.rows(CHECKPOINTS, gate=gate_name)
        return tuple(map(checkpoint_from, rows))

    def processed_until(
        self,
        topic_id: str,
        partitions: Iterable[int],
        *,
        without: Collection[str] = (),
        keeps_last: bool = True,
    ) -> tuple[Processed, ...]:
        """Return each gate's progress in each of these partitions, by gate and partition.

        A gate needs every batch that is neither ``success`` nor dropped, whole, and whose dead
        letters are not all resolved. It needs its last batch, which the engine may ask for
        again after a crash (left out without ``keeps_last``), and the offsets that its newest run
        has not read yet. Once a run has begun in a partition, it needs nothing from below that for
        itself. Offsets that one answer calls done stay so, unless a fresh checkpoint, or an old
        copy of one, has the gate begin below. Gates in ``without`` are not asked; where no gate has
        read the topic or journal, the answer is empty.

        Its cost grows with the batches that are open or dead, not with the history.
        """
        wanted = sorted(set(partitions))

        def processed(connection: Connection) -> tuple[Processed, ...]:
            of_topic = {"topic_id": topic_id}
            # First, and then the batches: one that ends meanwhile was begun before, and one that
            # begins meanwhile goes on at a position, or above.
            found = connection.execute(POSITIONS, of_topic)
            positions = {row.gate: offsets_in(row.until_offsets) for row in found}
            return tuple(
                each
                for name in sorted(positions.keys() - set(without))
                for each in _processed_by_gate(
                    connection, name, of_topic, positions[name], wanted, keeps_last=keeps_last
                )
            )

        return self._database.read(processed)

    def reached(self, topic_id: str) -> dict[int, int]:
        """Return the highest offset that a gate has begun to read up to, by partition of an id.

        A gate that went back to a fresh checkpoint counts with that one alone.
        """
        found: dict[int, int] = {}
        for row in self._database.rows(POSITIONS, topic_id=topic_id):
            for partition, until in offsets_in(row.until_offsets).items():
                found[partition] = max(until, found.get(partition, 0))
        return found

    def prune(self, before_ms: int, *, rows_at_once: int = ROWS_AT_ONCE) -> Pruned:
        """Delete batches and rate samples of all gates that ended before this time.

        A batch goes with its dead letters, once it is ``success`` or was dropped, and they are all
        resolved. Anything else is open, and never deleted,
        whatever its age; nor is a gate's newest batch: were it forgotten, an engine that repeats it
        after a crash would process it twice; nor is a batch that overlaps with another one of its
        run: the overlap would be forgotten. Losses are kept, and so is which offsets the deleted
        batches had read. Each of its transactions is short, so that no batch waits for it. After a
        transaction whose answer was lost in an outage, the rows are deleted but not counted.
        """
        batches = rates = 0
        for gate_row in self._database.rows(GATES):
            batches += prune_batches(self._database, gate_row.name, before_ms, rows_at_once)
            rates += prune_rates(self._database, gate_row.name, before_ms, rows_at_once)
        return Pruned(batches, rates)


def lost_records(losses: Iterable[Loss]) -> int:
    """Count the lost offsets; those that several rows name count once, as tasks may write them."""
    by_topic: dict[str | None, list[OffsetRange]] = defaultdict(list)
    for loss in losses:
        by_topic[loss.topic_id].append(loss.offsets)
    merged = (ranges for own in by_topic.values() for ranges in merge(own).values())
    return sum(offsets.count for ranges in merged for offsets in ranges)


def _processed_by_gate(
    connection: Connection,
    gate_name: str,
    of_topic: Values,
    positions: Mapping[int, int],
    partitions: Sequence[int],
    *,
    keeps_last: bool,
) -> Iterator[Processed]:
    """Yield the progress of one gate in each partition."""
    found = {each: Processed(gate_name, each, positions.get(each, 0)) for each in partitions}
    for statement in (LAST_RANGES, OPEN_RANGES) if keeps_last else (OPEN_RANGES,):
        for row in connection.execute(statement, {"gate": gate_name} | of_topic):
            known = found.get(row.partition)
            if known is not None and row.start_offset <= known.until:
                found[row.partition] = Processed(
                    gate_name,
                    row.partition,
                    row.start_offset,
                    row.batch_key,
                    Status(row.status),
                )
    yield from found.values()


def _loss_row(
    offsets: OffsetRange, topic_ids: Mapping[str, str], reasons: Mapping[OffsetRange, str]
) -> Values:
    why = reasons.get(offsets)
    return {
        "topic": offsets.topic,
        "topic_id": topic_ids.get(offsets.topic, ""),
        "partition": offsets.partition,
        "from_offset": offsets.start,
        "until_offset": offsets.until,
        "reason": None if why is None else storable(why)[:MAX_MESSAGE_LENGTH],
    }


def _offsets_from(row: Row[Any]) -> OffsetRange:
    return OffsetRange(row.topic, row.partition, row.start_offset, row.until_offset)


def _loss_from(row: Row[Any]) -> Loss:
    offsets = OffsetRange(row.topic, row.partition, row.from_offset, row.until_offset)
    return Loss(
        gate=row.gate,
        time_ms=row.time_ms,
        offsets=offsets,
        topic_id=row.topic_id or None,
        batch_key=row.batch_key or None,
        reason=row.reason,
        checkpoint_id=row.checkpoint_id,
    )
