"""Which batches a channel has already been given, as far as the ledger can tell."""

from collections.abc import Iterator
from typing import Final

from headrace.ledger import Ledger, Status

_FINAL: Final = (Status.SUCCESS, Status.DEAD)

_MOST_UNKNOWN: Final = 10
"""Batches of which the ledger has no row (their queries run only the last one again)."""


def is_done(key: str, ledger: Ledger) -> bool:
    """Whether a batch is done with: whoever still runs it has lost it to another process."""
    record = ledger.batch(key)
    return record is not None and record.status in _FINAL


def lineage(key: str, ledger: Ledger) -> Iterator[str]:
    """The batch, what it is a part of, and so on.

    A part of a batch that was written before it was divided is written, too.
    """
    at: str | None = key
    while at is not None:
        yield at
        record = ledger.batch(at)
        at = None if record is None else record.parent


def forgettable(written: tuple[str, ...], ledger: Ledger) -> list[str]:
    """Those of the batches that are in a channel which nobody will run again.

    One that was divided is not among them: it may be done with while parts of it are still to run.

    Args:
        written: Their keys, the oldest first.
        ledger: Of the stage that writes.
    """
    records = {key: ledger.batch(key) for key in written}
    done = [
        key
        for key, record in records.items()
        if record and record.status in _FINAL and not ledger.parts(key)
    ]
    unknown = [key for key, record in records.items() if record is None]
    return done + unknown[:-_MOST_UNKNOWN]
