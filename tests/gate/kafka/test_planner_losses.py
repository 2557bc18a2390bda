"""The planner where records are gone before they were read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.services.changes import add_partitions, create_again, delete_records, delete_topic
from tests.services.kafka import Topic, TopicFactory
from tests.services.planners import gated, next_batch, planner_of

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import DataLossError
from headrace.gate.kafka import lookup
from headrace.gate.kafka.lookup import Lookup
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import FindingKind
from headrace.testing import ManualClock


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


def half_read(topic: TopicFactory) -> tuple[Topic, dict[str, Any]]:
    """A topic of ten records, and the end of a batch that has read two of them."""
    orders = topic()
    orders.produce(*[b"x"] * 10)
    with planner_of(orders, {"maxOffsetsPerTrigger": 2}) as planner:
        return orders, next_batch(planner, planner.initial())[0]


def begun(topic: TopicFactory, url: str) -> tuple[Topic, dict[str, Any], dict[str, Any]]:
    """A topic of ten records, and the start and the end of a gate's batch of them all."""
    orders = topic()
    orders.produce(*[b"x"] * 10)
    with planner_of(orders, gated(url)) as planner:
        start = planner.initial()
        return orders, start, next_batch(planner, start)[0]


def refusal(orders: Topic, end: dict[str, Any]) -> str:
    """Why the next batch is not planned."""
    options = {"fetchOffset.numRetries": 0}
    with planner_of(orders, options) as planner, pytest.raises(DataLossError) as raised:
        planner.advance(end, everything=False)
    beginning, _, told = str(raised.value).partition(": ")
    assert beginning == "Kafka has lost records that this query had still to read"
    reason, _, advice = told.rpartition("; ")
    assert advice == (
        "to continue without them, and only report the loss, set the option failOnDataLoss to"
        " false."
    )
    return reason


def delete_first(admin: AdminClient, orders: Topic) -> None:
    delete_records(admin, orders, before=7)


def create_longer(admin: AdminClient, orders: Topic) -> None:
    create_again(admin, orders)
    orders.produce(*[b"x"] * 20)


def join_without_beginning(admin: AdminClient, orders: Topic) -> None:
    add_partitions(admin, orders, 2)
    orders.produce(*[b"x"] * 3, partition=1)
    delete_records(admin, orders, before=2, partition=1)


@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (delete_first, "{0}-0 [2, 7) is gone (the log of {0}-0 begins at 7 now)"),
        (delete_topic, "{0}-0 does not exist any more"),
        (create_again, "{0} was deleted and created again (partition 0)"),
        (create_longer, "{0} was deleted and created again (partition 0)"),
        (
            join_without_beginning,
            "{0}-1 [0, 2) is gone ({0}-1 is new to this query and begins at 2)",
        ),
    ],
)
def test_a_loss_stops_the_stream_with_the_ranges_missing(
    topic: TopicFactory,
    admin: AdminClient,
    lose: Callable[[AdminClient, Topic], object],
    reason: str,
) -> None:
    orders, end = half_read(topic)
    lose(admin, orders)
    assert refusal(orders, end) == reason.format(orders.name)


def test_a_deleted_topic_holds_up_one_plan_and_no_more_where_the_user_goes_on(
    topic: TopicFactory, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, orders = topic(), topic()
    options = {"subscribe": f"{deleted.name},{orders.name}", "failOnDataLoss": False}
    clock = ManualClock()
    with planner_of(deleted, options) as planner:
        end, _ = next_batch(planner, planner.initial())
        delete_topic(admin, deleted)
        monkeypatch.setattr(lookup, "time", clock)
        end, _ = next_batch(planner, end)
        waited_s = clock.monotonic()
        assert waited_s > 0, "the topic might only be unknown to the broker that answered"
        orders.produce(b"x")
        assert next_batch(planner, end)[1] == [OffsetRange(orders.name, 0, 0, 1)]
        assert clock.monotonic() == waited_s


def test_a_topic_deleted_in_the_middle_of_a_plan_is_like_one_deleted_before_it(
    topic: TopicFactory, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, orders = topic(), topic()
    orders.produce(b"x")
    options = {
        "subscribe": f"{deleted.name},{orders.name}",
        "failOnDataLoss": False,
        "fetchOffset.numRetries": 0,
    }
    bounds = Lookup.bounds

    def delete_and_ask(lookup: Lookup, partitions: list[TopicPartition]) -> object:
        monkeypatch.setattr(Lookup, "bounds", bounds)
        delete_topic(admin, deleted)
        return bounds(lookup, partitions)

    with planner_of(deleted, options) as planner:
        start = planner.initial()
        monkeypatch.setattr(Lookup, "bounds", delete_and_ask)
        assert next_batch(planner, start)[1] == [OffsetRange(orders.name, 0, 0, 1)]


def test_a_topic_created_again_is_read_from_its_beginning_where_the_user_says_so(
    topic: TopicFactory, admin: AdminClient
) -> None:
    orders, end = half_read(topic)
    create_again(admin, orders)
    orders.produce(*[b"x"] * 5)
    with planner_of(orders, {"failOnDataLoss": False}) as planner:
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 0, 0, 5)]
        assert end["@from"] == {orders.name: {"0": 0}}
        assert next_batch(planner, end) == (end, [])


def test_offsets_that_are_gone_are_counted_once_and_passed_over_where_the_user_says_so(
    topic: TopicFactory, admin: AdminClient, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 10)
    options = gated(url, maxOffsetsPerTrigger=2, failOnDataLoss=False)
    with planner_of(orders, options) as before:
        end, _ = next_batch(before, before.initial())
        delete_records(admin, orders, before=7)
        before.advance(end, everything=False)  # and the process dies before Spark has the answer
    with planner_of(orders, options) as after, Ledger.open(url) as ledger:
        for expected in (OffsetRange(orders.name, 0, 7, 9), OffsetRange(orders.name, 0, 9, 10)):
            end, ranges = next_batch(after, end)
            assert ranges == [expected]
        (loss,) = ledger.history.losses("orders")
        assert loss.offsets == OffsetRange(orders.name, 0, 2, 7)
        assert loss.topic_id == end["@ids"][orders.name]
    assert f"{orders.name}-0 [2, 7) is gone" in caplog.text


def test_what_has_gone_of_a_planned_batch_is_seen_when_it_is_run_again(
    topic: TopicFactory, admin: AdminClient, url: str
) -> None:
    orders, start, end = begun(topic, url)
    delete_records(admin, orders, before=7)
    with planner_of(orders, gated(url)) as strict, Ledger.open(url) as ledger:
        with pytest.raises(DataLossError, match=rf"{orders.name}-0 \[0, 7\) is gone"):
            strict.begin(start, end)
        (batch,) = ledger.batches.newest("orders")
        assert (batch.attempts, ledger.history.losses("orders")) == (1, ())
    with (
        planner_of(orders, gated(url, failOnDataLoss=False)) as lenient,
        Ledger.open(url) as ledger,
    ):
        for _ in range(2):
            assert lenient.begin(start, end).ranges == [OffsetRange(orders.name, 0, 7, 10)]
        (loss,) = ledger.history.losses("orders")
        assert loss.offsets == OffsetRange(orders.name, 0, 0, 7)
        assert (loss.batch_key, loss.topic_id) == (batch.batch_key, end["@ids"][orders.name])


def test_a_batch_that_was_processed_loses_nothing_any_more(
    topic: TopicFactory, admin: AdminClient, url: str
) -> None:
    orders, start, end = begun(topic, url)
    with Ledger.open(url) as ledger:
        ledger.batches.succeed(ledger.batches.newest("orders")[0].batch_key)
    delete_records(admin, orders, before=7)
    with planner_of(orders, gated(url)) as after, Ledger.open(url) as ledger:
        after.begin(start, end)  # as Spark does where the process died before it took note
        assert ledger.history.losses("orders") == ()


def test_a_batch_of_a_topic_that_was_created_again_is_lost_whatever_is_in_the_new_one(
    topic: TopicFactory, admin: AdminClient, url: str
) -> None:
    orders, start, end = begun(topic, url)
    create_again(admin, orders)
    orders.produce(*[b"another"] * 20)
    with planner_of(orders, gated(url)) as after, pytest.raises(DataLossError, match=r"\[0, 10\)"):
        after.begin(start, end)
    with planner_of(orders, gated(url, failOnDataLoss=False)) as after:
        assert after.begin(start, end).ranges == []


GONE = [delete_topic, create_again, create_longer]


@pytest.mark.parametrize("lose", GONE)
def test_what_was_seen_of_a_topic_that_is_gone_and_not_read_is_lost(
    topic: TopicFactory, admin: AdminClient, url: str, lose: Callable[[AdminClient, Topic], object]
) -> None:
    """By another process, which knows of the topic what the ledger does."""
    orders = topic(2)
    for partition in (0, 1):
        orders.produce(*[b"x"] * 10, partition=partition)
    options = gated(url, failOnDataLoss=False, maxOffsetsPerTrigger=4) | {
        "fetchOffset.numRetries": 0
    }
    with planner_of(orders, options) as before:
        end, _ = next_batch(before, before.initial())
        old_id = end["@ids"][orders.name]
    lose(admin, orders)
    with planner_of(orders, options) as after, Ledger.open(url) as ledger:
        for _ in range(3):
            end, _ = next_batch(after, end)
        losses = sorted(ledger.history.losses("orders"), key=lambda loss: loss.offsets.partition)
        assert [loss.offsets for loss in losses] == [
            OffsetRange(orders.name, partition, 2, 10) for partition in (0, 1)
        ]
        assert {loss.topic_id for loss in losses} == {old_id}
        assert all("and had at least these" in (loss.reason or "") for loss in losses)
        findings = ledger.proofs.verify("orders").findings
        assert sum(each.offsets.count for each in findings if each.kind is FindingKind.LOST) == 16
