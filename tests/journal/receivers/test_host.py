"""A receiver over a lane of a journal on disk: what it takes over, goes by and leaves behind."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gate.ledger.samples import a_sample
from tests.journal.journals import displace
from tests.journal.receivers.finite import Finite
from tests.journal.receivers.serving import in_loop, run, until
from tests.journal.samples import append, damage, segments_of, values_of
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.errors import (
    CorruptionError,
    JournalError,
    LaneTakenError,
    LedgerError,
    NoJournalError,
    ReceiverError,
)
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.journal import Journal, repair
from headrace.journal.receivers import (
    Hosting,
    Intake,
    IntakeSettings,
    Receipt,
    ReceiverLimits,
    RetryAfter,
)
from headrace.journal.receivers.event_log import event_of
from headrace.journal.receivers.hosting import serve
from headrace.journal.records import Records


class Hands:
    """A receiver whose sender is the test."""

    def __init__(self) -> None:
        self.intake: Intake | None = None
        self.last_words: list[bytes] = []

    async def receive(self, intake: Intake) -> None:
        self.intake = intake
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.intake = None
            if self.last_words:
                await intake.submit(Records.of(self.last_words, timestamp_ms=2))

    async def give(self, *values: bytes, ids: list[str | None] | None = None) -> Receipt:
        assert self.intake
        return await self.intake.submit(Records.of(values, timestamp_ms=1, ids=ids))


class Broken:
    """A receiver that cannot."""

    async def receive(self, intake: Intake) -> None:
        raise ReceiverError("The broker refuses; ask it why.")


@pytest.fixture
def hosting(tmp_path: Path) -> Hosting:
    return Hosting(str(tmp_path / "events"), intake=IntakeSettings(block_interval_ms=5))


@contextlib.asynccontextmanager
async def hosted(hosting: Hosting, rejections_s: float = 60) -> AsyncIterator[Hands]:
    """Have a receiver served, and end it as a signal would."""
    hands, stop = Hands(), asyncio.Event()
    serving = asyncio.create_task(serve(hands, hosting, stop, rejections_s=rejections_s))
    try:
        await until(lambda: hands.intake or serving.done())
        yield hands
    finally:
        stop.set()
        await serving


def values_in(hosting: Hosting) -> list[bytes]:
    return values_of(Journal.open(hosting.journal), hosting.lane)


@in_loop
async def test_the_journal_is_made_and_its_lane_goes_on_after_a_restart(hosting: Hosting) -> None:
    for value, first in ((b"a", 0), (b"b", 1)):
        async with hosted(replace(hosting, lane=3)) as hands:
            offsets = (await hands.give(value)).offsets
            assert offsets == OffsetRange("events", 3, first, first + 1)
    assert values_in(replace(hosting, lane=3)) == [b"a", b"b"]


@in_loop
async def test_a_journal_that_must_exist_is_not_begun(hosting: Hosting, tmp_path: Path) -> None:
    unmounted = tmp_path / "events"
    careful = replace(hosting, must_exist=True)
    for _ in range(2):  # the folder of a volume is there, and empty, while that is not mounted
        with pytest.raises(
            NoJournalError, match=r"must_exist is true, .* mount the journal's volume"
        ):
            async with hosted(careful):
                pass
        assert not unmounted.exists() or list(unmounted.iterdir()) == []
        unmounted.mkdir(exist_ok=True)
    async with hosted(hosting) as hands:
        await hands.give(b"a")
    async with hosted(careful) as hands:
        await hands.give(b"b")
    assert values_in(hosting) == [b"a", b"b"]


@in_loop
async def test_the_log_says_that_a_new_journal_is_begun(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            async with hosted(hosting):
                pass
    begun = [each for each in caplog.records if event_of(each).get("event") == "new-journal"]
    assert [each.levelname for each in begun] == ["WARNING"]
    assert "begins a new journal" in begun[0].getMessage()


@in_loop
async def test_what_comes_again_after_a_restart_is_stored_once(hosting: Hosting) -> None:
    async with hosted(hosting) as hands:
        await hands.give(b"a", ids=["1"])
        await hands.give(b"without an id")
        await hands.give(b"b", b"c", ids=["2", None])
    async with hosted(hosting) as hands:
        again = await hands.give(b"b", ids=["2"])
        assert (again.offsets.start, again.duplicates) == (2, 1)
        assert (await hands.give(b"a", ids=["1"])).duplicates == 1
    assert values_in(hosting) == [b"a", b"without an id", b"b", b"c"]


@in_loop
async def test_a_damaged_block_costs_the_ids_before_it_and_nothing_else(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    with segments_of(1):
        async with hosted(hosting) as hands:
            for value in (b"a", b"b", b"c"):
                await hands.give(value, ids=[value.decode()])
    damage(Journal.open(hosting.journal), 1)
    async with hosted(hosting) as hands:
        assert (await hands.give(b"c", ids=["c"])).duplicates == 1
        assert (await hands.give(b"a", ids=["a"])).duplicates == 0
    assert "Message ids in blocks older than a damaged block are not restored" in caplog.text


@in_loop
async def test_what_is_handed_in_before_the_end_is_stored(hosting: Hosting) -> None:
    async with hosted(hosting) as hands:
        hands.last_words = [b"good", b"bye"]
    assert values_in(hosting) == [b"good", b"bye"]


def test_a_receiver_that_ends_by_itself_ends_its_host(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headrace.receivers")
    run(serve(Finite(), hosting, asyncio.Event()))
    assert values_in(hosting) == [b"the", b"end"]
    ended = event_of(caplog.records[-1])
    assert (ended["event"], ended["offset"], ended["stored_records"]) == ("ended", 2, 2)


def test_an_error_of_the_receiver_is_the_hosts_and_the_lane_is_free_again(
    hosting: Hosting,
) -> None:
    for _ in range(2):
        with pytest.raises(ReceiverError, match="The broker refuses"):
            run(serve(Broken(), hosting, asyncio.Event()))


@in_loop
async def test_a_lane_has_one_receiver_at_a_time(hosting: Hosting) -> None:
    async with hosted(hosting):
        with pytest.raises(JournalError, match=r"[Ll]ane 0"):
            await serve(Hands(), hosting, asyncio.Event())
        async with hosted(replace(hosting, lane=1)) as other:
            await other.give(b"a")


@in_loop
async def test_a_receiver_ends_when_another_writer_has_its_lane(hosting: Hosting) -> None:
    hands = Hands()
    serving = asyncio.create_task(serve(hands, hosting, asyncio.Event()))
    await until(lambda: hands.intake)
    await hands.give(b"a")
    displace(hosting.journal)
    with pytest.raises(LaneTakenError, match="has another writer by now"):
        await hands.give(b"b")
    with pytest.raises(LaneTakenError, match="has another writer by now"):
        await serving
    assert hands.intake is None
    async with hosted(hosting) as again:
        await again.give(b"b")
    assert values_in(hosting) == [b"a", b"another's", b"b"]


@in_loop
async def test_a_block_that_is_not_stored_for_another_reason_ends_nothing(hosting: Hosting) -> None:
    async with hosted(hosting) as hands:
        lane = Path(hosting.journal, "0")
        away = lane.rename(lane.with_name("away"))
        with pytest.raises(JournalError):
            await hands.give(b"a")
        away.rename(lane)
        await hands.give(b"a")
    assert values_in(hosting) == [b"a"]


@in_loop
async def test_without_a_gate_the_users_own_maximum_is_all(hosting: Hosting) -> None:
    for limits in (ReceiverLimits(max_rate=0.01), ReceiverLimits(max_bytes_rate=0.01)):
        async with hosted(replace(hosting, limits=limits)) as hands:
            assert hands.intake
            await hands.give(b"x")
            later = hands.intake.try_submit(Records.of([b"x"], timestamp_ms=1))
            assert isinstance(later, RetryAfter)
            assert later.delay_s > 50


def begin(ledger: Ledger, journal: Journal, start: int, until: int) -> None:
    """Have the gate ``orders`` begin to read these offsets."""
    offsets = PlannedRange(OffsetRange(journal.name, 0, start, until), topic_id=journal.id)
    ledger.batches.begin(PlannedBatch("orders", "run", (offsets,), "rate", ""))


@pytest.mark.integration
def test_a_receiver_lets_in_half_while_its_query_is_far_behind_and_says_so(
    hosting: Hosting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal.open(hosting.journal, create=True)
    with journal.writer(0) as writer:
        writer.append(Records.of([b"x"] * 2_000, timestamp_ms=1))
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
        report_sample(ledger, a_sample(1, 100.0))
        begin(ledger, journal, 0, 500)

        def limit_is(per_s: float) -> bool:
            return [each.limit_per_s for each in ledger.moments.receivers(["orders"])] == [per_s]

        async def work() -> None:
            gated = replace(hosting, gate="orders", ledger=f"sqlite:///{tmp_path}/ledger.db")
            async with hosted(gated):
                await until(lambda: limit_is(50))
                begin(ledger, journal, 500, 1_990)
                await until(lambda: limit_is(100))

        with caplog.at_level(logging.INFO, "headrace.receivers"):
            run(work())
    told = [each for line in caplog.records if (each := event_of(line))["event"] == "limit"]
    assert [(each["limit_per_s"], each["backlog"]) for each in told] == [(50, 1_500), (100, 0)]
    assert "less while its query has 1,500 records of this lane to read" in caplog.text


def test_a_receiver_does_not_write_where_a_gate_has_read(hosting: Hosting, tmp_path: Path) -> None:
    """The whole journal was restored from a backup; the ledger was not."""
    journal = Journal.open(hosting.journal, create=True)
    append(journal, 5)
    gated = replace(hosting, gate="orders", ledger=f"sqlite:///{tmp_path}/ledger.db")
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.gates.declare("orders", interval_ms=1, source="journal", estimator="pid")
        begin(ledger, journal, 0, 9)
        with pytest.raises(CorruptionError, match=r"ends at offset 5, but a gate .* offset 9"):
            run(serve(Finite(), gated, asyncio.Event()))
        assert ledger.history.reached(journal.id) == {0: 9}
    repair(journal, {0: 9})
    run(serve(Finite(), gated, asyncio.Event()))
    assert journal.lane_bounds(0) == (0, 11)


def rejections_logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    events = [event_of(line) for line in caplog.records]
    return [each for each in events if each["event"] == "rejections"]


@in_loop
async def test_rejections_are_logged_in_one_line_from_time_to_time(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headrace.receivers")
    async with hosted(hosting, rejections_s=0.01) as hands:
        assert hands.intake
        for kind in ("401", "429", "429"):
            hands.intake.rejections.count(kind, f"It is {kind}.")
        await until(lambda: rejections_logged(caplog))
    (told,) = rejections_logged(caplog)
    assert told == {"event": "rejections", "counts": {"401": 1, "429": 2}, "last": "It is 429."}
    assert (
        "Rejections since the last report: 2 x 429, 1 x 401; the last one: It is 429."
        in caplog.messages
    )


@in_loop
async def test_rejections_since_the_last_line_are_logged_at_the_end(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headrace.receivers")
    async with hosted(hosting) as hands:
        assert hands.intake
        hands.intake.rejections.count("503", "It ends.")
    assert [each["counts"] for each in rejections_logged(caplog)] == [{"503": 1}]


def test_a_ledger_that_is_not_there_at_the_beginning_is_an_error_and_the_lane_is_free_again(
    hosting: Hosting, tmp_path: Path
) -> None:
    gated = replace(hosting, gate="orders", ledger=f"sqlite:///{tmp_path}/nowhere/ledger.db")
    for _ in range(2):
        with pytest.raises(LedgerError, match="nowhere"):
            run(serve(Hands(), gated, asyncio.Event()))
