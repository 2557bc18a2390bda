from dataclasses import replace

import pytest
from tests.gate.ledger.samples import a_receiver, a_sample
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.receivers import PRESENT_MS, REMEMBERED_MS, ReceiverRecord, StreamRate
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.testing import ManualClock


def test_a_receiver_is_known_with_what_it_said_last(ledger: Ledger, clock: ManualClock) -> None:
    seen = a_receiver()
    ledger.receivers.heartbeat(seen)
    clock.now_ms += 1_000
    later = replace(seen, records=500, bytes=2**40, limit_per_s=None, records_per_s=0.1 + 0.2)
    later = replace(later, most_per_s=1e9, refusing="the disk is full", rejected={"HTTP 429": 5})
    ledger.receivers.heartbeat(later)
    (record,) = ledger.moments.receivers(["orders"])
    assert record == ReceiverRecord(
        gate="orders",
        journal_id="5ca1ab1e",
        lane=0,
        journal="events",
        owner="me",
        started_ms=1_000,
        limit_per_s=None,
        most_per_s=1e9,
        records_per_s=0.1 + 0.2,
        records=500,
        bytes=2**40,
        buffered_bytes=300,
        waiting_records=7,
        refusing="the disk is full",
        rejected={"HTTP 429": 5},
        seen_ms=clock(),
    )


def test_a_gates_receivers_are_its_own_in_the_order_of_their_lanes(ledger: Ledger) -> None:
    for gate, lane in [("orders", 10), ("clicks", 1), ("orders", 2)]:
        ledger.receivers.heartbeat(a_receiver(gate=gate, lane=lane))
    assert [each.lane for each in ledger.moments.receivers(["orders"])] == [2, 10]
    assert ledger.moments.receivers(["unheard of"]) == ()


def shared(ledger: Ledger, gate: str = "orders", journal_id: str = "5ca1ab1e") -> StreamRate:
    return ledger.receivers.stream_rate(gate, journal_id)


def test_what_receivers_share_is_the_rate_in_force(ledger: Ledger) -> None:
    assert shared(ledger) == StreamRate(None, 1_000, (), {})
    for lane in range(3):
        ledger.receivers.heartbeat(a_receiver(lane=lane))
    ledger.receivers.heartbeat(a_receiver(gate="clicks"))
    report_sample(ledger, a_sample(1, 250.5))
    assert shared(ledger) == StreamRate(250.5, 1_000, ledger.moments.receivers(["orders"]), {})
    assert len(shared(ledger).receivers) == 3


def test_how_far_the_gate_has_begun_to_read_is_known_of_one_journal(ledger: Ledger) -> None:
    ledger.gates.declare("clicks", interval_ms=200, source="journal", estimator="pid")
    for gate, journal_id, lane, until in [
        ("orders", "a", 0, 20),
        ("orders", "a", 7, 5),
        ("orders", "b", 0, 9),
        ("clicks", "a", 0, 3),
    ]:
        offsets = PlannedRange(OffsetRange("events", lane, 0, until), topic_id=journal_id)
        ledger.batches.begin(PlannedBatch(gate, "run", (offsets,), "rate", ""))
    assert shared(ledger, journal_id="a").begun == {0: 20, 7: 5}
    assert shared(ledger, journal_id="b").begun == {0: 9}
    assert shared(ledger, journal_id="c").begun == {}
    assert shared(ledger, "clicks", "a") == StreamRate(None, 200, (), {0: 3})


def test_the_receivers_of_two_journals_share_one_gates_rate(ledger: Ledger) -> None:
    for journal_id in ("a", "b"):
        ledger.receivers.heartbeat(a_receiver(journal_id=journal_id))
    assert len(shared(ledger, journal_id="a").receivers) == 2


def test_receivers_may_be_there_before_their_gate_is_declared(ledger: Ledger) -> None:
    ledger.receivers.heartbeat(a_receiver(gate="new"))
    assert shared(ledger, "new") == StreamRate(None, None, ledger.moments.receivers(["new"]), {})


@pytest.mark.parametrize(("silent_ms", "counted"), [(PRESENT_MS, 2), (PRESENT_MS + 1, 1)])
def test_a_receiver_that_was_not_seen_for_ten_seconds_does_not_count(
    ledger: Ledger, clock: ManualClock, silent_ms: int, counted: int
) -> None:
    ledger.receivers.heartbeat(a_receiver(lane=0))
    clock.now_ms += silent_ms
    ledger.receivers.heartbeat(a_receiver(lane=1))
    assert len(shared(ledger).receivers) == counted
    present = [each.is_present(clock()) for each in ledger.moments.receivers(["orders"])]
    assert present == [counted == 2, True], "but it is told of"


def test_a_receiver_that_never_came_back_is_forgotten_after_a_day(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.receivers.heartbeat(a_receiver(lane=0))
    clock.now_ms += REMEMBERED_MS
    ledger.receivers.heartbeat(a_receiver(lane=1))
    assert len(ledger.moments.receivers(["orders"])) == 2
    clock.now_ms += 1
    ledger.receivers.heartbeat(a_receiver(lane=1))
    assert [each.lane for each in ledger.moments.receivers(["orders"])] == [1]


def test_a_receiver_that_leaves_is_not_there_any_more(ledger: Ledger) -> None:
    for lane in range(2):
        ledger.receivers.heartbeat(a_receiver(lane=lane))
    ledger.receivers.deregister(a_receiver(lane=0))
    assert [each.lane for each in ledger.moments.receivers(["orders"])] == [1]
    ledger.receivers.deregister(a_receiver(lane=0))


def test_a_receiver_whose_lane_was_taken_does_not_take_its_successor_along(ledger: Ledger) -> None:
    ledger.receivers.heartbeat(a_receiver(owner="first"))
    ledger.receivers.heartbeat(a_receiver(owner="second"))
    ledger.receivers.deregister(a_receiver(owner="first"))
    (record,) = ledger.moments.receivers(["orders"])
    assert record.owner == "second"
