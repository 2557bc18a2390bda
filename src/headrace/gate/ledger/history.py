"""Losses of gates, ranges that their batches have read, and the pruning of both."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from headrace.core.ranges import OffsetRange, TopicPartition, merge
from headrace.errors import LedgerError
from headrace.gate.ledger.checkpoints import CheckpointRecord, checkpoint_from
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.error_report import MAX_MESSAGE_LENGTH, storable
from headrace.gate.ledger.pruning import (
    ROWS_AT_ONCE,
    prune_batches,
    prune_rates,
    some_at_once,
)
from headrace.gate.ledger.records import Covered, Loss, Processed
from headrace.gate.ledger.statements import Values, execute, offsets_in, statements
from headrace.gate.ledger.transitions import Status

_SQL: Final = statements("history")
_LOCK: Final = statements("gate")["lock"]


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

        def record(connection: Connection) -> None:
            # First, for the sum is to be of all losses that anybody has written down.
            execute(connection, _LOCK, {"gate": gate_name})
            # Check in the same transaction: a file of that name on another machine is another
            # ledger.
            if (
                batch_key is not None
                and gate_name
                != execute(
                    connection, statements("batch")["gate_of"], {"batch": batch_key}
                ).scalar()
            ):
                raise LedgerError(
                    f"The ledger {self._database.name} has no batch {batch_key} of gate"
                    f" {gate_name!r}, so it is not the ledger that the gate uses; give every"
                    " machine the same one."
                )
            self._insert_under(gate_name, connection, _SQL["record_loss"], rows)
            execute(connection, _SQL["count_losses"], {"gate": gate_name})

        if rows:
            self._database.write(record)

    def withdraw_loss(
        self, gate_name: str, tp: TopicPartition, topic_id: str | None, position: int
    ) -> None:
        """Delete the losses after this position that were recorded before a batch was planned."""

        def withdraw(connection: Connection) -> None:
            execute(connection, _LOCK, {"gate": gate_name})
            execute(
                connection,
                _SQL["withdraw_loss"],
                {
                    "gate": gate_name,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "topic_id": topic_id or "",
                    "position": position,
                },
            )
            execute(connection, _SQL["count_losses"], {"gate": gate_name})

        self._database.write(withdraw)

    def latest_seen(self, gate_name: str) -> dict[tuple[TopicPartition, str | None], int]:
        """The highest end of each partition that a plan of the gate has seen, by the topic's id.

        A lower bound: the log may have grown since, and pruned batches do not count.
        """
        return {
            (TopicPartition(row.topic, row.partition), row.topic_id): row.latest
            for row in self._database.rows(_SQL["latest_seen"], gate=gate_name)
        }

    def losses(self, gate_name: str) -> tuple[Loss, ...]:
        """Everything a gate has lost, oldest first."""
        return tuple(map(_loss_from, self._database.rows(_SQL["losses"], gate=gate_name)))

    def losses_of(self, batch_keys: Collection[str]) -> Mapping[str, tuple[Loss, ...]]:
        """Return the losses of batches, by key; batches that have read everything are left out."""
        found: dict[str, list[Loss]] = defaultdict(list)
        for keys in some_at_once(list(batch_keys), ROWS_AT_ONCE):
            for row in self._database.rows(_SQL["losses_of_batches"], batches=keys):
                found[row.batch_key].append(_loss_from(row))
        return {key: tuple(each) for key, each in found.items()}

    def coverage(self, gate_name: str) -> Iterator[Covered]:
        """Every range of a gate's batches, by run, topic, the topic's id, partition and offset.

        Pruned ranges are included, with neighbouring ranges as one. All is as of the first row.
        """
        with self._database.snapshot() as connection:
            for row in execute(connection, statements("proof")["coverage"], {"gate": gate_name}):
                yield Covered(
                    checkpoint_id=row.checkpoint_id,
                    batch_key=row.batch_key,
                    status=Status(row.status),
                    offsets=_offsets_from(row),
                    topic_id=row.topic_id or None,
                )

    def checkpoints(self, gate_name: str) -> tuple[CheckpointRecord, ...]:
        """Return what each checkpoint of a gate has planned, by its id and topic."""
        rows = self._database.rows(_SQL["checkpoints"], gate=gate_name)
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
            found = execute(connection, _SQL["positions"], of_topic)
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
        for row in self._database.rows(_SQL["positions"], topic_id=topic_id):
            for partition, until in offsets_in(row.until_offsets).items():
                found[partition] = max(until, found.get(partition, 0))
        return found

    def prune(self, before_ms: int, *, rows_at_once: int = ROWS_AT_ONCE) -> tuple[int, int]:
        """Delete batches and rate samples of all gates that ended before this time; how many.

        A batch goes with its dead letters, once it is ``success`` or was dropped, and they are all
        resolved. Anything else is open, and never deleted,
        whatever its age; nor is a gate's newest batch: were it forgotten, an engine that repeats it
        after a crash would process it twice; nor is a batch that overlaps with another one of its
        run: the overlap would be forgotten. Losses are kept, and so is which offsets the deleted
        batches had read. Each of its transactions is short, so that no batch waits for it. After a
        transaction whose answer was lost in an outage, the rows are deleted but not counted.
        """
        batches = rates = 0
        for gate_row in self._database.rows(statements("gate")["gates"]):
            batches += prune_batches(self._database, gate_row.name, before_ms, rows_at_once)
            rates += prune_rates(self._database, gate_row.name, before_ms, rows_at_once)
        return batches, rates


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
    for name in ("last_ranges", "open_ranges") if keeps_last else ("open_ranges",):
        for row in execute(connection, _SQL[name], {"gate": gate_name} | of_topic):
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
