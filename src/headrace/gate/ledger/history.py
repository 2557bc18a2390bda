"""Lost offsets of gates, the ranges that gates have planned, and the pruning of old batches."""

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
    """Losses, planned ranges and checkpoints of gates, and the pruning of old rows."""

    def record_losses(
        self,
        gate_name: str,
        ranges: Iterable[OffsetRange],
        topic_ids: Mapping[str, str] | None = None,
        *,
        batch_key: str | None = None,
        reasons: Mapping[OffsetRange, str] | None = None,
    ) -> None:
        """Record offsets that were gone from the source before a batch read them.

        A loss is identified by its topic, its first offset, and the batch that could not read the
        offsets. If a task or a handler records the same loss again, the loss counts once, up to the
        highest reported offset. ``batch_key`` is None if the offsets were gone before a batch was
        planned. ``topic_ids``, by name, distinguish a topic from a deleted topic of the same name.

        Raises:
            LedgerError: The gate is not declared, or the gate has no batch with ``batch_key``.
        """
        key = {"gate": gate_name, "time_ms": self._clock(), "batch_key": batch_key or ""}
        rows = [
            key | _loss_row(offsets, topic_ids or {}, reasons or {})
            for offsets in ranges
            if offsets.count
        ]

        def record(connection: Connection) -> None:
            # Lock first, so that `count_losses` includes the losses of all other processes.
            execute(connection, _LOCK, {"gate": gate_name})
            # Check that the batch is in this ledger: on another machine, the same SQLite path is
            # another ledger.
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
                    " machine the URL of the same ledger."
                )
            self._insert_under(gate_name, connection, _SQL["record_loss"], rows)
            execute(connection, _SQL["count_losses"], {"gate": gate_name})

        if rows:
            self._database.write(record)

    def withdraw_loss(
        self, gate_name: str, tp: TopicPartition, topic_id: str | None, position: int
    ) -> None:
        """Delete the loss that begins at ``position`` and belongs to no batch."""

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
        """Return the highest log end that a gate's plans have seen, by partition and topic id.

        The log may be longer by now. Pruned batches do not count.
        """
        return {
            (TopicPartition(row.topic, row.partition), row.topic_id): row.latest
            for row in self._database.rows(_SQL["latest_seen"], gate=gate_name)
        }

    def losses(self, gate_name: str) -> tuple[Loss, ...]:
        """Return all losses of a gate, oldest first."""
        return tuple(map(_loss_from, self._database.rows(_SQL["losses"], gate=gate_name)))

    def losses_of(self, batch_keys: Collection[str]) -> Mapping[str, tuple[Loss, ...]]:
        """Return the losses of batches, by batch key; a batch without a loss has no entry."""
        by_batch: dict[str, list[Loss]] = defaultdict(list)
        for keys in some_at_once(list(batch_keys), ROWS_AT_ONCE):
            for row in self._database.rows(_SQL["losses_of_batches"], batches=keys):
                by_batch[row.batch_key].append(_loss_from(row))
        return {key: tuple(losses) for key, losses in by_batch.items()}

    def coverage(self, gate_name: str) -> Iterator[Covered]:
        """Yield all planned ranges of a gate.

        The ranges are sorted by checkpoint, topic, topic id, partition and offset. The ranges of
        pruned batches are included, and are joined where they follow each other. All rows are read
        in one snapshot.
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
        """Return the planned offsets of each checkpoint of a gate, by checkpoint id and topic."""
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
        """Return the first offset that each gate still needs, by gate and partition.

        A gate needs its unfinished batches, dead batches that were not dropped, and batches with a
        waiting dead letter. It also needs the unread offsets of its newest checkpoint. With
        ``keeps_last``, it needs its last batch too, because Spark may request that batch again
        after a crash.

        A gate never needs a lower offset again, with one exception: a query may start at a lower
        offset, with a new checkpoint or an old copy of a checkpoint. Gates in ``without`` are left
        out. The result is empty if no gate has read the topic or journal.

        The cost grows with the number of open and dead batches, not with the length of the history.
        """
        wanted = sorted(set(partitions))

        def processed(connection: Connection) -> tuple[Processed, ...]:
            of_topic = {"topic_id": topic_id}
            # Read the positions before the batches. A batch that ends between the two reads had
            # begun before. A batch that begins between them starts at a read position or above.
            rows = execute(connection, _SQL["positions"], of_topic)
            positions = {row.gate: offsets_in(row.until_offsets) for row in rows}
            return tuple(
                progress
                for name in sorted(positions.keys() - set(without))
                for progress in _processed_by_gate(
                    connection, name, of_topic, positions[name], wanted, keeps_last=keeps_last
                )
            )

        return self._database.read(processed)

    def reached(self, topic_id: str) -> dict[int, int]:
        """Return, by partition of a topic, the highest end offset in the plans of all gates.

        If a gate has several checkpoints, only its newest checkpoint counts.
        """
        highest: dict[int, int] = {}
        for row in self._database.rows(_SQL["positions"], topic_id=topic_id):
            for partition, until in offsets_in(row.until_offsets).items():
                highest[partition] = max(until, highest.get(partition, 0))
        return highest

    def prune(self, before_ms: int, *, rows_at_once: int = ROWS_AT_ONCE) -> tuple[int, int]:
        """Delete old batches and rate samples; return how many batches and how many samples.

        A batch is deleted, with its dead letters, if it ended before ``before_ms``, is ``success``
        or dropped, and has no waiting dead letter. A gate's newest batch is kept: if Spark repeated
        a deleted batch after a crash, the batch would be processed twice. A batch that overlaps
        with another batch of its checkpoint is kept too, as evidence of the overlap.

        Losses and the ranges of deleted batches are kept. Each transaction is short, so that no
        batch waits for the pruning. If the answer to a transaction is lost in an outage, its
        deleted rows are not counted.
        """
        batches = rates = 0
        for gate_row in self._database.rows(statements("gate")["gates"]):
            batches += prune_batches(self._database, gate_row.name, before_ms, rows_at_once)
            rates += prune_rates(self._database, gate_row.name, before_ms, rows_at_once)
        return batches, rates


def lost_records(losses: Iterable[Loss]) -> int:
    """Count the lost offsets; an offset that several losses contain counts once."""
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
    """Yield the first offset that one gate still needs, for each partition."""
    progress = {
        partition: Processed(gate_name, partition, positions.get(partition, 0))
        for partition in partitions
    }
    for name in ("last_ranges", "open_ranges") if keeps_last else ("open_ranges",):
        for row in execute(connection, _SQL[name], {"gate": gate_name} | of_topic):
            reached = progress.get(row.partition)
            if reached is not None and row.start_offset <= reached.until:
                progress[row.partition] = Processed(
                    gate_name,
                    row.partition,
                    row.start_offset,
                    row.batch_key,
                    Status(row.status),
                )
    yield from progress.values()


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
