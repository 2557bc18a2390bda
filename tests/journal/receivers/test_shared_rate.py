"""Rate that a receiver may let in: its part of its gate's rate, as soon as there is one."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.ledger.samples import a_receiver, a_sample
from tests.services.ledgers import report_sample
from tests.services.waiting import wait_until

from headrace.core.timing import WallClock
from headrace.errors import LedgerError
from headrace.gate.control.hold import SinkOutage
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.receivers import ReceiverRecord, ReceiverReport, ReceiverStore, StreamRate
from headrace.journal.receivers.event_log import event_of
from headrace.journal.receivers.shared_rate import RateFollower, RateMeter, ReceiverLimits
from headrace.testing import ManualClock

rates_per_s = st.floats(1e-3, 1e9)


def a_stream(rate_per_s: float | None, *there: ReceiverReport) -> StreamRate:
    receivers = tuple(ReceiverRecord(**asdict(each), seen_ms=0) for each in there)
    return StreamRate(rate_per_s, 1_000, receivers, {})


def waiting(lane: int, most_per_s: float | None = None) -> ReceiverReport:
    return replace(a_receiver(lane=lane), waiting_records=1, most_per_s=most_per_s)


@given(st.none() | rates_per_s, st.integers(0, 50), rates_per_s, st.none() | rates_per_s)
def test_the_shares_of_all_receivers_add_up_to_the_rate_or_less(
    rate: float | None, others: int, initial: float, most: float | None
) -> None:
    stream = a_stream(rate, *map(waiting, range(others + 1)))
    share = ReceiverLimits(most, None, initial).share(stream, waiting(0, most), 0)
    whole = initial if rate is None else rate
    assert 0 < share.limit_per_s * share.receivers <= whole * (1 + 1e-9)
    assert share.receivers == others + 1
    if most is None:
        assert share.limit_per_s * share.receivers == pytest.approx(whole)
    else:
        assert share.limit_per_s == pytest.approx(min(most, whole / share.receivers))


def test_the_others_get_what_one_does_not_need() -> None:
    idle = replace(a_receiver(lane=1), waiting_records=0, records_per_s=0.0, limit_per_s=20.0)
    stream = a_stream(900.0, idle, waiting(2), waiting(3, most_per_s=200.0))
    limits = ReceiverLimits()
    assert limits.share(stream, waiting(2), 0).limit_per_s == 900 - 200 - 30
    assert limits.share(stream, idle, 0).limit_per_s == 30, "a tenth of its even part"
    assert ReceiverLimits(200.0).share(stream, waiting(3, 200.0), 0).limit_per_s == 200


@pytest.mark.parametrize(
    ("end", "limit_per_s", "backlog"),
    [(0, 450.0, 0), (1_000, 450.0, 0), (3_250, 337.5, 3_150), (90_000, 225.0, 89_900)],
)
def test_the_limit_falls_while_the_query_is_behind_in_this_lane(
    end: int, limit_per_s: float, backlog: int
) -> None:
    """Two intervals' worth of its part, 900 records, are usual; from 5400 on it is half of it."""
    stream = replace(a_stream(900.0, waiting(0), waiting(1)), begun={0: 100, 1: 0})
    share = ReceiverLimits().share(stream, waiting(0), end)
    assert share.limit_per_s == pytest.approx(limit_per_s)
    assert share.backlog == backlog


def test_a_lane_that_the_gate_has_not_read_yet_reduces_no_limit() -> None:
    stream = replace(a_stream(900.0, waiting(0)), begun={7: 0})
    assert ReceiverLimits().share(stream, waiting(0), 10**9).limit_per_s == 900


class UnreliableReceivers(ReceiverStore):
    """A store that can be unreachable."""

    away = False

    def heartbeat(self, report: ReceiverReport) -> None:
        self._check()
        super().heartbeat(report)

    def stream_rate(self, gate_name: str, journal_id: str) -> StreamRate:
        self._check()
        return super().stream_rate(gate_name, journal_id)

    def deregister(self, report: ReceiverReport) -> None:
        self._check()
        super().deregister(report)

    def _check(self) -> None:
        if self.away:
            raise LedgerError("The ledger is away.")


class Unreliable(Ledger):
    """A ledger whose receivers can be unreachable."""

    def __init__(self, database: Database, clock: WallClock) -> None:
        super().__init__(database, clock)
        self.receivers: UnreliableReceivers = UnreliableReceivers(database, clock)


@dataclass
class Scene:
    """A ledger, and the limits that its receivers have applied."""

    ledger: Unreliable
    clock: ManualClock
    applied: dict[int, list[float]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    refusing: list[str | None] = field(default_factory=list)

    def receiver(self, lane: int = 0, **limits: Any) -> RateFollower:
        applied = self.applied.setdefault(lane, [])
        return RateFollower(
            self.ledger,
            "orders",
            ReceiverLimits(**limits),
            describe=lambda _: a_receiver(lane=lane),
            end=lambda: self.ends.get(lane, 0),
            apply=applied.append,
            refuse=self.refusing.append,
            deregister_s=60,  # for a slow disk
        )

    def publish(self, rate_per_s: float) -> None:
        report_sample(self.ledger, a_sample(self.clock(), rate_per_s))

    def lanes(self) -> list[int]:
        return [each.lane for each in self.ledger.moments.receivers(["orders"])]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    clock = ManualClock()
    with Unreliable.open(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
        yield Scene(ledger, clock)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="headrace.receivers")
    return caplog


def test_a_receiver_begins_with_the_initial_rate_and_follows_the_gates_own(scene: Scene) -> None:
    rates = scene.receiver(initial_rate=500)
    for now_s, rate in enumerate((None, 250.5, 400.0)):
        if rate is not None:
            scene.publish(rate)
        rates.poll(now_s)
    assert scene.applied[0] == [250.5, 400.0], "500 is in force from the beginning"


def test_what_each_lets_in_is_its_even_part_and_never_more_than_its_own_maximum(
    scene: Scene,
) -> None:
    scene.publish(900.0)
    receivers = [scene.receiver(0), scene.receiver(1), scene.receiver(2, max_rate=100)]
    for now_s in (0, 1):
        for rates in receivers:
            rates.poll(now_s)
    assert [applied[-1:] for applied in scene.applied.values()] == [[300.0], [300.0], []]
    scene.publish(150.0)
    receivers[2].poll(2)
    assert scene.applied[2] == [50.0], "its maximum was in force from the beginning until now"


def test_a_receiver_without_a_heartbeat_for_ten_seconds_has_no_share(scene: Scene) -> None:
    scene.publish(900.0)
    left, died = scene.receiver(0), scene.receiver(1)
    for rates in (left, died, left):
        rates.poll(0)
    assert scene.applied[0][-1] == 450.0
    for second in range(1, 12):
        scene.clock.now_ms += 1_000
        left.poll(second)
    assert scene.applied[0][-1] == 900.0


def test_heartbeats_are_sent_about_once_a_second_though_polls_are_twice(scene: Scene) -> None:
    rates = scene.receiver()
    seen_ms = []
    for step in range(8):
        rates.poll(step / 2)
        seen_ms += [each.seen_ms for each in scene.ledger.moments.receivers(["orders"])]
        scene.clock.now_ms += 500
    assert [b - a for a, b in pairwise(seen_ms)] == [0, 1_000, 0, 1_000, 0, 1_000, 0]


def test_while_the_ledger_is_unreachable_the_last_rate_stays_and_one_line_is_logged(
    scene: Scene, lines: pytest.LogCaptureFixture
) -> None:
    rates = scene.receiver()
    scene.publish(300.0)
    rates.poll(0)
    scene.ledger.receivers.away = True
    for now_s in (1, 2, 3):
        rates.poll(now_s)
    assert scene.applied[0] == [300.0]
    scene.ledger.receivers.away = False
    scene.publish(600.0)
    rates.poll(4)
    assert scene.applied[0] == [300.0, 600.0]
    events = [event_of(line)["event"] for line in lines.records]
    assert events == ["limit", "ledger-unreachable", "ledger-reachable", "limit"]
    assert "the limit stays at 300 records/s: The ledger is away." in lines.messages[1]


def test_a_rate_that_hardly_changes_is_followed_without_a_line(
    scene: Scene, lines: pytest.LogCaptureFixture
) -> None:
    rates = scene.receiver()
    for now_s, rate in enumerate((1_000.0, 1_100.0, 1_200.0, 1_300.0, 1_290.0)):
        scene.publish(rate)
        rates.poll(now_s)
    assert scene.applied[0] == [1_100.0, 1_200.0, 1_300.0, 1_290.0]
    assert [event_of(line)["limit_per_s"] for line in lines.records] == [1_000.0, 1_300.0]
    assert (
        "The rate limit is 1,300 records/s: gate 'orders' has a rate of 1,300/s, for 1 receiver."
        in lines.messages
    )


def test_senders_wait_while_the_sink_of_the_gate_is_away_and_no_longer(scene: Scene) -> None:
    claim = GateClaim("orders", "query", None, None, "shop.py", 1_000, "journal", "pid")
    scene.ledger.gates.claim(claim, 60_000)
    receiver = scene.receiver()
    receiver.poll(0)
    outage = SinkOutage("b", 0, 1, 1_000, "refused", is_certain=True)
    scene.ledger.sink_outages.keep("orders", outage)
    receiver.poll(1)
    receiver.poll(2)
    assert scene.refusing == ["The sink of gate orders is away; senders wait."]
    scene.ledger.sink_outages.end("orders")
    receiver.poll(3)
    assert scene.refusing[1:] == [None]


def test_a_thread_follows_the_rate_and_deregisters_at_the_end(scene: Scene) -> None:
    with scene.receiver(0), scene.receiver(1, max_rate=50):
        scene.publish(500.0)
        wait_until(lambda: scene.applied[0][-1] == 250.0)
        assert scene.applied[1][0] == 50.0
        assert scene.lanes() == [0, 1]
    assert scene.lanes() == []


def test_an_unreachable_ledger_delays_no_end(scene: Scene, lines: pytest.LogCaptureFixture) -> None:
    with scene.receiver():
        scene.ledger.receivers.away = True
    assert "headrace-rates" not in {thread.name for thread in threading.enumerate()}
    assert event_of(lines.records[-1])["event"] == "ledger-unreachable"


def test_the_meter_measures_the_last_five_seconds() -> None:
    meter = RateMeter()
    counts = [0, 100, 200, 300, 400, 500, 500, 500, 500, 500, 500]
    paces = [meter.rate_per_s(second, count) for second, count in enumerate(counts)]
    assert paces == [0, 100, 100, 100, 100, 100, 80, 60, 40, 20, 0]
