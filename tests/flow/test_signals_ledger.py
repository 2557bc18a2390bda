"""Signals over the ledger's database: how often it is asked, and what an outage does."""

import logging
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import text
from tests.flow.samples import a_signal, state_of_stage
from tests.flow.worlds import LedgerWorld
from tests.services.postgresql import PostgresqlServer
from tests.services.waiting import wait_until

from headrace.flow import ledger_signals
from headrace.flow.ledger_transport import POLL_S
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.flows import REMEMBERED_MS, StoredSignal
from headrace.gate.ledger.ledger import Ledger

WAIT_S = 30.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_an_outage_passes_and_what_counts_is_delivered(
    own_postgresql: PostgresqlServer, flow: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.flow")
    with LedgerWorld(flow, own_postgresql.url) as world:
        a, b = world.join("a", ["b"]), world.join("b")
        a.publish(state_of_stage("a", flow=flow))
        wait_until(lambda: "a" in b.states())
        own_postgresql.stop(how)
        b.send(a_signal(sequence=1, flow=flow))
        wait_until(lambda: not a.is_connected and not b.is_connected)
        b.send(a_signal(sequence=2, flow=flow))
        assert a.receive() == []
        assert set(b.states()) == {"a"}, "what is known is known until its lease is over"
        own_postgresql.start()
        assert a.receive(WAIT_S) == [a_signal(sequence=2, flow=flow)]
        wait_until(lambda: a.is_connected and b.is_connected)
    lines = [line for line in caplog.messages if flow in line]
    assert len([line for line in lines if "cannot exchange signals" in line]) == 2
    assert len([line for line in lines if line.endswith("signals again.")]) == 2


def test_a_stage_asks_the_database_twice_a_second_at_most(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    enough = threading.Event()
    with Ledger.open(url) as ledger:
        sent_to = ledger.signals.sent_to

        def count(flow: str, stage: str) -> tuple[StoredSignal, ...]:
            asked.append(time.monotonic())
            if len(asked) == 5:
                enough.set()
            return sent_to(flow, stage)

        monkeypatch.setattr(ledger.signals, "sent_to", count)
        with ledger_signals(ledger, "clicks", "a") as a:
            while not enough.wait(0.05):
                a.publish(state_of_stage("a"))  # which is written at once, and asks nothing
    gaps = [later - before for before, later in pairwise(asked)]
    assert min(gaps) >= POLL_S


def test_what_nobody_has_touched_for_a_day_is_forgotten(url: str) -> None:
    with Ledger.open(url) as ledger:
        for flow in ("clicks", "orders"):
            ledger.signals.send(flow, "b", "a", "old")
            ledger.signals.publish(flow, "b", "old")
        engine = sqlalchemy.create_engine(normalize_url(url))
        with engine.begin() as connection:
            for table in ("signal", "stage_state"):
                connection.execute(
                    text(f"UPDATE {table} SET written_ms = written_ms - {REMEMBERED_MS + 1}")  # noqa: S608
                )
        engine.dispose()
        ledger.signals.send("clicks", "c", "a", "new")
        ledger.signals.prune("clicks")
        assert [note.stage for note in ledger.signals.sent_to("clicks", "a")] == ["c"]
        assert ledger.signals.published("clicks") == ()
        assert (
            len(ledger.signals.sent_to("orders", "a"))
            == len(ledger.signals.published("orders"))
            == 1
        )


def test_what_was_replaced_since_it_was_read_is_not_taken(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.signals.send("clicks", "b", "a", "first")
        ledger.signals.send("clicks", "b", "a", "second")
        ledger.signals.remove("clicks", "b", "a", "first")
        (note,) = ledger.signals.sent_to("clicks", "a")
        assert (note.stage, note.text) == ("b", "second")
        ledger.signals.remove("clicks", "b", "a", "second")
        assert ledger.signals.sent_to("clicks", "a") == ()


def test_a_state_that_another_process_shows_by_now_stays(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.signals.publish("clicks", "a", "mine")
        ledger.signals.publish("clicks", "a", "its")
        ledger.signals.withdraw("clicks", "a", "mine")
        assert [note.text for note in ledger.signals.published("clicks")] == ["its"]
