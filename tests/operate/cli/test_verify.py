"""``headrace verify``: what it proves, what it finds, and how it ends."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Executable, delete, update
from tests.journal.samples import numbered
from tests.operate.cli.outcomes import ERROR, damage, invoke, planned, rows, told
from tests.services.ledgers import gated_ledger, succeed

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.ledger.tables import batch_range
from headrace.journal import Journal


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """A ledger whose gate has processed 50 offsets in five batches."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    gated_ledger(url, "orders", *(planned(at, at + 10) for at in range(0, 50, 10))).close()
    return url


def test_a_gate_that_is_proven_is_0(ledger_url: str) -> None:
    said = told(ledger_url, "verify")
    first, _, header, span = said.splitlines()
    assert first == "orders: proven"
    assert header.split() == ["read", "processed", "open", "dead", "lost", "missing"]
    assert span.startswith("orders-0 [0, 50) ")
    assert span.rpartition(")")[2].split() == ["50", "0", "0", "0", "0"]
    explained = told(ledger_url, "verify --explain")
    assert explained.startswith(said)
    said = " ".join(explained.split())
    assert (
        "headrace verify proves, or reports where it is not true, that the batches leave out"
        in said
    )
    assert "The ledger alone does not show that it is an older copy" in said


def test_what_is_dead_or_lost_is_explained_and_told(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        key = ledger.batches.begin(planned(60, 70)).batch_key
        ledger.history.record_losses("orders", [OffsetRange("orders", 0, 50, 60)])
        ledger.batches.fail(key, ERROR)
        ledger.batches.claim(key, "me", 1_000)
        ledger.batches.mark_dead(key, "me", ERROR)
    said = told(ledger_url, "verify", 3)
    assert said.startswith("orders: proven, 10 dead, 10 lost\n")
    assert "headrace failures lists the unresolved failures." in said
    assert "orders-0 [50, 60) was gone before it was read." in said
    told(ledger_url, f"drop {key} --why known --by Ada")
    told(ledger_url, "failures", 3)
    assert "is dead, and resolved: known (Ada)." in told(ledger_url, "verify", 3)
    assert "resolved: known (Ada)" in told(ledger_url, "batches")
    assert "Its error, before it was resolved:" in told(ledger_url, f"batches {key}")
    told(ledger_url, "accept orders --records 10 --why known")
    told(ledger_url, "failures", 0)
    told(ledger_url, "verify", 0)


def test_what_two_checkpoints_skip_is_4_until_somebody_accepts_it(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        again = replace(planned(90, 100), checkpoint_id="another")
        succeed(ledger, again)
    ended = invoke(ledger_url, "verify")
    assert ended.exit_code == 4
    assert "records between two are skipped, 40 skipped\n" in ended.stdout
    assert "headrace accept orders --records 40 --why" in ended.stdout
    assert "40 records skipped between two checkpoints." in told(ledger_url, "status")
    assert "orders: 0 records are lost and 40 skipped" in told(ledger_url, "failures", 3)
    missed = {"what": "missed", "gate": "orders", "lost": 0, "skipped": 40}
    assert rows(ledger_url, "failures", 3) == [missed]
    refused = invoke(ledger_url, "accept", "orders", "--records", "41", "--why", "begun anew")
    assert refused.exit_code == 1
    assert "has missed 40 offsets" in str(refused.exception)
    said = told(ledger_url, "accept orders --records 40 --why anew --by ada")
    assert said == "orders: 0 lost and 40 skipped records are accepted.\n"
    said = told(ledger_url, "verify")
    assert said.startswith("orders: proven, 40 lost or skipped and accepted\n")
    assert "no run reads it. Accepted: anew (ada)" in said
    assert "skipped" not in told(ledger_url, "status")
    assert "Nothing is unresolved" in told(ledger_url, "failures")


SHIFTED = (
    update(batch_range)
    .where(batch_range.c.start_offset == 20)
    .values(start_offset=17, until_offset=27)
)


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (
            delete(batch_range).where(batch_range.c.start_offset == 20),
            ["orders: BROKEN", "gap  orders-0 [20, 30) lies between batch", "no batch reads it"],
        ),
        (SHIFTED, ["orders-0 [17, 20) is read by both batch", "orders-0 [27, 30) lies between"]),
    ],
    ids=["a range is dropped", "a range is shifted"],
)
def test_what_was_changed_is_4(ledger_url: str, change: Executable, sentences: list[str]) -> None:
    damage(ledger_url, change)
    said = told(ledger_url, "verify", 4)
    assert [each for each in sentences if each not in said] == []


def test_the_worst_of_several_gates_is_the_exit_status(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        for gate in ("a", "b"):
            ledger.gates.declare(gate, interval_ms=1, source="kafka", estimator="pid")
        ledger.batches.begin(planned(0, 10, gate="a"))
    said = told(ledger_url, "verify", 3)
    assert "nothing to prove yet: gate b has begun no batch" in said
    assert "orders: proven" in said
    assert invoke(ledger_url, "verify", "orders").exit_code == 0
    damage(ledger_url, delete(batch_range).where(batch_range.c.start_offset == 20))
    assert invoke(ledger_url, "verify").exit_code == 4


def test_a_gate_that_has_begun_no_batch_has_nothing_to_prove(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    gated_ledger(url).close()
    result = invoke(url, "verify")
    assert result.exit_code == 0
    assert result.stdout.startswith("nothing to prove yet: gate orders has begun no batch\n")
    as_json = invoke(url, "verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["verdict"]) == (0, "empty")


def test_a_ledger_without_a_gate_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    Ledger.open(url).close()
    for arguments in ([], ["--json"], ["orders"]):
        result = invoke(url, "verify", *arguments)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
        assert "has no gate yet, so nothing is proven" in result.stderr
        assert "a SQLite file is copied together with its -wal" in result.stderr


def test_a_gate_that_the_ledger_does_not_have_is_3(ledger_url: str) -> None:
    for arguments in ([], ["--json"]):
        result = invoke(ledger_url, "verify", "order", *arguments)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "has no gate 'order', so nothing is proven; the gates it has: or" in result.stderr


def test_the_file_of_a_ledger_that_is_copied_without_its_wal_is_3(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    with gated_ledger(f"sqlite:///{path}", "orders", planned(0, 10)):
        shutil.copy(path, tmp_path / "copy.db")
        assert invoke(f"sqlite:///{path}", "verify").exit_code == 0
    assert invoke(f"sqlite:///{tmp_path}/copy.db", "verify").exit_code == 3


def test_a_journal_is_asked_where_it_ends(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 12))
    url = f"sqlite:///{tmp_path}/headrace.db"
    with gated_ledger(url, source="journal") as ledger:
        for start, until in ((3, 10), (10, 14)):
            offsets = PlannedRange(OffsetRange("orders", 0, start, until), topic_id=journal.id)
            succeed(ledger, PlannedBatch("orders", "run", (offsets,), "rate", journal.storage.url))
            said = told(url, "verify --source", 0 if until <= 12 else 4, width=200)
    assert "has orders-0 [0, 3), which lies before all planned offsets." in said
    assert (
        "The journal has orders-0 up to 12, and the ledger has batches of orders-0 [3, 14)" in said
    )
    assert invoke(url, "verify", "--option", "a=b").exit_code == 1
