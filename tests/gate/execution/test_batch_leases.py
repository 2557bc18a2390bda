"""Owners of batches: who is gone, and leases that are renewed."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any

import pytest
from tests.gate.execution.events import planned
from tests.gate.ledger.samples import stored
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.core.system import is_gone, new_owner
from headrace.gate.execution.call import BatchLeases
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

TELL_OWNER = "from headrace.core.system import new_owner; print(new_owner(), flush=True); input()"


def begin(ledger: Ledger, owner: str, start: int = 0) -> str:
    batch = ledger.batches.begin(
        planned("orders", OffsetRange("t", 0, start, start + 10))
    ).batch_key
    assert ledger.batches.attach(batch, 0, owner=owner, lease_ms=1_000)
    return batch


def lease_of(ledger: Ledger, batch: str) -> int:
    found = stored(ledger, batch)
    return found.lease_until_ms or 0


@pytest.mark.integration
def test_an_owner_is_gone_when_its_process_has_ended() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", TELL_OWNER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert not is_gone(owner)
        process.communicate("\n")
    assert is_gone(owner)


def test_a_process_is_not_taken_for_an_earlier_one_of_its_number() -> None:
    machine, process, _ = new_owner().split(":")
    assert is_gone(f"{machine}:{process}:1/x")
    assert not is_gone(new_owner())


@pytest.mark.parametrize("owner", ["", "me", ":", "another machine:1:2/x", "a:b:c/d", ":1:2/x"])
def test_of_others_it_is_not_known(owner: str) -> None:
    assert not is_gone(owner)


def test_each_run_has_a_name_of_its_own() -> None:
    assert new_owner() != new_owner()


def test_leases_are_renewed_until_the_end(ledger: Ledger) -> None:
    first, second = begin(ledger, "me"), begin(ledger, "me", 10)
    until_ms = lease_of(ledger, second)
    with BatchLeases(ledger, "me", lease_ms=5_000) as leases:
        leases.keep(first, second)
        wait_until(lambda: min(lease_of(ledger, each) for each in (first, second)) > until_ms)


def test_the_end_does_not_wait_for_an_unreachable_ledger(
    ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, waits = begin(ledger, "me"), threading.Event()
    with (
        Ledger.open(ledger_url, timeouts=Timeouts(10_000, lock_s=0.05)) as patient,
        closing(sqlite3.connect(ledger_url.removeprefix("sqlite:///"))) as other,
    ):
        renew = patient.batches.renew

        def tell(*given: Any) -> bool:
            waits.set()
            return renew(*given)

        monkeypatch.setattr(patient.batches, "renew", tell)
        other.execute("BEGIN IMMEDIATE")
        with BatchLeases(patient, "me", lease_ms=50) as leases:
            leases.keep(batch)
            assert waits.wait(60)
        other.rollback()
    assert {thread.name for thread in threading.enumerate()} & {"headrace-leases"} == set()


def test_what_is_resolved_is_not_kept_any_more(ledger: Ledger) -> None:
    batch, other = begin(ledger, "me"), begin(ledger, "me", 10)
    ledger.batches.succeed(batch, owner="me")
    until_ms = lease_of(ledger, other)
    with BatchLeases(ledger, "me", lease_ms=5_000) as leases:
        leases.keep(batch, other)
        wait_until(lambda: lease_of(ledger, other) > until_ms)
    found = stored(ledger, batch)
    assert (found.status, found.owner) == (Status.SUCCESS, None)
