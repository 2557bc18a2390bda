"""The ledger's dead letters: records that cannot be processed, kept until they are resolved."""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select

from headrace.errors import LedgerError
from headrace.ledger import moves, statements
from headrace.ledger.base import Base
from headrace.ledger.engine import changed_rows
from headrace.ledger.letters import DeadLetter, DeadLetterRecord, LetterStatus
from headrace.ledger.records import ErrorReport, storable
from headrace.ledger.rows import Values, error_values
from headrace.ledger.tables import dead_letter

Headers = tuple[tuple[str, bytes | None], ...]


class DeadLetters(Base):
    """What cannot be processed, with the reason, and what was done about it."""

    def bury_record(
        self, schedule_id: str, letter: DeadLetter, *, owner: str | None = None
    ) -> bool:
        """Keep the one record of a batch or part, which becomes ``dead`` in the same transaction.

        It moves from ``backfilling`` (arrow I), or from ``in_progress`` (E, F and I at once).

        Args:
            schedule_id: The batch or part.
            letter: Its record, and why it cannot be processed.
            owner: Who must own it, if the caller attached as an owner.

        Returns:
            Whether it stood there, and was that owner's; if not, nothing is changed, so that a
            record that is buried again, after a crash, is one dead letter.
        """
        values = self._failed(schedule_id, owner, letter.error)
        # It is there already where the call is made again, for its answer was lost.
        statement = self._database.insert(dead_letter).on_conflict_do_nothing()

        def bury(connection: Connection) -> bool:
            if changed_rows(connection, moves.BURY_RECORD, values) == 0:
                return False
            row = connection.execute(statements.BATCH, {"schedule_id": schedule_id}).one()
            connection.execute(statement, _letter_row(letter, row.gate, schedule_id, self._clock()))
            return True

        return self._database.write(bury)

    def dead_letters(
        self,
        gate_name: str | None = None,
        *,
        statuses: Collection[LetterStatus] = (),
        limit: int = 100,
        after: int = 0,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[DeadLetterRecord, ...]:
        """The dead letters of one gate or of all, oldest first.

        Args:
            gate_name: The gate, or None for all.
            statuses: Which ones; all of them where none is named.
            limit: How many at most.
            after: Only those with a higher id: the last one of the page before.
            since_ms: Kept at this time or later.
            until_ms: Kept before this time.
            error_class: The class of the exception, with its module or without.
        """
        query = (
            select(dead_letter)
            .where(dead_letter.c.dead_letter_id > after)
            .where(*statements.created_within(dead_letter.c.created_ms, since_ms, until_ms))
            .order_by(dead_letter.c.dead_letter_id)
            .limit(limit)
        )
        if error_class is not None:
            query = query.where(statements.is_error(dead_letter.c.error_class, error_class))

        def oldest(connection: Connection) -> list[DeadLetterRecord]:
            names = (
                [gate_name] if gate_name is not None else connection.scalars(statements.GATES).all()
            )
            queries = [
                query.where(dead_letter.c.gate == name, dead_letter.c.status == status)
                for name in names
                for status in set(statuses or LetterStatus)
            ]
            if not queries:
                return []
            rows = connection.execute(statements.together(queries))
            return [_letter_from(row) for row in rows.mappings()]

        found = self._database.read(oldest)
        return tuple(sorted(found, key=lambda letter: letter.dead_letter_id)[:limit])

    def dead_letter(self, dead_letter_id: int) -> DeadLetterRecord | None:
        """One dead letter, if it is in the ledger."""

        def letter(connection: Connection) -> DeadLetterRecord | None:
            rows = connection.execute(statements.DEAD_LETTER, {"letter": dead_letter_id})
            return next(map(_letter_from, rows.mappings()), None)

        return self._database.read(letter)

    def resolve(self, dead_letter_id: int, status: LetterStatus, resolution: str) -> bool:
        """Say that a waiting dead letter was sent again, or is dropped.

        Args:
            dead_letter_id: The dead letter.
            status: ``sent`` or ``dropped``.
            resolution: How it was sent, or why it is dropped.

        Returns:
            Whether it was waiting; if not, nothing is changed.

        Raises:
            LedgerError: The status is ``waiting``.
        """
        if status is LetterStatus.WAITING:
            raise LedgerError(
                f"Dead letter {dead_letter_id} cannot be resolved as 'waiting'; "
                "it is either 'sent' or 'dropped'."
            )
        values = {
            "letter": dead_letter_id,
            "outcome": status,
            "now_ms": self._clock(),
            "why": storable(resolution),
            "move": moves.new_move(),
        }
        return self._database.change(statements.RESOLVE, values) == 1


def _letter_row(letter: DeadLetter, gate: str, schedule_id: str, now_ms: int) -> Values:
    return {
        "schedule_id": schedule_id,
        "gate": gate,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "key": letter.key,
        "value": letter.value,
        "headers": _headers_text(letter.headers),
        "timestamp_ms": letter.timestamp_ms,
        "timestamp_type": letter.timestamp_type,
        **error_values(letter.error),
        "created_ms": now_ms,
        "status": LetterStatus.WAITING,
    }


def _letter_from(row: Mapping[Any, Any]) -> DeadLetterRecord:
    letter = DeadLetter(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        key=row["key"],
        value=row["value"],
        headers=_headers_from(row["headers"]),
        timestamp_ms=row["timestamp_ms"],
        timestamp_type=row["timestamp_type"],
        error=ErrorReport(row["error_class"], row["error_message"], row["error_trace"]),
    )
    return DeadLetterRecord(
        dead_letter_id=row["dead_letter_id"],
        schedule_id=row["schedule_id"],
        gate=row["gate"],
        letter=letter,
        created_ms=row["created_ms"],
        status=LetterStatus(row["status"]),
        resolved_ms=row["resolved_ms"],
        resolution=row["resolution"],
    )


def _headers_text(headers: Headers | None) -> str | None:
    if headers is None:
        return None
    written = [
        [name, None if value is None else b64encode(value).decode()] for name, value in headers
    ]
    return json.dumps(written)


def _headers_from(text: str | None) -> Headers | None:
    if text is None:
        return None
    return tuple((name, None if v is None else b64decode(v)) for name, v in json.loads(text))
