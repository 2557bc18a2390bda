"""Tasks' handling of offsets that are gone: all of it without Spark."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.ledger.samples import a_batch
from tests.services.ledgers import gated_ledger

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.losses import LossAccount, Losses

BATCH = a_batch(OffsetRange("orders", 0, 0, 100), OffsetRange("orders", 1, 0, 100))
GONE = OffsetRange("orders", 0, 0, 80)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with gated_ledger(f"sqlite:///{tmp_path}/headrace.db") as opened:
        opened.batches.begin(BATCH)
        yield opened


def account_in(url: str) -> LossAccount:
    return LossAccount("orders", url, BATCH.batch_key, {"orders": "an id"})


def test_a_loss_is_durable_when_it_is_passed_over_and_counted_once_however_often(
    ledger: Ledger, tmp_path: Path
) -> None:
    losses = Losses("Kafka", fail=False, account=account_in(ledger.url))
    for until in (80, 80, 60, 90):
        losses.pass_over(OffsetRange("orders", 0, 0, until), "the log begins at 90")
    losses.pass_over(OffsetRange("orders", 0, 50, 90), "the log begins at 90")
    with sqlite3.connect(tmp_path / "headrace.db") as file:
        rows = list(file.execute("SELECT from_offset, until_offset, batch_key FROM lost"))
    assert rows == [(0, 90, BATCH.batch_key)]
    (loss,) = ledger.history.losses("orders")
    assert (loss.topic_id, loss.reason) == ("an id", "the log begins at 90")
    assert loss.checkpoint_id == BATCH.checkpoint_id


def test_losses_that_stop_the_query_are_not_written_down(ledger: Ledger) -> None:
    losses = Losses("Kafka", fail=True, account=account_in(ledger.url))
    with pytest.raises(DataLossError, match=r"orders-0 \[0, 80\) are gone from Kafka \(why\)"):
        losses.pass_over(GONE, "why")
    assert ledger.history.losses("orders") == ()


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other.db"
    with pytest.raises(DataLossError) as raised:
        account_in(f"sqlite:///{elsewhere}").record(GONE, "why")
    assert not elsewhere.exists()
    text = str(raised.value)
    assert "orders-0 [0, 80)" in text
    assert "PostgreSQL" in text
    assert text.count(". ") == 0


def test_a_ledger_without_the_batch_is_another_ledger(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    with gated_ledger(url) as other:
        with pytest.raises(DataLossError, match=r"has no batch .* so it is not the ledger"):
            account_in(url).record(GONE, "why")
        assert other.history.losses("orders") == ()


def test_a_password_is_not_shown() -> None:
    account = account_in("postgresql://me:secret@localhost:1/ledger?sslmoed=require")
    with pytest.raises(DataLossError) as raised:
        account.record(GONE, "why")
    assert "secret" not in f"{raised.value}{raised.value.__cause__}{account!r}"


def test_what_is_recorded_already_needs_no_lock(ledger: Ledger, tmp_path: Path) -> None:
    account = account_in(ledger.url)
    account.record(GONE, "why")
    with sqlite3.connect(tmp_path / "headrace.db", isolation_level=None) as file:
        file.execute("BEGIN IMMEDIATE")  # as a handler does that reads within its transaction
        account.record(OffsetRange("orders", 0, 10, 20), "why")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99), st.integers(1, 50)), max_size=8))
def test_tasks_that_run_again_and_beside_each_other_lose_no_offset_of_what_they_lost(
    tmp_path_factory: pytest.TempPathFactory, tried: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("losses")
    with gated_ledger(f"sqlite:///{folder}/headrace.db") as opened:
        opened.batches.begin(BATCH)
        expected = set()
        for partition, start, count in tried:
            missing = OffsetRange("orders", partition, start, start + count)
            expected |= {(partition, offset) for offset in range(missing.start, missing.until)}
            account_in(opened.url).record(missing, "why")
        found = {
            (loss.offsets.partition, offset)
            for loss in opened.history.losses("orders")
            for offset in range(loss.offsets.start, loss.offsets.until)
        }
    assert found == expected
