"""Operators' actions on failures, each recorded with person, time and reason.

An action and its record are written in one transaction, so no action lacks its reason. Sending dead
letters takes longer than a transaction, so the record is written before the send. The module also
groups failures by their errors.
"""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from headrace.errors import OptionError
from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.dead_letters import RESOLVE, letter_from
from headrace.gate.ledger.error_report import QUERY_STOPPED, storable
from headrace.gate.ledger.operator_limits import MOST_BY, MOST_WHY, operator_text
from headrace.gate.ledger.proof import Missed
from headrace.gate.ledger.records import DeadLetterRecord, DeadLetterStatus
from headrace.gate.ledger.statements import execute, statements
from headrace.gate.ledger.transitions import new_call_id

MOST_AT_ONCE: Final = 10_000
"""Maximum number of batches or dead letters that one action changes."""


@dataclass(frozen=True, slots=True)
class AlikeBatches:
    """Group of a gate's unresolved batches that failed with one class of exception.

    Attributes:
        error_class: Class of the exception, with its module; None if the batches have no error.
        message: Error message of one batch of the group.
        messages: Number of different error messages in the group.
        status: Status of all batches of the group: ``failed``, ``backfilling`` or ``dead``.
        records: Number of offsets that the batches of the group have not processed yet.
        oldest_ms: Time at which the oldest batch was planned (ms since the epoch).
        key: Key of one batch of the group.
    """

    gate: str
    error_class: str | None
    message: str | None
    messages: int
    status: str
    number: int
    records: int
    oldest_ms: int
    newest_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class AlikeLetters:
    """Group of a gate's waiting dead letters whose errors have the same class."""

    gate: str
    error_class: str
    message: str
    messages: int
    number: int
    oldest_ms: int
    newest_ms: int
    letter: int


_SQL: Final = statements("repair")

_CHANGED: Final = " changed"
_NOTHING: Final = "nothing to change"


class RepairStore(Store):
    """Operators' actions on failures, each in one transaction with its author and reason.

    Methods that change something raise `OptionError` if the author or the reason is empty or too
    long, and `LedgerError` if the gate is not declared.
    """

    def retry(self, gate_name: str, keys: Collection[str], by: str, why: str) -> int:
        """Make failed batches due for a backfill at once; return the number of changed batches.

        The gate's own process runs these batches next. The backfill's schedule and budget do not
        delay them. Batches that are not ``failed`` are not changed.
        """

        def retry(connection: Connection) -> int:
            now_ms = self._clock()
            values = [{"batch": key, "gate": gate_name, "now_ms": now_ms} for key in sorted(keys)]
            return sum(changed_rows(connection, _SQL["retry"], row_values) for row_values in values)

        target = _listed("batch", keys)
        row = self._row(gate_name, OperatorActionKind.RETRY, target, by, why)
        return self._do(gate_name, row, retry)

    def retry_sink(self, gate_name: str, by: str, why: str) -> int:
        """Make a gate run its held batch at once; return 1, or 0 if no batch waits for its sink."""

        def retry(connection: Connection) -> int:
            return changed_rows(connection, statements("rate")["run_at_once"], {"gate": gate_name})

        target = "the batch that waits for its sink"
        row = self._row(gate_name, OperatorActionKind.RETRY, target, by, why)
        return self._do(gate_name, row, retry)

    def drop_batch(self, gate_name: str, key: str, by: str, why: str) -> int:
        """Mark a dead batch as resolved without processing it; return the number of marked batches.

        The result is 0 if the batch is not dead, or was resolved before.
        """

        def drop(connection: Connection) -> int:
            reason = f"{why.strip()} ({by})"
            values = {"batch": key, "gate": gate_name, "why": storable(reason)}
            return changed_rows(connection, _SQL["drop"], values)

        target = _listed("batch", [key])
        row = self._row(gate_name, OperatorActionKind.DROP_BATCH, target, by, why)
        return self._do(gate_name, row, drop)

    def drop_letters(self, gate_name: str, letters: Collection[int], by: str, why: str) -> int:
        """Drop dead letters without sending them; return the number that were waiting."""

        def drop(connection: Connection) -> int:
            values = {
                "outcome": DeadLetterStatus.DROPPED,
                "now_ms": self._clock(),
                "why": storable(f"{why.strip()} ({by})"),
                "sent_value": None,
                "call": new_call_id(),
            }
            return sum(
                changed_rows(connection, RESOLVE, values | {"letter": letter})
                for letter in sorted(letters)
            )

        target = _listed("dead letter", [str(letter) for letter in letters])
        row = self._row(gate_name, OperatorActionKind.DROP_LETTERS, target, by, why)
        return self._do(gate_name, row, drop)

    def accept(self, gate_name: str, missed: Missed, records: int, by: str, why: str) -> None:
        """Accept that a gate's missed offsets need not be processed.

        Args:
            gate_name: Name of the gate.
            missed: The gate's missed offsets, from `ProofStore.missed`.
            records: Number of missed offsets that the operator was shown; must equal the number of
                offsets in ``missed``.
            by: Name of the person who accepts the offsets.
            why: The person's reason.

        Raises:
            OptionError: ``records`` is not the number of missed offsets, or the name or the reason
                is empty or too long.
            LedgerError: The gate is not declared.
        """
        if records != missed.offsets:
            raise OptionError(
                f"Gate {gate_name!r} has missed {missed.offsets:,} offsets that nobody has accepted"
                f" ({missed.lost:,} lost, {missed.skipped:,} skipped), but the number given is"
                f" {records:,}; list them with `headrace verify {shlex.quote(gate_name)}`, and give"
                " the number from its output."
            )
        if not records:
            return
        target = f"{records:,} offsets that were lost or skipped"
        row = self._row(gate_name, OperatorActionKind.ACCEPT, target, by, why)
        rows = [
            {
                "gate": gate_name,
                "topic": offsets.topic,
                "topic_id": topic_id or "",
                "partition": offsets.partition,
                "from_offset": offsets.start,
                "until_offset": offsets.until,
                "time_ms": row["time_ms"],
                "why": storable(f"{row['why'].strip()} ({row['by_whom']})"),
            }
            for topic_id, offsets in missed.ranges
        ]

        def accept(connection: Connection) -> None:
            self._insert_under(gate_name, connection, _SQL["accept"], rows)
            self._written(gate_name, connection, row | {"outcome": f"{records:,} accepted"})

        self._database.write(accept)

    def begin_send(self, gate_name: str, letters: Collection[int], by: str, why: str) -> int:
        """Record that a send of dead letters begins; return the action's id for `end_send`."""
        target = _listed("dead letter", [str(letter) for letter in letters])
        row = self._row(gate_name, OperatorActionKind.SEND, target, by, why)

        return self._database.write(lambda connection: self._written(gate_name, connection, row)[0])

    def end_send(self, number: int, outcome: str) -> None:
        """Record the outcome of the send with the id ``number`` from `begin_send`."""
        self._database.change(_SQL["outcome"], {"number": number, "what": storable(outcome)})

    def alike_batches(
        self, gate_name: str | None, limit: int = 100, *, skip: int = 0
    ) -> tuple[AlikeBatches, ...]:
        """Return the unresolved batches of one gate or of all gates, grouped by error.

        Groups are ordered by their oldest batch. The first ``skip`` groups are left out, and at
        most ``limit`` are returned.
        """
        rows = self._database.rows(
            _SQL["alike_batches"],
            gate=gate_name,
            query_stopped=QUERY_STOPPED,
            limit=limit,
            skip=skip,
        )
        return tuple(AlikeBatches(**row._asdict() | {"records": int(row.records)}) for row in rows)

    def alike_letters(
        self, gate_name: str | None, limit: int = 100, *, skip: int = 0
    ) -> tuple[AlikeLetters, ...]:
        """Return the waiting dead letters of one gate or of all gates, grouped by error.

        Groups are ordered by their oldest letter. The first ``skip`` groups are left out, and at
        most ``limit`` are returned.
        """
        rows = self._database.rows(_SQL["alike_letters"], gate=gate_name, limit=limit, skip=skip)
        return tuple(AlikeLetters(**row._asdict()) for row in rows)

    def letters_of(
        self, batch_key: str, limit: int = 100, *, skip: int = 0
    ) -> tuple[DeadLetterRecord, ...]:
        """Return the dead letters of one batch, of every status, oldest first.

        The first ``skip`` letters are left out, and at most ``limit`` are returned.
        """
        rows = self._database.rows(_SQL["letters_of"], batch=batch_key, limit=limit, skip=skip)
        return tuple(letter_from(row._mapping) for row in rows)

    def _row(
        self, gate_name: str, kind: OperatorActionKind, target: str, by: str, why: str
    ) -> dict[str, Any]:
        """Check the author and the reason of an action; return its row, with no outcome yet."""
        return {
            "gate": gate_name,
            "kind": kind,
            "by_whom": operator_text("The operator's name", by, 1, MOST_BY),
            "why": operator_text("The reason", why, 1, MOST_WHY),
            "time_ms": self._clock(),
            "target": target,
            "outcome": None,
            "last_call": new_call_id(),
        }

    def _do(self, gate_name: str, row: dict[str, Any], work: Callable[[Connection], int]) -> int:
        def do(connection: Connection) -> int:
            number, outcome = self._written(gate_name, connection, row)
            if outcome is not None:  # This call was made before, and its answer was lost.
                return int(outcome.removesuffix(_CHANGED)) if outcome != _NOTHING else 0
            changed = work(connection)
            outcome_text = f"{changed}{_CHANGED}" if changed else _NOTHING
            execute(connection, _SQL["outcome"], {"number": number, "what": outcome_text})
            return changed

        return self._database.write(do)

    def _written(
        self, gate_name: str, connection: Connection, row: dict[str, Any]
    ) -> tuple[int, str | None]:
        """Insert an action's row, unless a first try of the same call has inserted it.

        Return the row's id and its outcome (None if unknown).
        """
        with self._under(gate_name):
            execute(connection, _SQL["new"], row)
        written = execute(connection, _SQL["written"], row).one()
        return written.action_id, written.outcome


def _listed(noun: str, names: Collection[str]) -> str:
    """Return the first 20 names of an action's batches or letters, and how many more there are."""
    if not 0 < len(names) <= MOST_AT_ONCE:
        raise OptionError(
            f"The number of batches or dead letters of this action is {len(names)}; choose from 1"
            f" to {MOST_AT_ONCE:,}."
        )
    shown: Sequence[str] = sorted(names)[:20]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{noun} {', '.join(shown)}{more}"
