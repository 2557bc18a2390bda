"""How far every reader of something is through with it: what is below nobody needs any more."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from sqlalchemy import (
    Connection,
    bindparam,
    not_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from headrace.ledger.base import Base
from headrace.ledger.pruning import CLOSED
from headrace.ledger.records import PlannedBatch
from headrace.ledger.rows import Values, known_status
from headrace.ledger.status import Status
from headrace.ledger.tables import checkpoint, control, failure, gate, position


@dataclass(frozen=True, slots=True)
class Processed:
    """How far a gate is through with a partition.

    Attributes:
        gate: The gate.
        partition: The partition, or the lane.
        until: The first offset that it still needs; it has done with those below, or begins behind
            them. 0 where its newest run has read nothing of the partition, whose beginning is then
            where it may begin.
        schedule_id: The batch or part that begins there and may have to be read again. None where
            there is none, and the next batch begins there.
        status: That batch's. If ``success``, it is the gate's last one, which the engine asks for
            once more if it crashed before it could note the end.
    """

    gate: str
    partition: int
    until: int
    schedule_id: str | None = None
    status: Status | None = None


POSITIONS: Final = select(position.c.gate, position.c.until_offsets).where(
    position.c.topic_id == bindparam("topic_id")
)

_range = (
    failure.c.partition,
    failure.c.start_offset,
    control.c.schedule_id,
    control.c.status,
)

OPEN_RANGES: Final = (
    select(*_range)
    .join(failure, failure.c.schedule_id == control.c.schedule_id)
    .where(control.c.gate == bindparam("gate"), failure.c.topic_id == bindparam("topic_id"))
    .where(control.c.status.in_([status for status in Status if status is not Status.SUCCESS]))
    .where(not_(CLOSED))
)

LAST_RANGES: Final = (
    select(*_range)
    .join_from(gate, control, control.c.schedule_id == gate.c.begun)
    .join(failure, failure.c.schedule_id == control.c.schedule_id)
    .where(gate.c.name == bindparam("gate"), failure.c.topic_id == bindparam("topic_id"))
)


class Retention(Base):
    """What has been processed, and need not be kept where it came from."""

    def processed_until(
        self, topic_id: str, partitions: Iterable[int], *, without: Collection[str] = ()
    ) -> tuple[Processed, ...]:
        """How far each gate is through with each of these partitions, by gate and partition.

        A gate needs whatever is in a batch or part of it that is not ``success``, nor ``dead`` with
        all its dead letters resolved, or dropped. It needs its last batch, which the engine may ask
        for again after a crash; and what its newest run has not read yet. Once a run has begun in a
        partition, it needs nothing from below that for itself. What one answer calls done stays so,
        unless a fresh checkpoint, or an old copy of one, has the gate begin below.

        It costs what there is of batches that are open or dead, however long the history is.

        Args:
            topic_id: The id of a journal, or of a topic.
            partitions: Which.
            without: Gates that are not to be asked.

        Returns:
            Nothing, if no gate has read it.
        """
        wanted = sorted(set(partitions))

        def processed(connection: Connection) -> tuple[Processed, ...]:
            of_topic = {"topic_id": topic_id}
            # First, and then the batches: one that ends meanwhile was begun before, and what begins
            # meanwhile goes on at a position, or above.
            found = connection.execute(POSITIONS, of_topic)
            positions = {row.gate: positions_in(row.until_offsets) for row in found}
            return tuple(
                each
                for name in sorted(positions.keys() - set(without))
                for each in _of_gate(connection, name, of_topic, positions[name], wanted)
            )

        return self._database.read(processed)

    def reached(self, topic_id: str) -> dict[int, int]:
        """How far any gate has begun to read each partition of a journal or a topic, by its id.

        A gate that went back to a fresh checkpoint counts with that one alone.
        """

        def reached(connection: Connection) -> dict[int, int]:
            found: dict[int, int] = {}
            for row in connection.execute(POSITIONS, {"topic_id": topic_id}):
                for partition, until in positions_in(row.until_offsets).items():
                    found[partition] = max(until, found.get(partition, 0))
            return found

        return self._database.read(reached)


def move_on(connection: Connection, batch: PlannedBatch) -> None:
    """Have a gate go on where its checkpoint stands by now, in whatever has an id."""
    reached = {
        (planned.topic_id, planned.offsets.topic)
        for planned in batch.ranges
        if planned.topic_id is not None and planned.offsets.count
    }
    for topic_id, topic in sorted(reached):  # nearly always one
        row = {"topic_id": topic_id, "gate": batch.gate, "run_id": batch.run_id, "topic": topic}
        connection.execute(_moving_on(connection.dialect.name), row)


@cache
def _moving_on(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Go on where this checkpoint stands, and no more where another one has stopped."""
    reached = select(checkpoint.c.until_offsets).where(
        *(checkpoint.c[name] == bindparam(name) for name in ("gate", "run_id", "topic", "topic_id"))
    )
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(position).values(
        **{name: bindparam(name) for name in ("topic_id", "gate", "run_id")},
        until_offsets=reached.scalar_subquery(),
    )
    now = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(position.primary_key),
        set_={"run_id": now.run_id, "until_offsets": now.until_offsets},
    )


def positions_in(text: str) -> dict[int, int]:
    """Offsets by partition, as the ledger keeps them."""
    return {int(partition): until for partition, until in json.loads(text).items()}


def _of_gate(
    connection: Connection,
    gate_name: str,
    of_topic: Values,
    positions: Mapping[int, int],
    partitions: Sequence[int],
) -> Iterator[Processed]:
    """How far one gate is through with each partition."""
    found = {each: Processed(gate_name, each, positions.get(each, 0)) for each in partitions}
    for statement in (LAST_RANGES, OPEN_RANGES):
        for row in connection.execute(statement, {"gate": gate_name} | of_topic):
            known = found.get(row.partition)
            if known is not None and row.start_offset <= known.until:
                found[row.partition] = Processed(
                    gate_name,
                    row.partition,
                    row.start_offset,
                    row.schedule_id,
                    known_status(row.status),
                )
    yield from found.values()
