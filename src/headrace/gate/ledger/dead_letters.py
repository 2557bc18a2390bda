"""Dead letters of the ledger: records that cannot be processed, kept until they are resolved.

A batch with dead letters still becomes a ``success``. Each planned offset of the batch is then
processed, rejected or lost.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.control.schema_fit import FitCount
from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.error_report import BAD_VALUE, ErrorReport, error_values, storable
from headrace.gate.ledger.pruning import ROWS_AT_ONCE, some_at_once
from headrace.gate.ledger.records import DeadLetter, DeadLetterRecord, DeadLetterStatus, Rejected
from headrace.gate.ledger.statements import Values, ends_with, execute, statements
from headrace.gate.ledger.transitions import new_call_id

Headers = tuple[tuple[str, bytes | None], ...]

CLAIM_MS: Final = 120_000
"""Lease of a dead letter while it is being sent (ms). A broker stores a record in much less
time."""

_SQL: Final = statements("dead_letter")

RESOLVE: Final = _SQL["resolve"]


@dataclass(frozen=True, slots=True)
class ClaimedLetters:
    """Ids of the dead letters that one sender has claimed.

    Attributes:
        call: Random id of the claim.
    """

    call: str
    letters: frozenset[int]


def rejected_ranges(connection: Connection, gate_name: str) -> list[Rejected]:
    """Return the ranges of a gate's dead letters, sorted by checkpoint, topic, partition, offset.

    Dead letters with consecutive offsets, the same batch and the same error form one range.
    """
    ranges: list[Rejected] = []
    for row in execute(connection, _SQL["rejected"], {"gate": gate_name}):
        rejected = Rejected(
            row.checkpoint_id,
            row.batch_key,
            OffsetRange(row.topic, row.partition, row.offset, row.offset + 1),
            ErrorReport(row.error_class, row.error_message, ""),
            row.topic_id,
        )
        if ranges and ranges[-1].is_followed_by(rejected):
            ranges[-1] = replace(ranges[-1], offsets=ranges[-1].offsets.hull(rejected.offsets))
        else:
            ranges.append(rejected)
    return ranges


class DeadLetterStore(Store):
    """Dead letters in the ledger, with their errors and resolutions."""

    def count_rejected(self, batch_keys: Collection[str]) -> Mapping[str, int]:
        """Return the number of dead letters by batch key; a batch without letters has no entry."""
        return {
            row.batch_key: row.number
            for keys in some_at_once(list(batch_keys), ROWS_AT_ONCE)
            for row in self._database.rows(_SQL["count_by_batch"], batches=keys)
        }

    def count_bad_values(self, gate_name: str) -> int | None:
        """Return the number of a gate's undecodable records; None if it had a decodable record."""
        values = {"gate": gate_name, "bad_value": BAD_VALUE}

        def count(connection: Connection) -> int | None:
            for name in ("processed_any", "pruned_any"):
                if execute(connection, _SQL[name], values).first():
                    return None
            number: int = execute(connection, _SQL["count_bad_values"], values).scalar_one()
            return number

        return self._database.read(count)

    def fit_counts(self, gate_name: str, limit: int) -> tuple[FitCount, ...]:
        """Return the numbers of all and of undecodable records in a gate's successful batches.

        The result has one item for each of the newest ``limit`` batches, newest first.
        """
        rows = self._database.rows(
            _SQL["fit_counts"], gate=gate_name, bad_value=BAD_VALUE, limit=limit
        )
        return tuple(FitCount(row.planned_records, row.unfit) for row in rows)

    def oldest(
        self,
        gate_name: str | None = None,
        *,
        statuses: Collection[DeadLetterStatus] = (),
        limit: int = 100,
        after: int = 0,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[DeadLetterRecord, ...]:
        """Return the dead letters of one gate or of all gates, oldest first.

        The letters have one of ``statuses`` (default: every status). They were created at
        ``since_ms`` or later and before ``until_ms``. Their ids are above ``after``, the last id of
        the previous page. ``error_class`` is the class of the exception, with or without its
        module.
        """
        values = {
            "gate": gate_name,
            "after": after,
            "since_ms": since_ms,
            "until_ms": until_ms,
            "error_class": error_class,
            "error_name": None if error_class is None else ends_with(f".{error_class}"),
            "limit": limit,
            "all_but_one": limit - 1,
        }
        statement = _SQL["oldest_of_all" if gate_name is None else "oldest"]

        def oldest(connection: Connection) -> list[DeadLetterRecord]:
            # The index orders the letters of one status, not of several.
            return [
                letter_from(row)
                for status in set(statuses or DeadLetterStatus)
                for row in execute(connection, statement, values | {"status": status}).mappings()
            ]

        letters = self._database.read(oldest)
        return tuple(sorted(letters, key=lambda letter: letter.dead_letter_id)[:limit])

    def get(self, dead_letter_id: int) -> DeadLetterRecord | None:
        """Return the dead letter with this id; None if it is not in the ledger."""
        rows = self._database.rows(_SQL["letter"], letter=dead_letter_id)
        return next((letter_from(row._mapping) for row in rows), None)

    def values_of(self, numbers: Collection[int]) -> Mapping[int, bytes | None]:
        """Return the Kafka values of the dead letters with these ids, by id."""
        rows = self._database.rows(_SQL["values"], letters=numbers)
        return {row.dead_letter_id: row.value for row in rows}

    @contextmanager
    def claimed(self, dead_letter_ids: Iterable[int]) -> Iterator[ClaimedLetters]:
        """Claim waiting dead letters for a new send; release them at the end of the ``with``.

        Letters that are resolved, or that another process is sending, are not claimed. If the
        claiming process dies, the claim expires after two minutes.
        """
        call = new_call_id()
        wanted, values = sorted(set(dead_letter_ids)), {"call": call, "claim_ms": CLAIM_MS}

        def claim(connection: Connection) -> frozenset[int]:
            return frozenset(
                letter
                for letter in wanted
                if changed_rows(connection, _SQL["claim"], values | {"letter": letter})
            )

        def release(connection: Connection) -> None:
            for letter in wanted:
                execute(connection, _SQL["release"], values | {"letter": letter})

        try:
            yield ClaimedLetters(call, self._database.write(claim))
        finally:
            self._database.write(release)

    def resolve(
        self,
        dead_letter_id: int,
        status: DeadLetterStatus,
        resolution: str,
        claim: ClaimedLetters | None = None,
        *,
        sent_value: bytes | None = None,
    ) -> bool:
        """Set the status of a waiting dead letter to ``sent`` or ``dropped``.

        Args:
            dead_letter_id: Id of the letter.
            status: The new status.
            resolution: For a sent letter, the target; for a dropped letter, the reason.
            claim: The sender's claim. None: resolve a letter that no process is sending. Default:
                None.
            sent_value: Value that was sent in place of the letter's own value, and is stored with
                the letter. Default: None, the own value was sent.

        Returns:
            True if the status was set. False, with nothing changed, if the letter was not waiting,
            or another sender has claimed it.

        Raises:
            LedgerError: The status is ``waiting``.
        """
        if status is DeadLetterStatus.WAITING:
            raise LedgerError(
                f"Dead letter {dead_letter_id} cannot be resolved with the status 'waiting'; "
                "the status must be 'sent' or 'dropped'."
            )
        values = {
            "letter": dead_letter_id,
            "outcome": status,
            "now_ms": self._clock(),
            "why": storable(resolution),
            "call": new_call_id() if claim is None else claim.call,
            "sent_value": sent_value,
        }
        return self._changes(RESOLVE, values)


def insert_letters(
    connection: Connection, batch_key: str, letters: Sequence[DeadLetter], now_ms: int
) -> None:
    """Insert the dead letters of a batch in the caller's transaction, one row per record."""
    if letters:
        gate = execute(
            connection, statements("batch")["gate_of"], {"batch": batch_key}
        ).scalar_one()
        rows = [_letter_row(letter, gate, batch_key, now_ms) for letter in letters]
        execute(connection, _SQL["new"], rows)


def _letter_row(letter: DeadLetter, gate: str, batch_key: str, now_ms: int) -> Values:
    return {
        "batch_key": batch_key,
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
    }


def letter_from(row: Mapping[Any, Any]) -> DeadLetterRecord:
    """Return a row of ``dead_letter`` as a `DeadLetterRecord`."""
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
        batch_key=row["batch_key"],
        gate=row["gate"],
        letter=letter,
        created_ms=row["created_ms"],
        status=DeadLetterStatus(row["status"]),
        resolved_ms=row["resolved_ms"],
        resolution=row["resolution"],
        sent_value=row["sent_value"],
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
