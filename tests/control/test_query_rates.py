"""What a batch teaches the laws of a query's gates."""

from headrace.control import (
    BatchProgress,
    EstimatorSettings,
    FinishedBatch,
    LearntRate,
    QueryRates,
    batch_stats,
)

INTERVAL_MS = 1_000
FIXED_MS = 400


def rate_after(*, limited: bool) -> LearntRate:
    """Five batches of 600 records, and then twenty of 10 under an operator's limit."""
    rates, start_ms, previous, learnt = QueryRates(), 0, None, LearntRate()
    rates.add("gate", EstimatorSettings("pid"), INTERVAL_MS)
    for records in [600] * 5 + [10] * 20:
        took_ms = FIXED_MS + records
        progress = BatchProgress(start_ms, took_ms, records, 1)
        stats = batch_stats(previous, progress, INTERVAL_MS)
        batch = FinishedBatch(progress.end_ms, {"gate": records}, took_ms, behind={"gate"})
        held_back = {"gate"} if limited and records == 10 else set[str]()
        found = rates.finished(batch, {"gate": stats}, limited=held_back)["gate"]
        learnt = found if found.rate_per_s is not None else learnt
        previous, start_ms = progress, start_ms + INTERVAL_MS
    return learnt


def test_an_operators_limit_teaches_pid_nothing_false() -> None:
    assert rate_after(limited=False).rate_per_s == 100, "as if the job could do no more"
    assert rate_after(limited=True).rate_per_s == 600


def test_after_an_outage_pid_begins_as_after_a_start() -> None:
    rates = QueryRates()
    rates.add("gate", EstimatorSettings("pid"), INTERVAL_MS)
    learnt = []
    for number in range(6):
        if number == 3:
            rates.restart("gate")
        progress = BatchProgress(number * INTERVAL_MS, 1_000, 600, 1)
        stats = batch_stats(None, progress, INTERVAL_MS)
        batch = FinishedBatch(progress.end_ms, {"gate": 600}, 1_000, behind={"gate"})
        learnt.append(rates.finished(batch, {"gate": stats})["gate"].rate_per_s)
    assert learnt == [None, 600, 600, None, 600, 600]
