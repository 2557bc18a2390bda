"""``headrace journal``: what it lists, proves and mends, and how it ends."""

import json
from pathlib import Path

import pytest
from tests.cli.outcomes import invoke
from tests.journal.samples import numbered, values_of
from tests.services.ledgers import new_ledger

from headrace.control import OffsetRange
from headrace.journal import Journal
from headrace.ledger import PlannedBatch, PlannedRange


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0, and lane 7 empty."""
    made = Journal.open(str(tmp_path / "orders"), create=True)
    with made.writer(0) as writer:
        for start, until in ((0, 3), (3, 10), (10, 12)):
            writer.append(numbered(start, until))
    made.writer(7).close()
    return made


def damage(journal: Journal, first: int) -> Path:
    path = Path(journal.storage.url) / "0" / f"{first:020d}.block"
    path.write_bytes(b"")
    return path


def test_lanes_are_listed(journal: Journal) -> None:
    result = invoke("", "journal", "ls", journal.storage.url)
    assert result.exit_code == 0
    header, lane0, lane7 = result.stdout.splitlines()
    assert header.split() == ["lane", "start", "until", "lost", "blocks", "MiB", "oldest", "newest"]
    assert lane0.split()[:6] == ["0", "0", "12", "0", "3", "0.0"]
    assert lane7.split() == ["7", "0", "0", "0", "0", "0.0", "—", "—"]


def test_lanes_are_listed_as_json(journal: Journal) -> None:
    result = invoke("", "journal", "ls", journal.storage.url, "--json", "--lane", "0")
    (values,) = map(json.loads, result.stdout.splitlines())
    blocks = journal.blocks(0)
    assert values == {
        "journal": "orders",
        "id": journal.id,
        "lane": 0,
        "start": 0,
        "until": 12,
        "lost": 0,
        "blocks": 3,
        "stored_bytes": sum(block.stored_bytes for block in blocks),
        "oldest_ms": blocks[0].created_ms,
        "newest_ms": blocks[-1].created_ms,
    }


def test_a_journal_without_a_lane_is_told(tmp_path: Path) -> None:
    Journal.open(str(tmp_path / "orders"), create=True)
    result = invoke("", "journal", "ls", str(tmp_path / "orders"))
    assert result.stdout == (
        "The journal has no lane yet; a receiver makes its own when it starts.\n"
    )


def test_a_whole_journal_is_0(journal: Journal) -> None:
    result = invoke("", "journal", "verify", journal.storage.url)
    assert result.exit_code == 0
    assert result.stdout == "orders: whole, 12 records in 3 blocks of 2 lanes\n"


def test_what_is_broken_is_told_as_json(journal: Journal) -> None:
    damage(journal, 3)
    result = invoke("", "journal", "verify", journal.storage.url, "--json")
    assert result.exit_code == 4
    values = json.loads(result.stdout)
    assert (values["journal"], values["id"], values["whole"]) == ("orders", journal.id, False)
    assert values["lanes"][0] == {"lane": 0, "start": 0, "until": 12, "blocks": 2, "records": 5}
    (finding,) = values["findings"]
    assert finding.pop("reason").startswith(str(journal.storage.url))
    assert finding == {
        "kind": "damaged",
        "path": "0/00000000000000000003.block",
        "lane": 0,
        "first": 3,
        "until": 10,
    }


def test_a_repair_makes_the_rest_readable(journal: Journal) -> None:
    damage(journal, 3)
    result = invoke("", "journal", "repair", journal.storage.url)
    assert result.exit_code == 0
    assert "damaged  0/00000000000000000003.block [3, 10): " in result.stdout
    assert result.stdout.endswith("1 finding mended. It is whole now.\n")
    assert values_of(journal) == [b"0", b"1", b"2", b"10", b"11"]
    listed = invoke("", "journal", "ls", journal.storage.url)
    assert listed.stdout.splitlines()[1].split()[:5] == ["0", "0", "12", "7", "2"]
    verified = invoke("", "journal", "verify", journal.storage.url)
    assert verified.exit_code == 0
    assert "lost  0/00000000000000000003.lost [3, 10): " in verified.stdout


def test_a_repair_of_a_whole_journal_changes_nothing(journal: Journal) -> None:
    result = invoke("", "journal", "repair", journal.storage.url)
    assert (result.exit_code, result.stdout) == (0, "0 findings mended. It is whole now.\n")


def test_what_was_read_beyond_a_lane_s_end_is_declared_lost(journal: Journal) -> None:
    url = journal.storage.url
    reached = ["--reached", "0:20", "--reached", "9:5"]
    result = invoke("", "journal", "verify", url, *reached)
    assert result.exit_code == 4
    assert "gap  0/00000000000000000012.block [12, 20): " in result.stdout
    result = invoke("", "journal", "repair", url, *reached)
    assert result.exit_code == 0
    assert result.stdout.endswith("2 findings mended. It is whole now.\n")
    assert journal.bounds() == {0: (0, 20), 7: (0, 0), 9: (0, 5)}


def test_how_far_gates_have_read_their_ledger_tells(journal: Journal, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with new_ledger(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="journal", estimator="pid")
        read = PlannedRange(OffsetRange("orders", 7, 0, 30), topic_id=journal.id)
        ledger.begin(PlannedBatch("orders", "run", (read,), "rate", ""))
    known = [journal.storage.url, "--ledger", url]
    assert invoke("", "journal", "verify", *known).exit_code == 4
    assert invoke("", "journal", "repair", *known).exit_code == 0
    assert journal.bounds() == {0: (0, 12), 7: (0, 30)}


def test_what_a_repair_cannot_mend_is_4(journal: Journal) -> None:
    (Path(journal.storage.url) / "0" / "00000000000000000003.lost").write_text("{}")
    result = invoke("", "journal", "repair", journal.storage.url)
    assert result.exit_code == 4
    assert result.stdout.startswith("0 findings mended. It is not whole yet")
