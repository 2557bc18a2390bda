"""Actions of processes or threads on a ledger at the same time, and after one is killed."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.gate.ledger.samples import stored
from tests.gate.ledger.worker import Worker, wide_batch
from tests.services.postgresql import NewUrl

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

ROUNDS = 20


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Worker()) for _ in range(3)]


def at_once(workers: list[Worker], *calls: tuple[Any, ...]) -> list[Any]:
    """Have each worker make its call, all at the same time, and gather the answers."""
    for worker, call in zip(workers, calls, strict=True):
        worker.send(*call)
    return [worker.answer() for worker in workers]


def test_processes_that_open_a_new_ledger_at_once_all_get_it(
    workers: list[Worker], new_url: NewUrl
) -> None:
    for _ in range(6):
        url = new_url()
        assert at_once(workers, *[("open", url)] * 3) == ["opened"] * 3
        at_once(workers, ("declare", "a"), ("declare", "b"), ("declare", "c"))
        with Ledger.open(url, create=False) as ledger:
            assert [gate.name for gate in ledger.gates.all()] == ["a", "b", "c"]


def test_of_processes_that_end_a_batch_by_transition_d_or_e_one_gets_true(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        key = ledger.batches.begin(wide_batch(number)).batch_key
        answers = at_once(workers, ("succeed", key), ("fail", key), ("fail", key))
        assert sorted(answers) == [False, False, True]
        batch = stored(ledger, key)
        assert batch.status == (Status.SUCCESS if answers[0] else Status.FAILED)
        assert (batch.error is None) == answers[0]


def test_of_processes_that_begin_a_batch_one_makes_transition_a_and_the_others_b(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        assert sorted(at_once(workers, *[("begin", number)] * 3)) == [1, 2, 3]
        planned = wide_batch(number)
        assert ledger.batches.ranges(planned.batch_key) == planned.ranges
    assert len(ledger.batches.newest("orders")) == ROUNDS


def one_after_the_other(calls: Iterable[str]) -> tuple[dict[str, object], Status]:
    """Return the calls' answers, and the status that they leave a batch in its first attempt."""
    status, attempts, answers = Status.IN_PROGRESS, 1, dict[str, object]()
    for call in calls:
        if call == "begin" and status in {Status.IN_PROGRESS, Status.FAILED}:
            status, attempts = Status.IN_PROGRESS, attempts + 1
        moves = status is Status.IN_PROGRESS
        answers[call] = attempts if call == "begin" else moves
        if call != "begin" and moves:
            status = Status.SUCCESS if call == "succeed" else Status.FAILED
    return answers, status


def test_calls_at_the_same_time_do_what_they_would_do_one_after_the_other(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    calls = ("begin", "succeed", "fail")
    possible = [one_after_the_other(order) for order in itertools.permutations(calls)]
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        key = ledger.batches.begin(wide_batch(number)).batch_key
        answers = at_once(workers, ("begin", number), ("succeed", key), ("fail", key))
        batch = stored(ledger, key)
        assert (dict(zip(calls, answers, strict=True)), batch.status) in possible


def test_of_processes_that_claim_a_failed_batch_by_transition_f_one_gets_it(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        key = ledger.batches.begin(wide_batch(number)).batch_key
        ledger.batches.fail(key, ValueError())
        answers = at_once(workers, *[("take", key, owner) for owner in "abc"])
        batch = ledger.batches.get(key)
        assert sorted(answers) == [False, False, True]
        assert batch is not None
        assert (batch.status, batch.attempts) == (Status.BACKFILLING, 1)
        assert batch.owner == "abc"[answers.index(True)]


def test_a_failed_batch_goes_to_a_backfill_by_transition_f_or_to_a_restarted_driver_by_c(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        key = ledger.batches.begin(wide_batch(number)).batch_key
        ledger.batches.fail(key, ValueError())
        a_took, begun, b_took = at_once(
            workers, ("take", key, "a"), ("begin and look", number), ("take", key, "b")
        )
        batch = stored(ledger, key)
        assert batch.status == begun
        assert [a_took, b_took, begun == Status.IN_PROGRESS].count(True) == 1
        assert batch.attempts == (2 if begun == Status.IN_PROGRESS else 1)


def test_of_drivers_that_attach_to_a_batch_one_gets_true(
    workers: list[Worker], ledger: Ledger, url: str
) -> None:
    at_once(workers, *[("open", url)] * 3)
    for number in range(ROUNDS):
        key = ledger.batches.begin(wide_batch(number)).batch_key
        answers = at_once(workers, *[("attach", key, owner) for owner in "abc"])
        batch = ledger.batches.get(key)
        assert sorted(answers) == [False, False, True]
        assert batch is not None
        assert batch.owner == "abc"[answers.index(True)]


def test_what_was_answered_as_done_is_in_the_ledger_after_a_kill(new_url: NewUrl) -> None:
    url = new_url()
    told: list[tuple[str, str]] = []
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        for answers_before_the_kill in (40, 1, 23, 2, 7):
            with Worker() as worker:
                worker.send("open", url)
                assert worker.answer() == "opened"
                # As an engine does: the last batch again, then the next.
                worker.send("go on from", max(len(ledger.batches.newest("orders", 10_000)) - 1, 0))
                told += [worker.answer() for _ in range(answers_before_the_kill)]
                told += worker.kill()
            stored = {batch.batch_key: batch for batch in ledger.batches.newest("orders", 10_000)}
            for done, key in told:
                assert stored[key].status is Status.SUCCESS or done == "begun"
            for number, key in enumerate(reversed(stored)):
                assert ledger.batches.ranges(key) == wide_batch(number).ranges
