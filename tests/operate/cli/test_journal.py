"""``headrace journal``: what it lists, proves, mends and removes, and how it ends."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.journal.samples import numbered, segments_of, values_of
from tests.operate.cli.outcomes import rows, told

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.journal import Journal

DAMAGED = "damaged  0/00000000000000000003.segment [3, 10): "


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """``./orders``, with the blocks [0, 3), [3, 10) [10, 12), each a segment, and lane 7 empty."""
    monkeypatch.chdir(tmp_path)
    return a_journal()


def a_journal() -> Journal:
    """The same, in the working directory."""
    made = Journal.open("orders", create=True)
    with segments_of(1), made.writer(0) as writer:
        for start, until in ((0, 3), (3, 10), (10, 12)):
            writer.append(numbered(start, until))
    made.writer(7).close()
    return made


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with the gate ``orders``, which has read nothing."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
    return url


def read(url: str, journal: Journal, *bounds: int, lane: int = 0, fails: bool = False) -> str:
    """Batches from each bound to the next; the key of the first, which may fail."""
    keys = []
    with Ledger.open(url) as ledger:
        for start, until in pairwise(bounds):
            offsets = PlannedRange(OffsetRange("orders", lane, start, until), topic_id=journal.id)
            keys.append(
                ledger.batches.begin(PlannedBatch("orders", "run", (offsets,), "", "")).batch_key
            )
            if fails and len(keys) == 1:
                ledger.batches.fail(keys[0], ValueError("no"))
            else:
                ledger.batches.succeed(keys[-1])
    return keys[0]


def damage() -> None:
    Path("orders/0/00000000000000000003.segment").write_bytes(b"")


def test_lanes_are_listed(journal: Journal) -> None:
    header, lane0, lane7 = told("", "journal ls orders").splitlines()
    assert header.split() == ["lane", "start", "until", "lost", "blocks", "MiB", "oldest", "newest"]
    assert lane0.split()[:6] == ["0", "0", "12", "0", "3", "0.0"]
    assert lane7.split() == ["7", "0", "0", "0", "0", "0.0", "—", "—"]
    blocks = journal.blocks(0)
    (values,) = rows("", "journal ls orders --lane 0")
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
    Journal.open(str(tmp_path / "new"), create=True)
    said = told("", f"journal ls {tmp_path}/new")
    assert said == "The journal has no lane yet; a receiver creates its lane when it starts.\n"


@pytest.mark.usefixtures("journal")
def test_a_whole_journal_is_0_and_a_repair_changes_nothing_of_it() -> None:
    whole = "orders: whole, 12 records in 3 blocks of 2 lanes\n"
    assert told("", "journal verify orders") == whole
    assert told("", "journal repair orders") == (
        "0 findings mended: 0 records declared lost. It is whole now.\n"
    )


def test_a_broken_journal_is_4_with_what_is_broken(journal: Journal) -> None:
    damage()
    assert DAMAGED[9:] in " ".join(told("", "journal verify orders", 4).split())
    (values,) = rows("", "journal verify orders", 4)
    assert (values["journal"], values["id"], values["whole"]) == ("orders", journal.id, False)
    assert values["lanes"][0] == {"lane": 0, "start": 0, "until": 12, "blocks": 2, "records": 5}
    (finding,) = values["findings"]
    assert finding.pop("reason").startswith(str(journal.storage.url))
    path = "0/00000000000000000003.segment"
    assert finding == {"kind": "damaged", "path": path, "lane": 0, "first": 3, "until": 10}


def test_a_repair_makes_the_rest_readable(journal: Journal) -> None:
    damage()
    mended = told("", "journal repair orders")
    assert DAMAGED in mended
    done = "1 finding mended: 7 records declared lost."
    assert mended.endswith(f"{done} It is whole but for what is declared lost now.\n")
    assert values_of(journal) == [b"0", b"1", b"2", b"10", b"11"]
    listed = told("", "journal ls orders").splitlines()[1]
    assert listed.split()[:5] == ["0", "0", "12", "7", "2"]
    assert "lost  0/00000000000000000003.lost [3, 10): " in told("", "journal verify orders")


@pytest.mark.usefixtures("journal")
def test_a_repair_is_told_as_json() -> None:
    damage()
    (values,) = rows("", "journal repair orders")
    assert values["whole"]
    assert values["lost"] == 7
    assert [each["kind"] for each in values["mended"]] == ["damaged"]
    assert [each["kind"] for each in values["findings"]] == ["lost"]


def test_how_far_gates_have_read_their_ledger_tells(journal: Journal, url: str) -> None:
    read(url, journal, 0, 30, lane=7)
    told("", f"journal verify orders --ledger {url}", 4)
    told("", f"journal repair orders --ledger {url}")
    assert journal.bounds() == {0: (0, 12), 7: (0, 30)}


def test_what_a_repair_cannot_mend_is_4(journal: Journal) -> None:
    folder = Path("orders/0")
    for path in folder.iterdir():
        path.unlink()
    (folder / f"{3:020d}.start").touch()
    (folder / f"{3:020d}.lost").write_text("{}")
    said = told("", "journal repair orders", 4, width=200)
    assert said.startswith(
        "0 findings mended: 0 records declared lost. It is not whole yet:\ndamaged"
    )
    assert "give `headrace journal repair` --reached 0:OFFSET" in " ".join(said.split())
    told("", "journal repair orders --reached 0:12")
    assert journal.bounds()[0] == (3, 12)


def because(url: str, options: str) -> str:
    """Return the reason that ``prune`` gives for the first lane that it lists."""
    command = f"journal prune orders --dry-run --older-than {options}"
    return told(url, command).splitlines()[1].split(maxsplit=6)[6].strip()


def test_what_is_processed_and_old_enough_is_removed(journal: Journal, url: str) -> None:
    read(url, journal, 0, 11, 12)
    prune = "journal prune orders --older-than 0s"
    dry = told(url, f"{prune} --dry-run")
    assert dry.endswith("2 blocks with 10 records would be removed, 0.0 MiB.\n")
    assert journal.lane_bounds(0) == (0, 12)
    assert because(url, "0s").endswith("is its last")
    assert told(url, prune).endswith("2 blocks with 10 records removed, 0.0 MiB.\n")
    assert values_of(journal) == [b"10", b"11"]
    assert told(url, prune).endswith("0 blocks with 0 records removed, 0.0 MiB.\n")


def test_why_nothing_is_removed_is_told(journal: Journal, url: str) -> None:
    failed = read(url, journal, 2, 4, 11, 12, fails=True)
    assert because(url, "0s") == f"orders: batch {failed[:8]} is failed"
    with Ledger.open(url) as ledger:
        ledger.batches.claim(failed, "me", 1_000)
        assert because(url, "0s") == f"orders: batch {failed[:8]} is backfilling"
        ledger.batches.backfilled(failed, "me")
    assert because(url, "7d") == "the next segment is too young"
    assert because(url, "0s --without orders --unread") == "the last block of a lane stays"


def test_what_is_removed_is_told_as_json(journal: Journal, url: str) -> None:
    last = read(url, journal, 5, 12)
    sizes = [block.stored_bytes for block in journal.blocks(0)]
    lane0, lane7 = rows(url, "journal prune orders --older-than 0s")
    needed = {"gate": "orders", "partition": 0, "until": 5}
    assert lane0 == {
        "journal": "orders",
        "id": journal.id,
        "dry_run": False,
        "lane": 0,
        "start": 0,
        "until": 3,
        "blocks": 1,
        "records": 3,
        "stored_bytes": sizes[0],
        "kept_blocks": 2,
        "kept_bytes": sum(sizes[1:]),
        "kept": "needed",
        "needed_by": {**needed, "batch_key": last, "status": "success"},
    }
    assert (lane7["lane"], lane7["kept"], lane7["needed_by"]) == (7, None, None)
