"""Rows of the stages of a flow: their signals, and their attempts to write a topic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from sqlalchemy import (
    Connection,
    Executable,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.statements import Values, offsets_in, offsets_text
from headrace.gate.ledger.tables import NowMs, batch_table, flow_secret, output, signal, stage_state
from headrace.gate.ledger.transitions import Status

MOST_CHARACTERS: Final = 4096
"""Number of characters of a text that are read; a valid text is never longer."""

REMEMBERED_MS: Final = 24 * 3_600_000
"""Time for which a flow's rows are kept if nobody removes, renews or withdraws them."""


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """A stage's text in the ledger, or its first 4096 characters and one.

    Its age is by the database's clock; it may be below 0, for clocks are set back.
    """

    stage: str
    text: str
    age_ms: int


_to_stage = (signal.c.flow == bindparam("flow"), signal.c.receiver == bindparam("receiver"))

_SIGNALS: Final = select(
    signal.c.sender.label("stage"),
    func.substr(signal.c.body, 1, MOST_CHARACTERS + 1).label("text"),
    (NowMs() - signal.c.written_ms).label("age_ms"),
).where(*_to_stage)

_REMOVE: Final = delete(signal).where(
    *_to_stage,
    signal.c.sender == bindparam("sender"),
    func.substr(signal.c.body, 1, MOST_CHARACTERS + 1) == bindparam("text"),
)

_STATES: Final = select(
    stage_state.c.stage,
    func.substr(stage_state.c.body, 1, MOST_CHARACTERS + 1).label("text"),
    (NowMs() - stage_state.c.written_ms).label("age_ms"),
).where(stage_state.c.flow == bindparam("flow"))

_FLOWS: Final = select(stage_state.c.flow).distinct().order_by(stage_state.c.flow)

_WITHDRAW: Final = delete(stage_state).where(
    stage_state.c.flow == bindparam("flow"),
    stage_state.c.stage == bindparam("stage"),
    stage_state.c.body == bindparam("text"),
)

_SECRET: Final = select(flow_secret.c.secret).where(flow_secret.c.flow == bindparam("flow"))

_FORGET_SIGNALS: Final = tuple(
    delete(table).where(
        table.c.flow == bindparam("flow"), table.c.written_ms < NowMs() - REMEMBERED_MS
    )
    for table in (signal, stage_state)
)


class SignalStore(Store):
    """The signals between the stages of a flow, and the state that each publishes."""

    def send(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Write a text for a stage, instead of one of the same sender that is still there."""
        self._write(signal, {"flow": flow, "receiver": receiver, "sender": sender}, text)

    def sent_to(self, flow: str, receiver: str) -> tuple[StoredSignal, ...]:
        """Return the signals for a stage; they stay until they are removed."""
        return self._read(_SIGNALS, {"flow": flow, "receiver": receiver})

    def remove(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Remove a text that was read, unless another one stands in its place by now."""
        values = {"flow": flow, "sender": sender, "receiver": receiver, "text": text}
        self._database.change(_REMOVE, values)

    def publish(self, flow: str, stage: str, text: str) -> None:
        """Publish the state of a stage, instead of the one before."""
        # A stage publishes again within a third of its lease. Signals are sent once: they wait.
        self._write(stage_state, {"flow": flow, "stage": stage}, text, durable=False)

    def published(self, flow: str) -> tuple[StoredSignal, ...]:
        """The published states of a flow's stages; also of stages that are gone."""
        return self._read(_STATES, {"flow": flow})

    def secret(self, flow: str) -> bytes:
        """Return the secret of a flow, made at the first call: who can read the ledger has it."""
        new = {"flow": flow, "secret": token_hex(32)}
        self._database.change(self._database.insert(flow_secret).on_conflict_do_nothing(), new)
        text: str = self._database.scalar(_SECRET, flow=flow)
        return bytes.fromhex(text)

    def flows(self) -> tuple[str, ...]:
        """The flows with a published state of a stage, by name."""
        return tuple(row.flow for row in self._database.rows(_FLOWS))

    def withdraw(self, flow: str, stage: str, text: str) -> None:
        """Delete the state that a stage has published, unless another process publishes by now."""
        self._database.change(_WITHDRAW, {"flow": flow, "stage": stage, "text": text})

    def prune(self, flow: str) -> None:
        """Delete this flow's rows that nobody has removed, renewed or withdrawn for a day."""
        for forget in _FORGET_SIGNALS:
            self._database.change(forget, {"flow": flow})

    def _write(self, table: Table, place: Values, text: str, *, durable: bool = True) -> None:
        insert = self._database.insert(table).values(written_ms=NowMs())
        statement = insert.on_conflict_do_update(
            index_elements=list(place),
            set_={"body": insert.excluded.body, "written_ms": insert.excluded.written_ms},
        )
        self._database.change(statement, {**place, "body": text}, durable=durable)

    def _read(self, statement: Executable, values: Values) -> tuple[StoredSignal, ...]:
        found = self._database.rows(statement, **values)
        return tuple(StoredSignal(**row._asdict()) for row in found)


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

# A part's key begins with its batch's.
_row = batch_table.c.batch_key == func.substr(output.c.batch_key, 1, 32)
_batch_is_final = exists().where(
    batch_table.c.batch_key == func.substr(bindparam("batch"), 1, 32), _final
)
_DONE: Final = select(output.c.attempt).where(_of_batch, output.c.state == DONE)

_IS_FINAL: Final = select(batch_table.c.status).where(
    batch_table.c.batch_key == func.substr(bindparam("batch"), 1, 32), _final
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

_FORGET_DONE: Final = delete(output).where(
    _of_topic,
    output.c.state == DONE,
    exists().where(_row, _final),
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
            connection.execute(_FORGET_DONE, {"topic": topic_id})
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
