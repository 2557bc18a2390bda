"""Whether records can be stored: by the blocks that were, and by probes."""

import asyncio
import threading

from tests.journal.receivers.serving import in_loop, served

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal.receivers.lane_health import LaneHealth
from headrace.journal.records import Records

RECORDS = Records.of([b"x" * 10_000], timestamp_ms=0)


class Place:
    """A storage that can be full, its health, and the time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.is_full = False
        self.probes: list[int] = []
        self.health = LaneHealth(
            self.append, self.probe, journal="orders", lane=3, clock=lambda: self.now_s
        )

    def append(self, records: Records) -> OffsetRange:
        self._check()
        return OffsetRange("orders", 3, 0, records.count)

    def probe(self, size_bytes: int) -> None:
        self.probes.append(size_bytes)
        self._check()

    def _check(self) -> None:
        if self.is_full:
            raise JournalError("The disk is full.")

    def try_append(self) -> None:
        try:
            self.health.append(RECORDS)
        except JournalError:
            return


@in_loop
async def test_a_block_that_was_stored_lately_says_it_without_a_probe() -> None:
    place = Place()
    place.try_append()
    place.now_s += 5
    assert await place.health.trouble() is None
    assert place.probes == []
    place.now_s += 1
    assert await place.health.trouble() is None
    assert place.probes == [4096]


@in_loop
async def test_after_a_block_that_failed_one_of_its_size_is_probed_until_it_can_be_stored() -> None:
    place = Place()
    place.is_full = True
    place.try_append()
    assert [await place.health.trouble() for _ in range(3)] == ["The disk is full."] * 3
    assert place.probes == [10_000]
    place.is_full = False
    assert await place.health.trouble() == "The disk is full."  # for a second it is not asked again
    place.now_s += 1.5
    assert await place.health.trouble() is None
    assert place.probes == [10_000, 10_000]


@in_loop
async def test_blocks_that_fail_although_probes_pass_are_believed_longer_each_time() -> None:
    place = Place()
    for failed, unwell_s in enumerate((0, 10, 20, 30, 30), 1):
        place.is_full = True
        place.try_append()
        place.is_full = False
        if unwell_s:
            place.now_s += unwell_s - 1
            assert await place.health.trouble() == "The disk is full.", failed
        place.now_s += 2
        assert await place.health.trouble() is None, failed
    place.try_append()
    assert await place.health.trouble() is None
    place.is_full = True
    place.try_append()
    place.is_full = False
    place.now_s += 2
    assert await place.health.trouble() is None  # one alone may be over


@in_loop
async def test_a_probe_from_before_a_failure_says_nothing_any_more() -> None:
    place = Place()
    assert await place.health.trouble() is None
    place.is_full = True
    place.now_s += 1
    place.try_append()
    place.now_s += 1
    assert await place.health.trouble() == "The disk is full."


@in_loop
async def test_a_full_disk_is_found_although_nothing_is_sent() -> None:
    place = Place()
    place.is_full = True
    assert await place.health.trouble() == "The disk is full."


@in_loop
async def test_a_storage_that_does_not_answer_is_out_of_order() -> None:
    going = threading.Event()
    now_s = 0.0
    health = LaneHealth(Place().append, lambda _: bool(going.wait(60)), clock=lambda: now_s)  # type: ignore[arg-type]
    asked = asyncio.create_task(health.trouble())
    await asyncio.sleep(0)
    now_s = 20.0
    assert "does not answer" in (await health.trouble() or "")
    going.set()
    assert await asked is None


@in_loop
async def test_what_a_receiver_says_of_itself_follows_its_storage_and_its_cap() -> None:
    async with served() as it:
        get = it.client.get
        assert [(await get(path)).status_code for path in ("/health", "/ready")] == [200, 200]

        it.journal.failures.append(JournalError("The disk is full."))
        assert (await it.post(b"1", {"content-type": "text/plain"})).status_code == 503
        for path in ("/health", "/ready"):
            answer = await get(path)
            assert (answer.status_code, answer.json()) == (503, {"error": "The disk is full."})
        assert (await it.post(b"1", {"content-type": "text/plain"})).status_code == 200
        assert (await get("/health")).status_code == 200

        it.intake.refuse("journal", "The journal is at its cap.")
        assert [(await get(path)).status_code for path in ("/health", "/ready")] == [200, 503]
        answer = await it.post(b"2", {"content-type": "text/plain"})
        assert answer.json() == {"error": "The journal is at its cap."}
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        it.intake.refuse("journal", None)
        assert (await it.post(b"3", {"content-type": "text/plain"})).status_code == 200
        assert it.journal.values == [b"1", b"3"]


@in_loop
async def test_a_block_that_was_stored_just_before_one_that_failed_says_nothing() -> None:
    place = Place()
    place.try_append()
    place.is_full = True
    place.now_s += 1
    place.try_append()
    assert await place.health.trouble() == "The disk is full."
