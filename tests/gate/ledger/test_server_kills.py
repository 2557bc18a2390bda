"""SIGKILL of a real PostgreSQL server: what its ledger had acknowledged is there afterwards.

A killed server loses what it has not written to its log yet. Its own writer of the log is made slow
here, so that a commit that nobody has waited for is not written by chance.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Connection
from tests.gate.ledger.samples import a_sample, batch_number
from tests.recovery.stories import chance
from tests.services.postgresql import NewUrl, PostgresqlServer
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.database import Database, make_durable
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import DEFECTS
from headrace.gate.ledger.records import DeadLetter
from headrace.gate.ledger.transitions import Status

GATES: Final = ("a", "b", "c", "d")
LEASE_MS: Final = 60_000
STEPS: Final = ("begun", "attached", "lost", "succeeded", "reported", "transacted")
SLOW_WRITER: Final = ("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'")


class Worker:
    """Runs one batch of its gate after the other, and remembers what was acknowledged.

    Batches end in turn by their handler, by the engine's report alone, and by a transaction with a
    dead letter. What comes after an acknowledged end may be lost.
    """

    def __init__(self, gate: str) -> None:
        self.gate: Final = gate
        self.begun: list[str] = []
        self.done: list[str] = []
        self.lost: list[OffsetRange] = []
        self.rejected: list[str] = []
        self.sequences: list[int] = [0]
        self._number = 0

    def run(self, ledger: Ledger, last: str | None, batches: int) -> None:
        """Run until the server is gone, or so many batches and then up to the step ``last``."""
        until = self._number + batches
        try:
            while True:
                for step in self._batch(ledger):
                    if step == last and self._number >= until:
                        return
                self._number += 1
        except LedgerError as error:
            assert "cannot be reached" in str(error), error

    def _batch(self, ledger: Ledger) -> Iterator[str]:
        number, me = self._number, self.gate
        planned = batch_number(number, me)
        batch = ledger.batches.begin(planned)
        key = batch.batch_key
        self.begun += [key] * (key not in self.begun)
        yield "begun"
        if batch.status is Status.SUCCESS:  # the server was killed before it could say so
            self.done += [key] * (key not in self.done)
            return
        attached = ledger.batches.attach(key, number, owner=me, lease_ms=LEASE_MS)
        assert attached is not None
        assert attached.sequence > self.sequences[-1]
        self.sequences.append(attached.sequence)
        yield "attached"
        assert ledger.batches.renew(key, me, LEASE_MS)
        sample = a_sample(number, gate=me, batch_key=key)
        if number % 3 == 0:
            (missing,) = (each.offsets for each in planned.ranges)
            ledger.history.record_losses(me, [missing], batch_key=key)
            self.lost.append(missing)
            yield "lost"
            assert ledger.batches.succeed(key, owner=me)
            self.done.append(key)
            yield "succeeded"
        elif number % 3 == 1:
            ledger.rates.report(key, number, 0, sample)
            self.done.append(key)
            yield "reported"
        else:
            with ledger.batches.transaction(key, me, rejected=lambda: [a_letter(number)]):
                pass
            self.done.append(key)
            self.rejected.append(key)
            yield "transacted"
        ledger.rates.report(key, number, 0, sample)

    def check(self, ledger: Ledger) -> None:
        """Find all that was acknowledged, and at most one step more."""
        for key in self.begun:
            assert ledger.batches.get(key) is not None, f"{key} of {self.gate} was begun"
            assert (
                ledger.batches.ranges(key) == batch_number(self.begun.index(key), self.gate).ranges
            )
        for key in self.done:
            batch = ledger.batches.get(key)
            assert batch is not None
            assert batch.status is Status.SUCCESS, f"{key} of {self.gate} was done"
        held = {batch.batch_key for batch in ledger.batches.newest(self.gate, limit=100_000)}
        assert len(held - set(self.begun)) <= 1
        assert set(self.lost) <= {loss.offsets for loss in ledger.history.losses(self.gate)}
        letters = ledger.dead_letters.oldest(self.gate, limit=100_000)
        assert set(self.rejected) <= {letter.batch_key for letter in letters}
        self.sequences.append(ledger.gates.next_sequence(self.gate))
        assert self.sequences[-1] > self.sequences[-2]
        assert not DEFECTS & {it.kind for it in ledger.proofs.verify(self.gate).findings}


def a_letter(number: int) -> DeadLetter:
    error = ErrorReport("ValueError", "no", "")
    return DeadLetter("orders", 0, number * 10, None, b"bad", None, 0, 0, error)


@pytest.fixture
def workers(own_postgresql: PostgresqlServer) -> list[Worker]:
    with psycopg.connect(own_postgresql.url, autocommit=True) as connection:
        for setting in SLOW_WRITER:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")
    with Ledger.open(own_postgresql.url) as ledger:
        for gate in GATES:
            ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
    return [Worker(gate) for gate in GATES]


def survive(
    own_postgresql: PostgresqlServer,
    workers: list[Worker],
    wait: Callable[[], object],
    *,
    last: str | None = None,
    batches: int = 0,
) -> None:
    """Kill the server under the workers' load, and check it when it is back."""
    with Ledger.open(own_postgresql.url) as ledger, ThreadPoolExecutor(len(workers)) as pool:
        runs = [pool.submit(worker.run, ledger, last, batches) for worker in workers]
        if last is not None:
            for run in runs:
                run.result()
        wait()
        own_postgresql.kill()
        for run in runs:
            run.result()
    own_postgresql.start()
    with Ledger.open(own_postgresql.url) as ledger:
        for worker in workers:
            worker.check(ledger)


def test_a_killed_server_has_every_step_that_it_acknowledged_last(
    own_postgresql: PostgresqlServer, workers: list[Worker]
) -> None:
    for step in STEPS:
        survive(own_postgresql, workers, lambda: None, last=step, batches=3)


def test_only_a_commit_that_need_not_be_durable_is_not_waited_for(
    new_postgresql_url: NewUrl,
) -> None:
    """And one that is made durable waits as the URL, the role or the server says."""
    url = f"{new_postgresql_url()}%20-csynchronous_commit%3Dremote_write"
    database = Database(url, read_only=False, timeouts=Timeouts())
    setting = sqlalchemy.text("SELECT current_setting('synchronous_commit')")

    def waits(connection: Connection) -> object:
        return connection.scalar(setting)

    def waits_after_all(connection: Connection) -> object:
        make_durable(connection)
        return waits(connection)

    for do in (database.alone, database.write):
        assert do(waits, durable=False) == "off"
        assert do(waits) == "remote_write"
    assert database.write(waits_after_all, durable=False) == "remote_write"
    assert database.read(lambda connection: connection.scalar(setting)) == "remote_write"
    database.close()


def kill_at_random(
    own_postgresql: PostgresqlServer, workers: list[Worker], kills: int, numbers: random.Random
) -> None:
    for _ in range(kills):
        more = sum(len(worker.done) for worker in workers) + numbers.randint(1, 60)

        def reached(more: int = more) -> bool:
            return sum(len(worker.done) for worker in workers) >= more

        survive(own_postgresql, workers, partial(wait_until, reached))


def test_a_server_that_is_killed_under_load_has_what_it_acknowledged(
    own_postgresql: PostgresqlServer, workers: list[Worker]
) -> None:
    kill_at_random(own_postgresql, workers, 1, chance())


@pytest.mark.soak
def test_a_hundred_kills_of_the_server_take_nothing_that_it_acknowledged(
    own_postgresql: PostgresqlServer, workers: list[Worker]
) -> None:
    kill_at_random(own_postgresql, workers, 100, chance())
