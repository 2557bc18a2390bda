"""Verdicts on a schema, from the numbers of records that it fits in a gate's batches."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

FIT_BATCHES: Final = 3
"""Consecutive batches that prove that a schema has stopped fitting."""

LOOKED_AT: Final = 10
"""Newest batches to inspect: the same number as the bad records that are evidence."""


@dataclass(frozen=True, slots=True)
class FitCount:
    """Records of a batch, and its records that do not fit the schema."""

    records: int
    unfit: int


def never_fitted(batch: FitCount, unfit_before: int | None, *, least: int = 3) -> bool:
    """Whether a schema has fitted no record yet, so that the schema is wrong, not the records.

    Args:
        batch: The newest batch.
        unfit_before: Unfit records of the earlier batches; None if any record fitted, which clears
            the schema.
        least: Least number of unfit records for a verdict. Default: 3.
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
    """Whether a schema does not fit too many of the newest records.

    Args:
        newest_first: The batches; batches without records do not count.
        batches: Least number of consecutive batches with too many unfit records. Default: 3.
        share: Largest tolerated fraction of unfit records in a batch. Default: 0.5.
        least: Least number of unfit records for a verdict. Default: 10.
    """
    filled = (batch for batch in newest_first if batch.records)
    row = list(takewhile(lambda batch: batch.unfit > share * batch.records, filled))
    return len(row) >= batches and sum(batch.unfit for batch in row) >= least
