"""Signals and states of the stages of a flow, and the stages' writes to topics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from sqlalchemy import Connection

from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.statements import execute, offsets_in, offsets_text, statements

REMEMBERED_MS: Final = 24 * 3_600_000
"""Age at which signals and states of stages are deleted (ms). Each write restarts the age."""


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """Text of a stage: a signal or a published state. A longer text is cut to 4097 characters.

    ``age_ms`` is measured by the database's clock, and is negative if the clock was set back.
    """

    stage: str
    text: str
    age_ms: int


_SQL: Final = statements("flow")


class SignalStore(Store):
    """Signals between the stages of a flow, and the published state of each stage."""

    def send(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Store a signal for a stage; it replaces the sender's previous signal to that stage."""
        self._database.change(
            _SQL["send"], {"flow": flow, "receiver": receiver, "sender": sender, "text": text}
        )

    def sent_to(self, flow: str, receiver: str) -> tuple[StoredSignal, ...]:
        """Return all signals for a stage; reading a signal does not remove it."""
        return self._read("sent_to", flow=flow, receiver=receiver)

    def remove(self, flow: str, sender: str, receiver: str, text: str) -> None:
        """Remove a signal with this text; a newer signal with another text stays."""
        values = {"flow": flow, "sender": sender, "receiver": receiver, "text": text}
        self._database.change(_SQL["remove"], values)

    def publish(self, flow: str, stage: str, text: str) -> None:
        """Store the state of a stage; it replaces the stage's previous state."""
        # A stage publishes its state again within a third of its lease, so the write need not be
        # durable. A signal is sent only once, so `send` waits until the signal is durable.
        values = {"flow": flow, "stage": stage, "text": text}
        self._database.change(_SQL["publish"], values, durable=False)

    def published(self, flow: str) -> tuple[StoredSignal, ...]:
        """Return the published states of a flow's stages, including states of ended stages."""
        return self._read("published", flow=flow)

    def secret(self, flow: str) -> bytes:
        """Return the random secret of a flow; the first call creates the secret.

        Every process that can read the ledger can read the secret.
        """
        new = {"flow": flow, "secret": token_hex(32)}
        self._database.change(_SQL["new_secret"], new)
        text: str = self._database.scalar(_SQL["secret"], flow=flow)
        return bytes.fromhex(text)

    def flows(self) -> tuple[str, ...]:
        """Return the names of all flows with a published state, sorted."""
        return tuple(row.flow for row in self._database.rows(_SQL["flows"]))

    def withdraw(self, flow: str, stage: str, text: str) -> None:
        """Delete a stage's published state if it equals ``text``.

        If another process has published a newer state of the stage, that state stays.
        """
        self._database.change(_SQL["withdraw"], {"flow": flow, "stage": stage, "text": text})

    def prune(self, flow: str) -> None:
        """Delete a flow's signals and states that are older than a day (`REMEMBERED_MS`)."""
        values = {"flow": flow, "remembered_ms": REMEMBERED_MS}
        for forget in ("forget_signals", "forget_states"):
            self._database.change(_SQL[forget], values)

    def _read(self, name: str, **values: str) -> tuple[StoredSignal, ...]:
        rows = self._database.rows(_SQL[name], **values)
        return tuple(StoredSignal(**row._asdict()) for row in rows)


DONE: Final = "done"
SLACK_MS: Final = 60_000
"""An attempt to write a batch counts as running until this time (ms) after the end of the batch's
lease, because the clocks of processes differ."""

Starts = Mapping[int, int]
"""End offset of each partition of a topic when an attempt to write a batch starts."""


class OutputStore(Store):
    """Attempts of stages to write batches into topics; topics are identified by their ids."""

    def begin(self, topic_id: str, batch_key: str, attempt: str, starts: Starts) -> bool:
        """Record a new attempt to write a batch, and abort the batch's other unfinished attempts.

        ``attempt`` must be a new name. ``starts`` are the end offsets of the topic's partitions
        before this call.

        Returns:
            True if the attempt must write the batch. False if an earlier attempt has finished, or
            the batch is ``success`` or ``dead``.
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
        """Record that an attempt has written all records of its batch to the topic.

        Returns:
            True if readers will read the attempt's records. False if another process has aborted
            the attempt, or the batch is already ``success`` or ``dead``.
        """
        values = {"topic": topic_id, "batch": batch_key, "by": attempt}

        def finish(connection: Connection) -> bool:
            execute(connection, _SQL["finish"], values)
            return execute(connection, _SQL["state"], values).scalar() == DONE

        return self._database.write(finish)

    def abort(self, topic_id: str, attempt: str) -> None:
        """Mark an attempt as aborted, so that readers skip its records.

        A finished attempt is not changed.
        """
        self._database.change(_SQL["abort"], {"topic": topic_id, "by": attempt})

    def written(self, topic_id: str, keys: Iterable[str]) -> set[str]:
        """Return the keys of batches that a finished attempt has written, a subset of ``keys``."""
        return {key for key in keys if self._database.rows(_SQL["done"], topic=topic_id, batch=key)}

    def unfinished(self, topic_id: str) -> tuple[Starts, ...]:
        """Return the start offsets of the attempts that are still running.

        Attempts of batches that no process is running are aborted first. A batch counts as running
        until `SLACK_MS` after the end of its lease. An aborted attempt stays aborted.
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
        """Return the batch key, the name and the start offsets of each aborted attempt."""
        return tuple(
            (row.batch_key, row.attempt, offsets_in(row.starts))
            for row in self._database.rows(_SQL["aborted"], topic=topic_id)
        )
