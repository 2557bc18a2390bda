"""Deletion of old batches and rate samples."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from headrace.gate.ledger.database import Database
from headrace.gate.ledger.moments import count_pruned
from headrace.gate.ledger.statements import Values, execute, statements

_SQL: Final = statements("history")

Key = TypeVar("Key")

ROWS_AT_ONCE: Final = 100
"""Maximum number of batches or rate samples that one transaction deletes, which takes about 10 ms.
A statement has at most the same number of keys; the databases allow far more."""

_BEFORE_ALL_MS: Final = -(2**63)


def prune_batches(database: Database, gate: str, before_ms: int, at_once: int) -> int:
    """Delete a gate's batches that ended before ``before_ms``; return the number deleted.

    Each transaction handles at most ``at_once`` batches.
    """
    deleted, after_ms = 0, _BEFORE_ALL_MS
    while True:
        old = {"gate": gate, "before_ms": before_ms, "after_ms": after_ms, "limit": at_once}
        count, last_ms = database.write(partial(_prune_some, old))
        deleted += count
        if last_ms is None:
            return deleted
        after_ms = last_ms


def _prune_some(old: Values, connection: Connection) -> tuple[int, int | None]:
    """Delete one group of old batches.

    Returns:
        The number of deleted batches, and the created time of the group's last batch. The time is
        None if no old batches are left after this group.
    """
    execute(connection, statements("gate")["lock"], old)
    rows = execute(connection, _SQL["old_batches"], old).all()
    last_ms = rows[-1].created_time_ms if len(rows) == old["limit"] else None
    keys = [row.batch_key for row in rows]
    pruned_ranges = execute(connection, _SQL["pruned"], old).all()
    own = [
        (*row, key)
        for key, *row in map(tuple, execute(connection, _SQL["old_ranges"], {"keys": keys}))
    ]
    read_twice = _read_twice([*((*row, None) for row in pruned_ranges), *own])
    closed = [key for key in keys if key not in read_twice]
    if closed:
        _remember(
            connection,
            old["gate"],
            [*pruned_ranges, *(r for *r, key in own if key not in read_twice)],
        )
        count_pruned(connection, old["gate"], closed)
        execute(connection, _SQL["delete_batches"], {"keys": closed})
    return len(closed), last_ms


def some_at_once(keys: Sequence[Key], at_once: int) -> Iterator[Sequence[Key]]:
    """Split the keys into groups of at most ``at_once``."""
    for first in range(0, len(keys), at_once):
        yield keys[first : first + at_once]


def _read_twice(ranges: Iterable[tuple[Any, ...]]) -> set[str]:
    """Return the keys of batches that overlap with another batch or with a pruned range.

    In ``ranges``, the batch key of a pruned range is None.
    """
    overlapping: set[str | None] = set()
    at: list[Any] = []
    reached, last = 0, None
    for *place, start, until, batch in sorted(ranges, key=lambda item: item[:-1]):
        if place != at:
            at, reached, last = place, start, None
        if start < reached:
            overlapping |= {batch, last}
        if until > reached:
            reached, last = until, batch
    return {batch for batch in overlapping if batch is not None}


def _remember(connection: Connection, gate: str, ranges: Iterable[Sequence[Any]]) -> None:
    """Replace the pruned ranges of a gate by ``ranges``, after joining neighbouring ranges."""
    rows: list[list[Any]] = []
    for *place, start, until in sorted(map(tuple, ranges)):
        if rows and rows[-1][:-2] == place and rows[-1][-1] == start:
            rows[-1][-1] = until
        else:
            rows.append([*place, start, until])
    execute(connection, _SQL["forget_pruned"], {"gate": gate})
    execute(connection, _SQL["new_pruned"], {"gate": gate, "ranges": json.dumps(rows)})


def prune_rates(database: Database, gate: str, before_ms: int, at_once: int) -> int:
    """Delete a gate's rate samples before ``before_ms``; return the number deleted.

    Each transaction deletes at most ``at_once`` samples.
    """
    deleted = 0
    values = {"gate": gate, "before_ms": before_ms, "limit": at_once}
    while True:
        step = database.change(_SQL["delete_rates"], values)
        deleted += step
        if step < at_once:
            return deleted
