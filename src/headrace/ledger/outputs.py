"""Attempts of batches to write into a stage's topic, each from before its first record on.

Kafka keeps every record that was ever produced, also of an attempt that crashed. So each record
names its attempt, and the ledger has the outcome of that::

    begun ──> done        the batch is in the topic, by this attempt and no other
      └─────> aborted     another attempt has begun, or it failed, or nobody runs the batch any more

Both are final, and of a batch at most one attempt is ``begun`` or ``done``; the database itself
sees to that, for attempts that begin at once do not see each other. A reader of the topic stops
where an attempt that is ``begun`` started, and skips the records of aborted attempts.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection, and_, bindparam, delete, exists, or_, select, update

from headrace.ledger.batch_rows import Values, has_children, offsets_in, offsets_text
from headrace.ledger.database import Store, changed_rows
from headrace.ledger.tables import batch_table, output
from headrace.ledger.transitions import Status

BEGUN: Final = "begun"
DONE: Final = "done"
ABORTED: Final = "aborted"
SLACK_MS: Final = 60_000
"""Time after the end of its lease for which a batch still counts as run, for clocks that differ."""

Starts = Mapping[int, int]
"""By partition, where a topic ended when an attempt began."""

_of_topic = output.c.topic_id == bindparam("topic")
_of_batch = and_(_of_topic, output.c.batch_key == bindparam("batch"))
_of_attempt = and_(_of_topic, output.c.attempt == bindparam("by"))
_others = and_(_of_batch, output.c.attempt != bindparam("by"), output.c.state == BEGUN)
_final = batch_table.c.status.in_([Status.SUCCESS, Status.DEAD])

_runs = and_(
    batch_table.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]),
    or_(
        batch_table.c.lease_until_ms.is_(None),
        batch_table.c.lease_until_ms > bindparam("lately_ms"),
    ),
)

_row = batch_table.c.batch_key == output.c.batch_key
_batch_is_final = exists().where(batch_table.c.batch_key == bindparam("batch"), _final)
_DONE: Final = select(output.c.attempt).where(_of_batch, output.c.state == DONE)

_IS_FINAL: Final = select(batch_table.c.status).where(
    batch_table.c.batch_key == bindparam("batch"), _final
)

_ABORT_OTHERS: Final = update(output).where(_others).values(state=ABORTED)

_FINISH: Final = (
    update(output).where(_of_attempt, output.c.state == BEGUN, ~_batch_is_final).values(state=DONE)
)

_ABORT: Final = update(output).where(_of_attempt, output.c.state == BEGUN).values(state=ABORTED)

_ABORT_ABANDONED: Final = (
    update(output)
    .where(_of_topic, output.c.state == BEGUN, exists().where(_row), ~exists().where(_row, _runs))
    .values(state=ABORTED)
)

# Keep a batch that was split: it may be done while children of it are still to run.
_FORGET: Final = delete(output).where(
    _of_topic,
    output.c.state == DONE,
    exists().where(_row, _final),
    ~has_children(output.c.batch_key),
)

_STATE: Final = select(output.c.state).where(_of_attempt)
_OPEN: Final = select(output.c.starts).where(_of_topic, output.c.state == BEGUN)

_ABORTED: Final = (
    select(output.c.batch_key, output.c.attempt, output.c.starts)
    .where(_of_topic, output.c.state == ABORTED)
    .order_by(output.c.attempt)
)


class OutputStore(Store):
    """The attempts to write batches into topics, which are known by their ids."""

    def begin(self, topic_id: str, batch_key: str, attempt: str, starts: Starts) -> bool:
        """Note that an attempt is about to write a batch; any other attempt of it is aborted.

        The attempt's name is new. It starts where the topic's partitions ended before this call.

        Returns:
            Whether there is anything to write: not if it is done, or the batch is.
        """
        batch = {"topic": topic_id, "batch": batch_key}
        row = {
            "topic_id": topic_id,
            "attempt": attempt,
            "batch_key": batch_key,
            "state": BEGUN,
            "starts": offsets_text(starts),
        }

        def is_known(connection: Connection) -> bool:
            """Whether this has run before, and only its answer was lost."""
            return connection.execute(_STATE, batch | {"by": attempt}).first() is not None

        def begin(connection: Connection) -> bool:
            connection.execute(_FORGET, {"topic": topic_id})
            begun = False
            while not begun:  # as long as others begin it between two statements of this
                if any(connection.execute(known, batch).first() for known in (_DONE, _IS_FINAL)):
                    return False
                connection.execute(_ABORT_OTHERS, batch | {"by": attempt})
                new = self._database.insert(output).on_conflict_do_nothing()
                begun = changed_rows(connection, new, row) == 1 or is_known(connection)
            return True

        return self._database.write(begin)

    def finish(self, topic_id: str, batch_key: str, attempt: str) -> bool:
        """Note that all of an attempt's records are in the topic.

        Returns:
            Whether the batch is written by it; not if it was aborted meanwhile.
        """
        values = {"topic": topic_id, "batch": batch_key, "by": attempt}

        def finish(connection: Connection) -> bool:
            connection.execute(_FINISH, values)
            return connection.execute(_STATE, values).scalar() == DONE

        return self._database.write(finish)

    def abort(self, topic_id: str, attempt: str) -> None:
        """Note that an attempt's records are to be left out, unless it is done."""
        self._database.change(_ABORT, {"topic": topic_id, "by": attempt})

    def written(self, topic_id: str, keys: Iterable[str]) -> set[str]:
        """Return the batches of ``keys`` that are known to be in a topic."""
        return {key for key in keys if self._database.rows(_DONE, topic=topic_id, batch=key)}

    def unfinished(self, topic_id: str) -> tuple[Starts, ...]:
        """Return the start offsets of the attempts whose outcome is not known yet.

        This aborts an attempt of a batch that nobody runs now, once and for all, and an attempt
        whose owner's lease has been over for `SLACK_MS`.
        """
        values: Values = {"topic": topic_id}

        def open_ones(connection: Connection) -> tuple[Starts, ...]:
            connection.execute(_ABORT_ABANDONED, values | {"lately_ms": self._clock() - SLACK_MS})
            return tuple(offsets_in(row.starts) for row in connection.execute(_OPEN, values))

        return self._database.write(open_ones) if self._database.rows(_OPEN, **values) else ()

    def aborted(self, topic_id: str) -> tuple[tuple[str, str, Starts], ...]:
        """The aborted attempts: their batches, their names, and where they began."""
        return tuple(
            (row.batch_key, row.attempt, offsets_in(row.starts))
            for row in self._database.rows(_ABORTED, topic=topic_id)
        )
