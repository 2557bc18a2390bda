"""When a batch is backfilled: schedules, and the wait after a backfill that failed."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.backoff import Backoff
from headrace.errors import OptionError
from headrace.gate.backfill.schedule import Cron, Every, Manual, Spare, Timetable, parse_schedule


def test_the_first_backfill_follows_at_once_and_each_wait_is_twice_as_long() -> None:
    backoff = Backoff(first_ms=100, most_ms=500)
    assert [backoff.wait_ms(failed) for failed in range(6)] == [0, 100, 200, 400, 500, 500]


@given(st.integers(1, 100), st.integers(1, 10_000), st.integers(0, 50))
def test_the_waits_are_those_of_each_number_and_the_last_is_for_more(
    first_ms: int, most_ms: int, failed: int
) -> None:
    backoff = Backoff(first_ms, most_ms)
    waits_ms = backoff.waits_ms
    assert waits_ms[min(failed, len(waits_ms) - 1)] == backoff.wait_ms(failed)


@given(st.integers(0, 5_000))
def test_no_wait_is_longer_than_the_longest(failed: int) -> None:
    assert Backoff().wait_ms(failed) <= Backoff().wait_ms(failed + 1) <= 3_600_000


HOUR_MS = 3_600_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock goes forward on 29 March and back on 25 October 2026."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def utc_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def utc_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "minutes")[:16]


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("spare", Spare()),
        (" Manual ", Manual()),
        ("every 30 seconds", Every(30_000)),
        ("every minute", Every(60_000)),
        ("Every 2 hours", Every(2 * HOUR_MS)),
        ("every 1 day", Every(24 * HOUR_MS)),
        ("cron */15 9-17 * * mon-fri", Cron("*/15 9-17 * * mon-fri")),
    ],
)
def test_a_schedule_is_read_from_its_words(text: str, schedule: object) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize("text", ["", "hourly", "every 0 minutes", "every ten minutes", "every"])
def test_other_words_are_refused_with_those_that_are_allowed(text: str) -> None:
    with pytest.raises(OptionError, match=r"schedule is .*'spare', 'every 10 minutes'") as caught:
        parse_schedule(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["cron 0 3 * *", "cron 61 * * * *", "cron a b c d e"])
def test_what_cron_does_not_understand_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="cron does not understand"):
        parse_schedule(text)


def test_a_time_that_never_comes_is_refused() -> None:
    with pytest.raises(OptionError, match="which matches no date"):
        parse_schedule("cron 0 0 */31 2 mon#5")


def test_spare_is_always_due_and_manual_never() -> None:
    assert Spare().due_ms(10, None) == 10
    assert Spare().due_ms(10, 25) == 25
    Manual().due_ms(10, None)
    assert not Timetable(Manual(), 10).is_on(1_000)
    assert Timetable(Spare(), 10).is_on(1_000)


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
def test_an_interval_is_from_one_beginning_to_the_next(
    interval_ms: int, started_ms: int, last_ms: int
) -> None:
    assert Every(interval_ms).due_ms(started_ms, None) == started_ms
    assert Every(interval_ms).due_ms(started_ms, last_ms) == last_ms + interval_ms


@pytest.mark.usefixtures("berlin")
def test_cron_is_in_local_time() -> None:
    nightly = Cron("0 3 * * *")
    first_ms = nightly.due_ms(utc_ms("2026-07-01 12:00"), None)
    assert utc_text(first_ms) == "2026-07-02 01:00"
    assert utc_text(nightly.due_ms(0, first_ms)) == "2026-07-03 01:00"
    assert utc_text(nightly.due_ms(0, utc_ms("2026-12-01 12:00"))) == "2026-12-02 02:00"


@pytest.mark.usefixtures("berlin")
def test_what_the_clocks_leave_out_is_due_an_hour_later() -> None:
    assert utc_text(Cron("30 2 * * *").due_ms(utc_ms("2026-03-28 12:00"), None)) == (
        "2026-03-29 01:30"  # 3:30, for there is no 2:30
    )


@pytest.mark.usefixtures("berlin")
def test_an_hour_that_the_clocks_repeat_is_not_repeated() -> None:
    often = Cron("*/20 * * * *")
    times, at_ms = [], utc_ms("2026-10-25 00:10")  # 2:10, the first time
    for _ in range(3):
        at_ms = often.due_ms(0, at_ms)
        times.append(utc_text(at_ms))
    assert times == ["2026-10-25 00:20", "2026-10-25 00:40", "2026-10-25 02:00"]
    second_turn_ms = utc_ms("2026-10-25 01:10")  # 2:10, the second time
    assert utc_text(often.due_ms(second_turn_ms, None)) == "2026-10-25 02:00"


@pytest.mark.usefixtures("berlin")
@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 */5 * 3,10 sun"]),
    st.integers(utc_ms("2026-01-01 00:00"), utc_ms("2027-01-01 00:00")),
)
def test_cron_is_always_due_later_and_nothing_is_left_out(expression: str, after_ms: int) -> None:
    cron = Cron(expression)
    due_ms = cron.due_ms(after_ms, None)
    assert due_ms > after_ms
    between_ms = (after_ms + due_ms) // 2
    if between_ms < due_ms:
        assert cron.due_ms(between_ms, None) == due_ms


def test_a_run_lasts_until_it_is_ended_and_the_next_begins_when_it_is_due() -> None:
    timetable = Timetable(Every(100), 1_000)
    assert timetable.is_on(1_000)
    assert timetable.is_on(1_050)
    timetable.end()
    assert not timetable.is_on(1_099)
    assert timetable.is_on(1_100)
    assert timetable.is_on(1_500)
    timetable.end()
    assert timetable.is_on(1_501)  # its time has come meanwhile
