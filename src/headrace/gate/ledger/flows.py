"""Rows of the stages of a flow: their signals, and their attempts to write a topic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from sqlalchemy import Connection

from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.statements import execute, offsets_in, offsets_text, statements

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


_SQL: Final = statements("flow")


class SignalStore(Store):
    """The signals between the stages of a flow, and the state that each publishes."""

    def send(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Write a text for a stage, instead of one of the same sender that is still there."""
        self._database.change(
            _SQL["send"], {"flow": flow, "receiver": receiver, "sender": sender, "text": text}
        )

    def sent_to(self, flow: str, receiver: str) -> tuple[StoredSignal, ...]:
        """Return the signals for a stage; they stay until they are removed."""
        return self._read("sent_to", flow=flow, receiver=receiver)

    def remove(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Remove a text that was read, unless another one stands in its place by now."""
        values = {"flow": flow, "sender": sender, "receiver": receiver, "text": text}
        self._database.change(_SQL["remove"], values)

    def publish(self, flow: str, stage: str, text: str) -> None:
        """Publish the state of a stage, instead of the one before."""
        # A stage publishes again within a third of its lease. Signals are sent once: they wait.
        values = {"flow": flow, "stage": stage, "text": text}
        self._database.change(_SQL["publish"], values, durable=False)

    def published(self, flow: str) -> tuple[StoredSignal, ...]:
        """The published states of a flow's stages; also of stages that are gone."""
        return self._read("published", flow=flow)

    def secret(self, flow: str) -> bytes:
        """Return the secret of a flow, made at the first call: who can read the ledger has it."""
        new = {"flow": flow, "secret": token_hex(32)}
        self._database.change(_SQL["new_secret"], new)
        text: str = self._database.scalar(_SQL["secret"], flow=flow)
        return bytes.fromhex(text)

    def flows(self) -> tuple[str, ...]:
        """The flows with a published state of a stage, by name."""
        return tuple(row.flow for row in self._database.rows(_SQL["flows"]))

    def withdraw(self, flow: str, stage: str, text: str) -> None:
        """Delete the state that a stage has published, unless another process publishes by now."""
        self._database.change(_SQL["withdraw"], {"flow": flow, "stage": stage, "text": text})

    def prune(self, flow: str) -> None:
        """Delete this flow's rows that nobody has removed, renewed or withdrawn for a day."""
        values = {"flow": flow, "remembered_ms": REMEMBERED_MS}
        for forget in ("forget_signals", "forget_states"):
            self._database.change(_SQL[forget], values)

    def _read(self, name: str, **values: str) -> tuple[StoredSignal, ...]:
        found = self._database.rows(_SQL[name], **values)
        return tuple(StoredSignal(**row._asdict()) for row in found)


DONE: Final = "done"
SLACK_MS: Final = 60_000
"""Time after the end of its lease for which a batch still counts as run, for clocks that differ."""

Starts = Mapping[int, int]
"""By partition, where a topic ended when an attempt began."""


class OutputStore(Store):
    """The attempts to write batches into topics, which are known by their ids."""

    def begin(self, topic_id: str, batch_key: str, attempt: str, starts: Starts) -> bool:
        """Note that an attempt is about to write a batch; any other attempt of it is aborted.

        The attempt's name is new. It starts where the topic's partitions ended before this call.

        Returns:
            Whether there is anything to write: not if it is done, or the batch is.
        """
        values = {
            "topic": topic_id,
            "batch": batch_key,
            "by": attempt,
            "starts": offsets_text(starts),
        }

        def is_there(connection: Connection, name: str) -> bool:
            return execute(connection, _SQL[name], values).first() is not None

        def begin(connection: Connection) -> bool:
            execute(connection, _SQL["forget_done"], values)
            begun = False
            while not begun:  # as long as others begin it between two statements of this
                if is_there(connection, "done") or is_there(connection, "is_final"):
                    return False
                execute(connection, _SQL["abort_others"], values)
                begun = changed_rows(connection, _SQL["begin"], values) == 1
                # It has run before, and only its answer was lost.
                begun = begun or is_there(connection, "state")
            return True

        return self._database.write(begin)

    def finish(self, topic_id: str, batch_key: str, attempt: str) -> bool:
        """Note that all of an attempt's records are in the topic.

        Returns:
            Whether the batch is written by it; not if it was aborted meanwhile.
        """
        values = {"topic": topic_id, "batch": batch_key, "by": attempt}

        def finish(connection: Connection) -> bool:
            execute(connection, _SQL["finish"], values)
            return execute(connection, _SQL["state"], values).scalar() == DONE

        return self._database.write(finish)

    def abort(self, topic_id: str, attempt: str) -> None:
        """Note that an attempt's records are to be left out, unless it is done."""
        self._database.change(_SQL["abort"], {"topic": topic_id, "by": attempt})

    def written(self, topic_id: str, keys: Iterable[str]) -> set[str]:
        """Return the batches of ``keys`` that are known to be in a topic."""
        return {key for key in keys if self._database.rows(_SQL["done"], topic=topic_id, batch=key)}

    def unfinished(self, topic_id: str) -> tuple[Starts, ...]:
        """Return the start offsets of the attempts whose outcome is not known yet.

        This aborts an attempt of a batch that nobody runs now, once and for all, and an attempt
        whose owner's lease has been over for `SLACK_MS`.
        """
        values = {"topic": topic_id, "lately_ms": self._clock() - SLACK_MS}

        def open_ones(connection: Connection) -> tuple[Starts, ...]:
            execute(connection, _SQL["abort_abandoned"], values)
            return tuple(
                offsets_in(row.starts) for row in execute(connection, _SQL["open"], values)
            )

        return (
            self._database.write(open_ones)
            if self._database.rows(_SQL["open"], topic=topic_id)
            else ()
        )

    def aborted(self, topic_id: str) -> tuple[tuple[str, str, Starts], ...]:
        """The aborted attempts: their batches, their names, and where they began."""
        return tuple(
            (row.batch_key, row.attempt, offsets_in(row.starts))
            for row in self._database.rows(_SQL["aborted"], topic=topic_id)
        )
