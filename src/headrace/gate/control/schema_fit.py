"""Verdicts on a schema, from the numbers of records that it fits in a gate's batches."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

FIT_BATCHES: Final = 3
"""Batches in a row that show that a schema has stopped fitting."""

LOOKED_AT: Final = 10
"""Newest batches that are looked at: as many as bad records are evidence."""


@dataclass(frozen=True, slots=True)
class FitCount:
    """Records of a batch, and those that the schema does not fit."""

    records: int
    unfit: int


def never_fitted(batch: FitCount, unfit_before: int | None, *, least: int = 3) -> bool:
    """Whether a schema has fitted no record yet, so that it is wrong, and not the records.

    Args:
        batch: the newest batch.
        unfit_before: records of the batches before it that the schema did not fit; None where it
            fitted any, and nothing is held against it then.
        least: so many records in all are evidence. Default: 3.
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
        newest_first: batches; those without records do not count.
        batches: so many in a row, or more, have too many. Default: 3.
        share: more than this part of a batch is too much. Default: 0.5.
        least: so many records in all are evidence. Default: 10.
    """
    filled = (batch for batch in newest_first if batch.records)
    row = list(takewhile(lambda batch: batch.unfit > share * batch.records, filled))
    return len(row) >= batches and sum(batch.unfit for batch in row) >= least
