"""Decide whether a schema is wrong, from the numbers of unfit records in a gate's batches.

A record is unfit if its value cannot be decoded with the schema.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

FIT_BATCHES: Final = 3
"""A schema counts as wrong after this many consecutive batches with many unfit records."""

LOOKED_AT: Final = 10
"""Number of newest batches to inspect. This is also the least number of unfit records for a
verdict."""


@dataclass(frozen=True, slots=True)
class FitCount:
    """Number of records in a batch, and number of its records that do not fit the schema."""

    records: int
    unfit: int


def never_fitted(batch: FitCount, unfit_before: int | None, *, least: int = 3) -> bool:
    """Whether a schema has not fitted a single record, so that the schema must be wrong.

    Args:
        batch: The newest batch.
        unfit_before: Number of unfit records in the earlier batches. None if any record has fitted;
            the result is then False.
        least: Least number of unfit records for the result True. Default: 3.
    """
    if unfit_before is None or batch.unfit < batch.records:
        return False
    return batch.unfit > 0 and unfit_before + batch.unfit >= least


def stopped_fitting(
    newest_first: Iterable[FitCount],
    *,
    batches: int = FIT_BATCHES,
    share: float = 0.5,
    least: int = 10,
) -> bool:
    """Whether a schema that once fitted no longer does: too many of the newest records are unfit.

    Args:
        newest_first: The gate's batches, the newest first. Batches without records do not count.
        batches: Least number of consecutive newest batches with too many unfit records. Default: 3.
        share: Largest tolerated fraction of unfit records in a batch. Default: 0.5.
        least: Least number of unfit records in these batches. Default: 10.
    """
    filled = (batch for batch in newest_first if batch.records)
    row = list(takewhile(lambda batch: batch.unfit > share * batch.records, filled))
    return len(row) >= batches and sum(batch.unfit for batch in row) >= least
