"""Each operation of the ledger takes as many steps with a long history as with a short one."""

import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from bench.history import GATES, INTERVAL_MS, TOPIC_ID, fill, planned
from sqlalchemy import Pool, event
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, DeadLetterStatus, RateSample, part_key
from headrace.gate.ledger.transitions import Status

GATE = GATES[0]
SHORT, LONG = 400, 4_000
NEWEST_MS = 1_700_000_000_000
ERROR = ErrorReport("ValueError", "no", "")
LETTER = DeadLetter("orders", 0, 3, None, b"value", None, 0, 0, ERROR)


def steps_of(call: Callable[[], object]) -> int:
    """Return the number of steps that SQLite's machine takes for the call."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    def listen(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(count, 1)

    event.listen(Pool, "checkout", listen)
    try:
        call()
    finally:
        event.remove(Pool, "checkout", listen)
    return taken


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("histories")
    paths = {batches: folder / f"{batches}.db" for batches in (SHORT, LONG)}
    for batches, path in paths.items():
        fill(f"sqlite:///{path}", batches, NEWEST_MS, isolated_every=10)
    return paths


def a_batch_of_the_stream(ledger: Ledger) -> None:
    ledger.gates.now(GATE)
    ledger.rates.current(GATE)
    key = ledger.batches.begin(planned(GATE, "new", 0, 4)).batch_key
    ledger.gates.last_begun(GATE)
    ledger.batches.attach(key, 1, owner="me", lease_ms=1_000)
    ledger.batches.ranges(key)
    ledger.batches.renew(key, "me", 1_000)
    ledger.batches.succeed(key, owner="me")
    report_sample(ledger, RateSample(GATE, NEWEST_MS, 10.0, 10, 900, 0, batch_key=key))
    ledger.history.record_losses(GATE, [OffsetRange("orders", 0, 3, 9)])


def a_batch_in_parts(ledger: Ledger) -> None:
    key = ledger.batches.begin(planned(GATE, "new", 0, 2)).batch_key
    ledger.batches.attach(key, 1, owner="me", lease_ms=1_000)
    ledger.batches.keep_progress(key, "me", Progress(running="0"))
    ledger.batches.keep_progress(key, "me", Progress(done=frozenset(["0"])), LETTER)
    ledger.batches.is_over(part_key(key, "01"))
    ledger.batches.succeed(key, owner="me")


def a_backfill(ledger: Ledger) -> None:
    first, second = ledger.batches.failed(GATE, limit=2)
    ledger.batches.claim(first.batch_key, "me", 1_000)
    ledger.batches.backfilled(first.batch_key, "me")
    ledger.batches.claim(second.batch_key, "me", 1_000)
    ledger.batches.release(second.batch_key, "me", ERROR, is_dead=False)


CALLS: dict[str, Callable[[Ledger], object]] = {
    "a batch of the stream": a_batch_of_the_stream,
    "a batch in parts": a_batch_in_parts,
    "a backfill": a_backfill,
    "gates": lambda ledger: ledger.gates.all(),
    "failed": lambda ledger: ledger.batches.failed(limit=10),
    "failed of a gate": lambda ledger: ledger.batches.failed(GATE, limit=10),
    "batches": lambda ledger: ledger.batches.newest(limit=10),
    "batches of a gate": lambda ledger: ledger.batches.newest(GATE, 10),
    "batches by status": lambda ledger: ledger.batches.newest(limit=10, statuses=list(Status)),
    "batches of a time": lambda ledger: ledger.batches.newest(
        limit=10, since_ms=NEWEST_MS - 100 * INTERVAL_MS, until_ms=NEWEST_MS - 50 * INTERVAL_MS
    ),
    "isolated": lambda ledger: ledger.batches.isolated(GATE, NEWEST_MS - 60 * INTERVAL_MS),
    "newest of all gates": lambda ledger: ledger.moments.newest_batches(None, 12),
    "ranges of all gates": lambda ledger: ledger.moments.newest_ranges(None),
    "gates now": lambda ledger: ledger.gates.all_now(),
    "isolating": lambda ledger: ledger.moments.isolating(None),
    "with_details": lambda ledger: ledger.moments.with_details(None),
    "open_batch": lambda ledger: ledger.batches.open_batch(GATE),
    "last_begun": lambda ledger: ledger.gates.last_begun(GATE),
    "settle": lambda ledger: ledger.batches.resolve_abandoned(
        GATE, but=None, unowned_before_ms=NEWEST_MS
    ),
    "dead_letters": lambda ledger: ledger.dead_letters.oldest(limit=10),
    "dead_letters that wait": lambda ledger: ledger.dead_letters.oldest(
        GATE, statuses=[DeadLetterStatus.WAITING], limit=10
    ),
    "count_bad_values": lambda ledger: ledger.dead_letters.count_bad_values(GATE),
    "fit_counts": lambda ledger: ledger.dead_letters.fit_counts(GATE, 3),
    "resolve": lambda ledger: ledger.dead_letters.resolve(3, DeadLetterStatus.SENT, "to retries"),
    "losses": lambda ledger: ledger.history.losses(GATE),
    "losses_of": lambda ledger: ledger.history.losses_of(["a batch", "another"]),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_no_more_steps_with_a_longer_history(
    histories: dict[int, Path], tmp_path: Path, name: str
) -> None:
    taken = {}
    for batches, path in histories.items():
        copy = tmp_path / path.name
        shutil.copy(path, copy)
        with Ledger.open(f"sqlite:///{copy}", clock=lambda: NEWEST_MS) as ledger:
            taken[batches] = steps_of(partial(CALLS[name], ledger))
    assert taken[LONG] <= 1.2 * taken[SHORT], taken


def test_pruning_takes_steps_for_what_it_deletes(
    histories: dict[int, Path], tmp_path: Path
) -> None:
    taken = {}
    for batches, path in histories.items():
        copy = tmp_path / path.name
        shutil.copy(path, copy)
        with Ledger.open(f"sqlite:///{copy}") as ledger:
            oldest_ms = NEWEST_MS - batches * INTERVAL_MS
            pruned = 0

            def prune(
                ledger: Ledger = ledger, before_ms: int = oldest_ms + 200 * INTERVAL_MS
            ) -> None:
                nonlocal pruned
                pruned = ledger.history.prune(before_ms)[0]

            taken[batches] = steps_of(prune)
            assert pruned == 200
    assert taken[LONG] <= 1.2 * taken[SHORT], taken


def test_how_far_gates_are_through_takes_steps_for_what_is_open_or_dead(tmp_path: Path) -> None:
    taken = {}
    for batches in (SHORT, LONG):
        url = f"sqlite:///{tmp_path}/{batches}.db"
        fill(url, batches, NEWEST_MS, isolated_every=batches)
        with Ledger.open(url) as ledger:
            for gate in GATES:
                ledger.batches.succeed(ledger.batches.begin(planned(gate, "new", 0, 4)).batch_key)
            taken[batches] = steps_of(partial(ledger.history.processed_until, TOPIC_ID, range(4)))
            assert len(ledger.history.processed_until(TOPIC_ID, range(4))) == 4 * len(GATES)
    assert taken[LONG] <= 1.2 * taken[SHORT], taken
