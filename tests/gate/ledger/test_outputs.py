from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tests.gate.ledger.samples import a_batch

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.flows import SLACK_MS
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import part_key
from headrace.testing import ManualClock

TOPIC = "topic-id"


@pytest.fixture
def key(ledger: Ledger) -> str:
    """A batch that is in progress."""
    ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
    return ledger.batches.begin(a_batch()).batch_key


def test_an_attempt_is_open_until_it_is_done(ledger: Ledger, key: str) -> None:
    assert ledger.outputs.begin(TOPIC, key, "a", {0: 5, 1: 7})
    assert ledger.outputs.unfinished(TOPIC) == ({0: 5, 1: 7},)
    assert ledger.outputs.unfinished("another") == ()
    assert ledger.outputs.finish(TOPIC, key, "a")
    assert ledger.outputs.finish(TOPIC, key, "a")  # the answer was lost
    assert (ledger.outputs.unfinished(TOPIC), ledger.outputs.aborted(TOPIC)) == ((), ())
    assert ledger.outputs.written(TOPIC, [key, "other"]) == {key}


def test_a_batch_that_is_done_is_not_written_again(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    ledger.outputs.finish(TOPIC, key, "a")
    assert not ledger.outputs.begin(TOPIC, key, "b", {0: 9})
    ledger.outputs.abort(TOPIC, "a")
    assert ledger.outputs.aborted(TOPIC) == ()


def test_of_two_attempts_the_later_one_has_the_batch(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    assert ledger.outputs.begin(TOPIC, key, "b", {0: 9})
    assert not ledger.outputs.finish(TOPIC, key, "a")
    assert ledger.outputs.finish(TOPIC, key, "b")
    assert ledger.outputs.aborted(TOPIC) == ((key, "a", {0: 5}),)


def test_what_failed_is_left_out(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    ledger.outputs.abort(TOPIC, "a")
    assert not ledger.outputs.finish(TOPIC, key, "a")
    assert ledger.outputs.aborted(TOPIC) == ((key, "a", {0: 5}),)


def test_of_a_batch_that_nobody_runs_nothing_is_open(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    ledger.outputs.begin(TOPIC, "in no ledger", "x", {0: 6})
    ledger.batches.fail(key, ValueError("it was left"))
    assert ledger.outputs.unfinished(TOPIC) == ({0: 6},)
    assert not ledger.outputs.finish(TOPIC, key, "a")
    assert ledger.outputs.aborted(TOPIC) == ((key, "a", {0: 5}),)


def test_of_a_batch_whose_owner_is_gone_nothing_is_open(
    ledger: Ledger, key: str, clock: ManualClock
) -> None:
    ledger.batches.attach(key, 7, owner="me", lease_ms=30_000)
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    clock.now_ms += 30_000 + SLACK_MS - 1
    assert ledger.outputs.unfinished(TOPIC) == ({0: 5},)
    assert ledger.batches.renew(key, "me", 30_000)
    clock.now_ms += 30_000 + SLACK_MS - 1
    assert ledger.outputs.unfinished(TOPIC) == ({0: 5},)
    clock.now_ms += 1
    assert ledger.outputs.unfinished(TOPIC) == ()
    assert not ledger.outputs.finish(TOPIC, key, "a"), "though it lives and has only been slow"
    assert ledger.outputs.aborted(TOPIC) == ((key, "a", {0: 5}),)


def test_a_part_is_remembered_until_its_batch_is_over(ledger: Ledger, key: str) -> None:
    part = part_key(key, "01")
    ledger.outputs.begin(TOPIC, part, "a", {0: 5})
    ledger.outputs.finish(TOPIC, part, "a")
    ledger.batches.fail(key, ValueError("the rest is left for later"))
    ledger.outputs.begin(TOPIC, "the next", "n", {0: 9})
    assert ledger.outputs.written(TOPIC, [part]) == {part}
    ledger.batches.claim(key, "me", 1_000)
    ledger.batches.backfilled(key, "me")
    ledger.outputs.begin(TOPIC, "another", "o", {0: 9})
    assert ledger.outputs.written(TOPIC, [part]) == set()
    assert not ledger.outputs.begin(TOPIC, part, "late", {0: 9})


def test_who_lost_a_batch_to_one_that_succeeded_writes_nothing(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    ledger.outputs.finish(TOPIC, key, "a")
    ledger.batches.succeed(key)
    ledger.outputs.begin(TOPIC, "the next", "n", {0: 9})  # which forgets what is settled
    assert ledger.outputs.written(TOPIC, [key]) == set()
    assert not ledger.outputs.begin(TOPIC, key, "late", {0: 9})


def test_an_attempt_whose_beginning_lost_its_answer_begins_once(ledger: Ledger, key: str) -> None:
    assert ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    assert ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    assert ledger.outputs.unfinished(TOPIC) == ({0: 5},)


def test_of_many_that_finish_at_once_one_has_the_batch(ledger: Ledger) -> None:
    """It takes many batches, for it is chance whether two attempts do not see each other."""
    names = [f"a{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        for batch in range(30):
            together = Barrier(len(names))

            def run(name: str, topic: str = f"topic {batch}", barrier: Barrier = together) -> bool:
                barrier.wait()
                begun = ledger.outputs.begin(topic, "one", name, {0: 5})
                return begun and ledger.outputs.finish(topic, "one", name)

            done = [name for name, won in zip(names, pool.map(run, names), strict=True) if won]
            assert len(done) == 1
            left_out = {attempt for _, attempt, _ in ledger.outputs.aborted(f"topic {batch}")}
            assert left_out <= set(names) - set(done)
            assert ledger.outputs.unfinished(f"topic {batch}") == ()


def test_what_is_left_out_stays_so_however_old_its_batch_is(ledger: Ledger, key: str) -> None:
    ledger.outputs.begin(TOPIC, key, "a", {0: 5})
    ledger.outputs.abort(TOPIC, "a")
    ledger.batches.succeed(key)
    ledger.batches.succeed(
        ledger.batches.begin(a_batch(OffsetRange("orders", 0, 20, 30))).batch_key
    )
    assert ledger.history.prune(2**62)[0] == 1
    assert ledger.outputs.aborted(TOPIC) == ((key, "a", {0: 5}),)
