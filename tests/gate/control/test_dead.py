"""Why a batch is dead: one decision, for whoever asks."""

from dataclasses import dataclass

import pytest

from headrace.errors import (
    DataLossError,
    JournalError,
    MachineryError,
    OptionError,
    SetupError,
    SinkAwayError,
    SourceError,
)
from headrace.gate.control.dead import BackfillLimits, DeadReason, why_dead


@dataclass(frozen=True)
class Batch:
    backfills: int = 0
    done_records: int = 0


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_batch_is_dead_when_its_last_backfill_has_failed_and_not_before(most: int) -> None:
    reasons = [
        why_dead(Batch(failed), BackfillLimits(most), ValueError()) for failed in range(most)
    ]
    assert reasons == [None] * (most - 1) + [DeadReason.BACKFILLS]


@pytest.mark.parametrize(
    "kind",
    [
        *(SourceError, DataLossError, JournalError, MachineryError),
        *(SetupError, SinkAwayError, OptionError),
    ],
)
def test_an_error_that_is_not_the_handlers_makes_no_batch_dead(kind: type[Exception]) -> None:
    assert why_dead(Batch(10**6), BackfillLimits(1), kind("it is away")) is None


def test_a_batch_of_which_nothing_is_there_is_dead_unless_a_part_is_processed() -> None:
    assert why_dead(Batch(), BackfillLimits(), is_gone=True) is DeadReason.GONE
    assert why_dead(Batch(99, done_records=1), BackfillLimits(), is_gone=True) is None


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_that_allows_no_backfill_is_refused(most: int) -> None:
    with pytest.raises(OptionError, match=f"max_backfills is {most}"):
        BackfillLimits(most)
