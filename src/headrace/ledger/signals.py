"""The signals of a flow's stages, as text that the ledger keeps and does not read.

Times are the database's own: the clocks of the stages' machines may differ as they like.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Executable, Table, bindparam, delete, func, select

from headrace.ledger.batch_rows import Values
from headrace.ledger.database import Store
from headrace.ledger.tables import NowMs, signal, stage_state

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

_FORGET: Final = tuple(
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
        self._write(stage_state, {"flow": flow, "stage": stage}, text)

    def published(self, flow: str) -> tuple[StoredSignal, ...]:
        """The published states of a flow's stages; also of stages that are gone."""
        return self._read(_STATES, {"flow": flow})

    def flows(self) -> tuple[str, ...]:
        """The flows with a published state of a stage, by name."""
        return tuple(row.flow for row in self._database.rows(_FLOWS))

    def withdraw(self, flow: str, stage: str, text: str) -> None:
        """Delete the state that a stage has published, unless another process publishes by now."""
        self._database.change(_WITHDRAW, {"flow": flow, "stage": stage, "text": text})

    def prune(self, flow: str) -> None:
        """Delete this flow's rows that nobody has removed, renewed or withdrawn for a day."""
        for forget in _FORGET:
            self._database.change(forget, {"flow": flow})

    def _write(self, table: Table, place: Values, text: str) -> None:
        insert = self._database.insert(table).values(written_ms=NowMs())
        statement = insert.on_conflict_do_update(
            index_elements=list(place),
            set_={"body": insert.excluded.body, "written_ms": insert.excluded.written_ms},
        )
        self._database.change(statement, {**place, "body": text})

    def _read(self, statement: Executable, values: Values) -> tuple[StoredSignal, ...]:
        found = self._database.rows(statement, **values)
        return tuple(StoredSignal(**row._asdict()) for row in found)
