"""Operators' actions on failures, one row each with who, when and why; and groups of failures.

An action and its row are one transaction, so there is no action without its reason. Sending dead
letters takes longer than a transaction, so its row is written first.
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
"""Maximum number of batches or records of one action."""


@dataclass(frozen=True, slots=True)
class AlikeBatches:
    """Unresolved batches of a gate that failed with the same class of exception.

    Attributes:
        error_class: The exception's class with its module; None if the batches have no error.
        message: The message of one of the batches.
        messages: Number of different messages.
        status: ``failed``, ``backfilling`` or ``dead``.
        records: Total number of offsets.
        oldest_ms: Time of the oldest batch's plan.
        key: The key of one of the batches.
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
    """Waiting dead letters of a gate with the same class of exception: see `AlikeBatches`."""

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
    """Operators' actions on failures, each in one transaction with the row that says who and why.

    A method that changes something raises `OptionError` for a name or reason that is empty or too
    long, and `LedgerError` for an undeclared gate.
    """

    def retry(self, gate_name: str, keys: Collection[str], by: str, why: str) -> int:
        """Backfill failed batches without further waiting; return how many of them had failed.

        The gate's own process runs these batches next, whatever its schedule and its spare rate.
        """

        def retry(connection: Connection) -> int:
            now_ms = self._clock()
            values = [{"batch": key, "gate": gate_name, "now_ms": now_ms} for key in sorted(keys)]
            return sum(changed_rows(connection, _SQL["retry"], row_values) for row_values in values)

        target = _listed("batch", keys)
        row = self._row(gate_name, OperatorActionKind.RETRY, target, by, why)
        return self._do(gate_name, row, retry)

    def retry_sink(self, gate_name: str, by: str, why: str) -> int:
        """Run the batch that waits for its sink at once; return 0 if none waits."""

        def retry(connection: Connection) -> int:
            return changed_rows(connection, statements("rate")["run_at_once"], {"gate": gate_name})

        target = "the batch that waits for its sink"
        row = self._row(gate_name, OperatorActionKind.RETRY, target, by, why)
        return self._do(gate_name, row, retry)

    def drop_batch(self, gate_name: str, key: str, by: str, why: str) -> int:
        """Drop a dead batch, without processing it; return 0 if it is not dead, or was dropped."""

        def drop(connection: Connection) -> int:
            reason = f"{why.strip()} ({by})"
            values = {"batch": key, "gate": gate_name, "why": storable(reason)}
            return changed_rows(connection, _SQL["drop"], values)

        target = _listed("batch", [key])
        row = self._row(gate_name, OperatorActionKind.DROP_BATCH, target, by, why)
        return self._do(gate_name, row, drop)

    def drop_letters(self, gate_name: str, letters: Collection[int], by: str, why: str) -> int:
        """Drop dead letters, without processing them. Return how many were waiting."""

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
            gate_name: The gate.
            missed: The gate's missed offsets, from `ProofStore.missed`.
            records: The number of offsets that the operator has seen; it must equal the number in
                ``missed``.
            by: The person who accepts the offsets.
            why: The reason, in the person's words.

        Raises:
            OptionError: The gate has missed another number of offsets, or none; or the name or the
                reason is empty, or too long.
            LedgerError: The gate is not declared.
        """
        if records != missed.offsets:
            raise OptionError(
                f"Gate {gate_name!r} has missed {missed.offsets:,} offsets that nobody has accepted"
                f" ({missed.lost:,} lost, {missed.skipped:,} skipped), and not {records:,}; see"
                f" what they are with `headrace verify {shlex.quote(gate_name)}`, and name that"
                " number."
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
        """Record that dead letters are about to be sent; return the number for `end_send`."""
        target = _listed("dead letter", [str(letter) for letter in letters])
        row = self._row(gate_name, OperatorActionKind.SEND, target, by, why)

        return self._database.write(lambda connection: self._written(gate_name, connection, row)[0])

    def end_send(self, number: int, outcome: str) -> None:
        """Record the outcome of a send."""
        self._database.change(_SQL["outcome"], {"number": number, "what": storable(outcome)})

    def alike_batches(
        self, gate_name: str | None, limit: int = 100, *, skip: int = 0
    ) -> tuple[AlikeBatches, ...]:
        """Return groups of unresolved batches of one gate or of all gates.

        The group with the oldest batch is the first. The first ``skip`` groups are left out.
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
        """Return groups of waiting dead letters of one gate or of all gates.

        The group with the oldest letter is the first. The first ``skip`` groups are left out.
        """
        rows = self._database.rows(_SQL["alike_letters"], gate=gate_name, limit=limit, skip=skip)
        return tuple(AlikeLetters(**row._asdict()) for row in rows)

    def letters_of(
        self, batch_key: str, limit: int = 100, *, skip: int = 0
    ) -> tuple[DeadLetterRecord, ...]:
        """Return the dead letters of one batch, of any status, oldest first, from ``skip`` on."""
        rows = self._database.rows(_SQL["letters_of"], batch=batch_key, limit=limit, skip=skip)
        return tuple(letter_from(row._mapping) for row in rows)

    def _row(
        self, gate_name: str, kind: OperatorActionKind, target: str, by: str, why: str
    ) -> dict[str, Any]:
        """Check the name and the reason of an action; return its row, without an outcome."""
        return {
            "gate": gate_name,
            "kind": kind,
            "by_whom": operator_text("Who does it", by, 1, MOST_BY),
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
        """Write an action's row, once per call; return its number and its outcome so far."""
        with self._under(gate_name):
            execute(connection, _SQL["new"], row)
        written = execute(connection, _SQL["written"], row).one()
        return written.action_id, written.outcome


def _listed(noun: str, names: Collection[str]) -> str:
    """Return the subjects of an action, in words."""
    if not 0 < len(names) <= MOST_AT_ONCE:
        raise OptionError(
            f"The action is about {len(names)}; choose from 1 to {MOST_AT_ONCE:,} at once."
        )
    shown: Sequence[str] = sorted(names)[:20]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{noun} {', '.join(shown)}{more}"
