"""Who leads the demo: what is done when."""

from dataclasses import dataclass, field, replace
from typing import cast

from tests.cli.histories import NOW_MS, with_lags

from headrace.cli.demo.audit import Arrived, OffsetAudit, OrderAudit
from headrace.cli.demo.demos import OrdersDirector, TopicDirector
from headrace.cli.demo.producer import OrderProducer
from headrace.cli.demo.script import Script
from headrace.cli.demo.stage import Scene
from headrace.cli.demo.work import OrderHandler
from headrace.cli.snapshot import take_snapshot
from headrace.control import OffsetRange, TopicPartition

SNAPSHOT = replace(take_snapshot(with_lags(900, 1_000), NOW_MS), throughput_per_s=1_000)


@dataclass
class Producer:
    """Says what it was told."""

    produced: int = 10
    told: list[str] = field(default_factory=list)

    def start(self, _orders_per_s: float) -> None:
        self.told.append("start")

    def check(self) -> None:
        self.told.append("check")

    def stop(self) -> None:
        self.told.append("stop")


class Rehearsed:
    """A demo of 100 seconds, without a query."""

    def __init__(self) -> None:
        self.audit = OrderAudit()
        self.handler = OrderHandler("shop", self.audit, 0.0)
        self.producer = Producer()
        script = Script(seconds=100, interval_s=1, capacity_per_s=5_000)
        self.director = OrdersDirector(
            script, cast(OrderProducer, self.producer), self.handler, self.audit
        )

    def title(self, elapsed_s: float) -> str | None:
        scene = self.director.direct(elapsed_s, SNAPSHOT)
        return scene.title if scene else None


def test_the_handler_is_slow_for_a_while_only() -> None:
    demo = Rehearsed()
    demo.audit.add([0])
    slowdowns = []
    for elapsed_s in (0, 30, 45, 55, 65):
        demo.title(elapsed_s)
        slowdowns.append(demo.handler.slowdown)
    assert slowdowns == [1, 1, 4, 4, 1]


def test_the_time_counts_from_the_first_arrival() -> None:
    demo = Rehearsed()
    demo.title(45)
    assert demo.handler.slowdown == 1
    assert "start" not in demo.producer.told
    demo.audit.add([0])
    demo.title(50)
    demo.title(95)
    assert demo.handler.slowdown == 4
    assert demo.producer.told.count("start") == 1


def test_it_ends_when_all_that_was_produced_has_arrived() -> None:
    demo = Rehearsed()
    demo.audit.add(range(9))
    demo.title(0)
    assert demo.title(89) == "draining · 10 orders produced · 9 arrived"
    assert demo.producer.told[-1] == "stop"
    demo.audit.add([9])
    assert demo.title(90) is None


def test_it_ends_at_some_time_if_something_never_arrives() -> None:
    demo = Rehearsed()
    demo.audit.add(range(9))
    assert demo.title(0) is not None
    assert demo.title(129) is not None
    assert demo.title(130) is None


def test_reading_a_topic_ends_when_its_time_since_the_first_record_is_over() -> None:
    audit = OffsetAudit()
    director = TopicDirector(10, audit)
    assert director.direct(12, SNAPSHOT) is not None
    counted = Arrived(records=5, offsets=5, first=0, last=4)
    audit.add([OffsetRange("orders", 0, 0, 5)], {TopicPartition("orders", 0): counted})
    scenes = [director.direct(elapsed_s, SNAPSHOT) for elapsed_s in (14, 20, 24)]
    assert scenes == [
        Scene("reading · 5 records arrived", is_best=False),
        Scene("reading · 5 records arrived", is_best=True),
        None,
    ]


def test_reading_a_topic_in_which_nothing_arrives_ends_too() -> None:
    director = TopicDirector(10, OffsetAudit())
    assert director.direct(39, SNAPSHOT) is not None
    assert director.direct(40, SNAPSHOT) is None
