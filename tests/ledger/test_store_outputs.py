"""What becomes of the attempts to write batches into topics."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tests.ledger.samples import ManualClock, a_batch

from headrace.core.ranges import OffsetRange
from headrace.ledger import Ledger
from headrace.ledger.outputs import SLACK_MS

TOPIC = "topic-id"


@pytest.fixture
def key(ledger: Ledger) -> str:
    """A batch that is in progress."""
    ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
    return ledger.begin(a_batch()).schedule_id


def test_an_attempt_is_open_until_it_is_done(ledger: Ledger, key: str) -> None:
    assert ledger.begin_output(TOPIC, key, "a", {0: 5, 1: 7})
    assert ledger.open_outputs(TOPIC) == ({0: 5, 1: 7},)
    assert ledger.open_outputs("another") == ()
    assert ledger.finish_output(TOPIC, key, "a")
    assert ledger.finish_output(TOPIC, key, "a")  # the answer was lost
    assert (ledger.open_outputs(TOPIC), ledger.left_out(TOPIC)) == ((), ())
    assert ledger.written_outputs(TOPIC, [key, "other"]) == {key}


def test_a_batch_that_is_done_is_not_written_again(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.finish_output(TOPIC, key, "a")
    assert not ledger.begin_output(TOPIC, key, "b", {0: 9})
    ledger.give_up_output(TOPIC, "a")
    assert ledger.left_out(TOPIC) == ()


def test_of_two_attempts_the_later_one_has_the_batch(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    assert ledger.begin_output(TOPIC, key, "b", {0: 9})
    assert not ledger.finish_output(TOPIC, key, "a")
    assert ledger.finish_output(TOPIC, key, "b")
    assert ledger.left_out(TOPIC) == ((key, "a", {0: 5}),)


def test_what_failed_is_left_out(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.give_up_output(TOPIC, "a")
    assert not ledger.finish_output(TOPIC, key, "a")
    assert ledger.left_out(TOPIC) == ((key, "a", {0: 5}),)


def test_of_a_batch_that_nobody_runs_nothing_is_open(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.begin_output(TOPIC, "in no ledger", "x", {0: 6})
    ledger.fail(key, ValueError("it was left"))
    assert ledger.open_outputs(TOPIC) == ({0: 6},)
    assert not ledger.finish_output(TOPIC, key, "a")
    assert ledger.left_out(TOPIC) == ((key, "a", {0: 5}),)


def test_of_a_batch_whose_owner_is_gone_nothing_is_open(
    ledger: Ledger, key: str, clock: ManualClock
) -> None:
    ledger.attach(key, 7, owner="me", lease_ms=30_000)
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    clock.now_ms += 30_000 + SLACK_MS - 1
    assert ledger.open_outputs(TOPIC) == ({0: 5},)
    assert ledger.renew(key, "me", 30_000)
    clock.now_ms += 30_000 + SLACK_MS - 1
    assert ledger.open_outputs(TOPIC) == ({0: 5},)
    clock.now_ms += 1
    assert ledger.open_outputs(TOPIC) == ()
    assert not ledger.finish_output(TOPIC, key, "a"), "though it lives and has only been slow"
    assert ledger.left_out(TOPIC) == ((key, "a", {0: 5}),)


def test_a_batch_that_was_divided_is_remembered_for_its_parts(ledger: Ledger, key: str) -> None:
    ledger.attach(key, 7, owner="me", lease_ms=30_000)
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.finish_output(TOPIC, key, "a")
    ranges = [OffsetRange("orders", 0, 10, 15), OffsetRange("orders", 0, 15, 20)]
    parts = ledger.split(key, [a_batch(each) for each in ranges], "me", 30_000)
    ledger.fail(parts[0].schedule_id, ValueError("it is left for later"))
    ledger.succeed(parts[1].schedule_id)
    assert ledger.succeed(key)
    ledger.begin_output(TOPIC, "the next", "n", {0: 9})
    assert ledger.written_outputs(TOPIC, [key]) == {key}


def test_who_lost_a_batch_to_one_that_succeeded_writes_nothing(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.finish_output(TOPIC, key, "a")
    ledger.succeed(key)
    ledger.begin_output(TOPIC, "the next", "n", {0: 9})  # which forgets what is settled
    assert ledger.written_outputs(TOPIC, [key]) == set()
    assert not ledger.begin_output(TOPIC, key, "late", {0: 9})


def test_an_attempt_whose_beginning_lost_its_answer_begins_once(ledger: Ledger, key: str) -> None:
    assert ledger.begin_output(TOPIC, key, "a", {0: 5})
    assert ledger.begin_output(TOPIC, key, "a", {0: 5})
    assert ledger.open_outputs(TOPIC) == ({0: 5},)


def test_of_many_that_finish_at_once_one_has_the_batch(ledger: Ledger) -> None:
    """Of many batches, for it is chance whether two attempts do not see each other."""
    names = [f"a{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        for batch in range(30):
            together = Barrier(len(names))

            def run(name: str, topic: str = f"topic {batch}", barrier: Barrier = together) -> bool:
                barrier.wait()
                begun = ledger.begin_output(topic, "one", name, {0: 5})
                return begun and ledger.finish_output(topic, "one", name)

            done = [name for name, won in zip(names, pool.map(run, names), strict=True) if won]
            assert len(done) == 1
            left_out = {attempt for _, attempt, _ in ledger.left_out(f"topic {batch}")}
            assert left_out <= set(names) - set(done)
            assert ledger.open_outputs(f"topic {batch}") == ()


def test_what_is_left_out_stays_so_however_old_its_batch_is(ledger: Ledger, key: str) -> None:
    ledger.begin_output(TOPIC, key, "a", {0: 5})
    ledger.give_up_output(TOPIC, "a")
    ledger.succeed(key)
    ledger.succeed(ledger.begin(a_batch(OffsetRange("orders", 0, 20, 30))).schedule_id)
    assert ledger.prune(2**62).batches == 1
    assert ledger.left_out(TOPIC) == ((key, "a", {0: 5}),)
