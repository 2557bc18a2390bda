"""Leases are measured by the database's clock, whatever clock a process has."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.gate.ledger.samples import a_batch
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.core.timing import LEASE_MS, LONGEST_LEASE_MS
from headrace.errors import LedgerError
from headrace.gate.backfill.monitor import Monitor
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.testing import ManualClock

DAY_MS = 86_400_000
ERROR = ErrorReport("ValueError", "no", "")


class Hosts:
    """One database, and hosts with clocks of their own.

    Attributes:
        database: the database's clock.
        ahead: a host whose clock is a day ahead; ``behind``: one whose is a day behind.
        right: one whose clock is right.
    """

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.database = ManualClock()

        def host(off_by_ms: int, opened: Callable[..., Ledger]) -> Ledger:
            clock = lambda: self.database() + off_by_ms  # noqa: E731
            return stack.enter_context(opened(url, clock=clock, database_clock=self.database))

        self.right = host(0, new_ledger)
        self.right.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        self.ahead = host(DAY_MS, Ledger.open)
        self.behind = host(-DAY_MS, Ledger.open)


@pytest.fixture
def hosts(url: str) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(url, stack)


def taken_by(ledger: Ledger) -> str:
    key = ledger.batches.begin(a_batch()).batch_key
    ledger.batches.fail(key, ERROR)
    assert ledger.batches.claim(key, "another host", LEASE_MS) is not None
    return key


@pytest.mark.parametrize("off", ["ahead", "behind"])
def test_a_batch_of_a_host_with_a_wrong_clock_is_its_own_for_one_lease_and_no_longer(
    hosts: Hosts, off: str
) -> None:
    theirs: Ledger = getattr(hosts, off)
    key = theirs.batches.begin(a_batch()).batch_key
    assert theirs.batches.attach(key, 1, owner="another host", lease_ms=LEASE_MS)
    assert not hosts.right.batches.attach(key, 1, owner="me", lease_ms=LEASE_MS)
    hosts.database.now_ms += LEASE_MS - 1
    assert not hosts.right.batches.attach(key, 1, owner="me", lease_ms=LEASE_MS)
    assert theirs.batches.renew(key, "another host", LEASE_MS)
    hosts.database.now_ms += LEASE_MS
    assert hosts.right.batches.attach(key, 1, owner="me", lease_ms=LEASE_MS)
    assert not theirs.batches.attach(key, 1, owner="another host", lease_ms=LEASE_MS)
    assert not theirs.batches.succeed(key, owner="another host")


@pytest.mark.parametrize("off", ["ahead", "behind"])
def test_a_backfill_of_a_host_with_a_wrong_clock_is_taken_over_after_one_lease(
    hosts: Hosts, off: str
) -> None:
    key = taken_by(getattr(hosts, off))
    hosts.database.now_ms += LEASE_MS - 1
    assert hosts.right.batches.failed() == ()
    assert hosts.right.batches.claim(key, "me", LEASE_MS) is None
    hosts.database.now_ms += 1
    assert [batch.batch_key for batch in hosts.right.batches.failed()] == [key]
    assert hosts.right.batches.claim(key, "me", LEASE_MS) is not None


def test_a_lease_written_while_the_databases_own_clock_ran_ahead_is_taken_over(
    hosts: Hosts,
) -> None:
    hosts.database.now_ms += DAY_MS
    live = hosts.right.batches.begin(a_batch(OffsetRange("orders", 0, 0, 10))).batch_key
    hosts.right.batches.attach(live, 1, owner="gone", lease_ms=LEASE_MS)
    other = hosts.right.batches.begin(a_batch()).batch_key
    hosts.right.batches.attach(other, 2, owner="gone", lease_ms=LEASE_MS)
    failed = hosts.right.batches.begin(a_batch(OffsetRange("orders", 0, 20, 30))).batch_key
    hosts.right.batches.fail(failed, ERROR)
    hosts.right.batches.claim(failed, "gone", LEASE_MS)
    hosts.database.now_ms -= DAY_MS

    assert [batch.batch_key for batch in hosts.right.batches.failed()] == [failed]
    monitor = Monitor(hosts.right, "orders")
    monitor.refresh()
    ready = monitor.next_ready(hosts.database())
    assert ready is not None
    assert ready.batch_key == failed
    assert hosts.right.batches.failed("orders", waits_ms=[0, 60_000]) != ()
    assert hosts.right.batches.claim(failed, "me", LEASE_MS) is not None
    assert hosts.right.batches.attach(other, 2, owner="me", lease_ms=LEASE_MS)
    assert hosts.right.batches.resolve_abandoned("orders", but=None, unowned_before_ms=0) == [live]


def test_setting_the_databases_clock_back_a_little_takes_no_batch_from_its_owner(
    hosts: Hosts,
) -> None:
    key = hosts.right.batches.begin(a_batch()).batch_key
    hosts.right.batches.attach(key, 1, owner="alive", lease_ms=LEASE_MS)
    hosts.database.now_ms -= LONGEST_LEASE_MS - LEASE_MS
    assert not hosts.right.batches.attach(key, 1, owner="me", lease_ms=LEASE_MS)


def test_a_lease_longer_than_one_can_be_is_refused(hosts: Hosts) -> None:
    key = hosts.right.batches.begin(a_batch()).batch_key
    with pytest.raises(LedgerError, match="60001 ms is too long; choose at most 60000 ms"):
        hosts.right.batches.attach(key, 1, owner="me", lease_ms=LONGEST_LEASE_MS + 1)
    found = hosts.right.batches.get(key)
    assert found is not None
    assert found.owner is None


def test_without_another_clock_it_is_the_databases(url: str) -> None:
    with new_ledger(url, clock=lambda: 5) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        before_ms = ledger.database_time_ms()
        key = ledger.batches.begin(a_batch()).batch_key
        ledger.batches.attach(key, 1, owner="me", lease_ms=LEASE_MS)
        found = ledger.batches.get(key)
        after_ms = ledger.database_time_ms()
    assert found is not None
    assert before_ms > 10**12
    assert before_ms + LEASE_MS <= (found.lease_until_ms or 0) <= after_ms + LEASE_MS
    assert found.start_time_ms == 5
