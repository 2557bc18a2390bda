"""Old history, deleted in steps that keep no batch waiting."""

from typing import Final

from sqlalchemy import Delete

from headgate.ledger.engine import Database
from headgate.ledger.records import Pruned
from headgate.ledger.statements import DELETE_OLD_BATCHES, DELETE_OLD_RATES, GATES

ROWS_AT_ONCE: Final = 100
"""Rows that one transaction deletes, with the ranges of as many batches: some 10 ms."""


def prune(database: Database, before_ms: int) -> Pruned:
    """Delete the successful batches and the rate samples of all gates from before this time."""
    with database.reading() as connection:
        gates = [row.name for row in connection.execute(GATES)]
    return Pruned(
        batches=sum(_delete(database, DELETE_OLD_BATCHES, name, before_ms) for name in gates),
        rates=sum(_delete(database, DELETE_OLD_RATES, name, before_ms) for name in gates),
    )


def _delete(database: Database, statement: Delete, gate: str, before_ms: int) -> int:
    deleted = 0
    values = {"gate": gate, "before_ms": before_ms, "limit": ROWS_AT_ONCE}
    while True:
        with database.writing() as connection:
            step = connection.execute(statement, values).rowcount
        deleted += step
        if step < ROWS_AT_ONCE:
            return deleted
