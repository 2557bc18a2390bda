"""Batches over time: phases that the ledger knows, in their order, and none that it does not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operate.cli.histories import NOW_MS, with_lags
from tests.operate.dashboard.histories import HOSTILE, add_failure
from tests.operate.dashboard.test_failure_lists import regions

from headrace.gate.ledger.gates import GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, RateSample
from headrace.gate.ledger.transitions import Status
from headrace.operate.dashboard.timeline import Timeline, timeline_of
from headrace.operate.status.states import GateHistory

HISTORY = with_lags(9_000, 9_500, 10_000)
QUERY = GateQuery("me", None, None, "a program", None, None, 0, NOW_MS + 30_000, 1)


def timeline(history: GateHistory) -> Timeline:
    found = timeline_of(history, NOW_MS)
    assert found is not None
    return found


def changed(**values: object) -> GateHistory:
    """The history with another newest batch."""
    newest = replace(HISTORY.batches[0], **values)  # type: ignore[arg-type]
    return replace(HISTORY, batches=(newest, *HISTORY.batches[1:]), query=QUERY)


def phases(history: GateHistory) -> list[tuple[str, int]]:
    newest = timeline(history).batches[-1]
    return [(each.name, each.duration_ms) for each in newest.phases]


def test_a_batch_waits_is_handled_and_is_committed_once_spark_has_said_so() -> None:
    assert phases(HISTORY) == [("waiting", 10), ("handler", 890)]
    newest = HISTORY.batches[0]
    ended_ms = newest.end_time_ms or 0
    sample = RateSample("orders", ended_ms + 70, 1.0, 1, 980, 250, batch_key=newest.batch_key)
    told = replace(HISTORY, samples=(sample,))
    assert phases(told) == [("waiting", 10), ("handler", 890), ("commit", 70)]
    assert timeline(told).batches[-1].late_ms == 250


def test_a_batch_that_runs_ends_now_and_one_whose_query_is_gone_has_no_time() -> None:
    began_ms = HISTORY.batches[0].created_time_ms
    running = changed(status=Status.IN_PROGRESS, end_time_ms=None)
    assert phases(running) == [("waiting", 10), ("handler", NOW_MS - began_ms - 10)]
    assert phases(replace(running, query=None)) == [("waiting", 10), ("handler", 0)]
    planned = changed(status=Status.IN_PROGRESS, end_time_ms=None, start_time_ms=None)
    assert phases(planned) == [("waiting", NOW_MS - began_ms)]


def test_earlier_attempts_are_no_wait_and_a_backfill_is_beside_the_stream() -> None:
    assert phases(changed(attempts=3))[0] == ("earlier attempts", 10)
    oldest = HISTORY.batches[-1]
    again = replace(oldest, attempts=2, backfills=1, start_time_ms=NOW_MS, end_time_ms=NOW_MS + 5)
    shown = timeline(replace(HISTORY, batches=(*HISTORY.batches[:-1], again)))
    assert [each.is_again for each in shown.batches] == [True, False, False]
    assert [each.name for each in shown.batches[0].phases] == ["handler"]


def test_a_timeline_begins_after_the_last_pause() -> None:
    def earlier(batch: BatchRecord) -> BatchRecord:
        times = (batch.created_time_ms, batch.start_time_ms or 0, batch.end_time_ms or 0)
        created_ms, start_ms, end_ms = (each - 3_600_000 for each in times)
        return replace(
            batch, created_time_ms=created_ms, start_time_ms=start_ms, end_time_ms=end_ms
        )

    before = tuple(map(earlier, HISTORY.batches))
    shown = timeline(replace(HISTORY, batches=HISTORY.batches + before))
    assert [each.batch for each in shown.batches] == list(reversed(HISTORY.batches))
    assert timeline_of(replace(HISTORY, batches=()), NOW_MS) is None


TIME = st.none() | st.integers(NOW_MS - 10**7, NOW_MS + 10**7)


@given(start_ms=TIME, end_ms=TIME, status=st.sampled_from(Status), attempts=st.integers(1, 3))
def test_every_batch_is_in_the_picture(
    start_ms: int | None, end_ms: int | None, status: Status, attempts: int
) -> None:
    shown = timeline(
        changed(start_time_ms=start_ms, end_time_ms=end_ms, status=status, attempts=attempts)
    )
    for each in shown.batches:
        assert each.phases and all(phase.duration_ms >= 0 for phase in each.phases)
        for _, x, width in shown.places(each):
            assert 0 <= x < 100 and 0 < width <= 100.01


@pytest.mark.integration
def test_a_bar_says_its_records_and_its_reason_as_text(url: str) -> None:
    with Ledger.open(url) as ledger:
        key = add_failure(ledger, error=HOSTILE)
        html = regions(url, ledger, "/gate/orders").split('<svg class="timeline"')[1]
    bar = html.split(f'href="/batch/{key}"')[1].split("</a>")[0]
    assert "&lt;script&gt;" in bar and "<script>" not in bar and "\\u202e" in bar
    assert "100 records" in bar and "limited by rate" in bar and ">failed</span>" in bar
