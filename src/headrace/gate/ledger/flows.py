"""Rows of the stages of a flow: their signals, and their attempts to write a topic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from sqlalchemy import Connection

from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.statements import execute, offsets_in, offsets_text, statements

REMEMBERED_MS: Final = 24 * 3_600_000
"""Time for which a flow's rows are kept unless they are removed, renewed or withdrawn (ms)."""


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """A stage's text in the ledger; a longer text is cut after 4097 characters.

    The age is by the database's clock, and may be negative after that clock was set back.
    """

    stage: str
    text: str
    age_ms: int


_SQL: Final = statements("flow")


class SignalStore(Store):
    """The signals between the stages of a flow, and the state that each stage publishes."""

    def send(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Write a text for a stage; it replaces an unread text of the same sender."""
        self._database.change(
            _SQL["send"], {"flow": flow, "receiver": receiver, "sender": sender, "text": text}
        )

    def sent_to(self, flow: str, receiver: str) -> tuple[StoredSignal, ...]:
        """Return the signals for a stage; signals stay until they are removed."""
        return self._read("sent_to", flow=flow, receiver=receiver)

    def remove(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Remove a text that was read, unless a newer text has replaced it."""
        values = {"flow": flow, "sender": sender, "receiver": receiver, "text": text}
        self._database.change(_SQL["remove"], values)

    def publish(self, flow: str, stage: str, text: str) -> None:
        """Publish the state of a stage; it replaces the stage's previous state."""
        # A stage publishes again within a third of its lease, so a state need not be durable.
        # A signal is sent once, so `send` waits until the signal is durable.
        values = {"flow": flow, "stage": stage, "text": text}
        self._database.change(_SQL["publish"], values, durable=False)

    def published(self, flow: str) -> tuple[StoredSignal, ...]:
        """Return the published states of a flow's stages, including stages that have ended."""
        return self._read("published", flow=flow)

    def secret(self, flow: str) -> bytes:
        """Return the secret of a flow, which the first call creates.

        Every process that can read the ledger knows the secret.
        """
        new = {"flow": flow, "secret": token_hex(32)}
        self._database.change(_SQL["new_secret"], new)
        text: str = self._database.scalar(_SQL["secret"], flow=flow)
        return bytes.fromhex(text)

    def flows(self) -> tuple[str, ...]:
        """Return the flows that have a published state, by name."""
        return tuple(row.flow for row in self._database.rows(_SQL["flows"]))

    def withdraw(self, flow: str, stage: str, text: str) -> None:
        """Delete the published state of a stage, unless another process has replaced it."""
        self._database.change(_SQL["withdraw"], {"flow": flow, "stage": stage, "text": text})

    def prune(self, flow: str) -> None:
        """Delete this flow's rows that nobody has removed, renewed or withdrawn for a day."""
        values = {"flow": flow, "remembered_ms": REMEMBERED_MS}
        for forget in ("forget_signals", "forget_states"):
            self._database.change(_SQL[forget], values)

    def _read(self, name: str, **values: str) -> tuple[StoredSignal, ...]:
        rows = self._database.rows(_SQL[name], **values)
        return tuple(StoredSignal(**row._asdict()) for row in rows)


DONE: Final = "done"
SLACK_MS: Final = 60_000
"""Time after the end of its lease for which a batch still counts as run (ms), because clocks
differ."""

Starts = Mapping[int, int]
"""End offsets of a topic's partitions at the start of an attempt, by partition."""


class OutputStore(Store):
    """The attempts to write batches into topics. Topics are identified by their ids."""

    def begin(self, topic_id: str, batch_key: str, attempt: str, starts: Starts) -> bool:
        """Record that a new attempt is about to write a batch, and abort every other attempt.

        The attempt's name must be new. ``starts`` are the end offsets of the topic's partitions
        before this call.

        Returns:
            Whether there is anything to write: False if an attempt has finished, or the batch is
            final.
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
            while not begun:  # Another process may begin the batch between two statements.
                if is_there(connection, "done") or is_there(connection, "is_final"):
                    return False
                execute(connection, _SQL["abort_others"], values)
                begun = changed_rows(connection, _SQL["begin"], values) == 1
                # This call has run before, and only its answer was lost.
                begun = begun or is_there(connection, "state")
            return True

        return self._database.write(begin)

    def finish(self, topic_id: str, batch_key: str, attempt: str) -> bool:
        """Record that all records of an attempt are in the topic.

        Returns:
            Whether the attempt has written the batch; False if it was aborted meanwhile.
        """
        values = {"topic": topic_id, "batch": batch_key, "by": attempt}

        def finish(connection: Connection) -> bool:
            execute(connection, _SQL["finish"], values)
            return execute(connection, _SQL["state"], values).scalar() == DONE

        return self._database.write(finish)

    def abort(self, topic_id: str, attempt: str) -> None:
        """Record that readers must skip an attempt's records, unless the attempt has finished."""
        self._database.change(_SQL["abort"], {"topic": topic_id, "by": attempt})

    def written(self, topic_id: str, keys: Iterable[str]) -> set[str]:
        """Return the batches of ``keys`` that are known to be in a topic."""
        return {key for key in keys if self._database.rows(_SQL["done"], topic=topic_id, batch=key)}

    def unfinished(self, topic_id: str) -> tuple[Starts, ...]:
        """Return the start offsets of the attempts whose outcome is not known yet.

        This first aborts attempts of batches that nobody runs, and attempts whose owner's lease
        expired more than `SLACK_MS` ago. An aborted attempt stays aborted.
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
        """Return the aborted attempts: their batches, their names, and their start offsets."""
        return tuple(
            (row.batch_key, row.attempt, offsets_in(row.starts))
            for row in self._database.rows(_SQL["aborted"], topic=topic_id)
        )
