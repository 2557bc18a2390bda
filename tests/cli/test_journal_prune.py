"""``headrace journal prune``: what it removes, what it says of the rest, and when it refuses."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.outcomes import invoke
from tests.journal.samples import numbered, values_of

from headrace.control.ranges import OffsetRange
from headrace.journal import Journal
from headrace.ledger import Ledger, PlannedBatch, PlannedRange


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0, and lane 7 empty."""
    made = Journal.open(str(tmp_path / "orders"), create=True)
    with made.writer(0) as writer:
        for start, until in ((0, 3), (3, 10), (10, 12)):
            writer.append(numbered(start, until))
    made.writer(7).close()
    return made


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """A ledger with the gate ``orders``, which has read nothing."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1_000, source="journal", estimator="pid")
    return url


def read(url: str, journal: Journal, *bounds: int, fails: bool = False) -> str:
    """Batches from each bound to the next; the key of the first, which may fail."""
    keys = []
    with Ledger.open(url) as ledger:
        for start, until in pairwise(bounds):
            offsets = PlannedRange(OffsetRange("orders", 0, start, until), topic_id=journal.id)
            keys.append(ledger.begin(PlannedBatch("orders", "run", (offsets,), "", "")).schedule_id)
            if fails and len(keys) == 1:
                ledger.fail(keys[0], ValueError("no"))
            else:
                ledger.succeed(keys[-1])
    return keys[0]


def cells(line: str) -> list[str]:
    return line.split(maxsplit=6)


def test_what_is_processed_and_old_enough_is_removed(journal: Journal, ledger_url: str) -> None:
    read(ledger_url, journal, 0, 11, 12)
    arguments = ["journal", "prune", journal.storage.url, "--older-than", "0s"]
    dry = invoke(ledger_url, *arguments, "--dry-run")
    assert dry.stdout.endswith("2 blocks with 10 records would be removed, 0.0 MiB.\n")
    assert journal.lane_bounds(0) == (0, 12)
    result = invoke(ledger_url, *arguments)
    assert result.exit_code == 0
    header, lane0, lane7, _ = result.stdout.splitlines()
    assert header.split() == ["lane", "start", "removed", "MiB", "kept", "MiB", "because"]
    assert cells(lane0)[:6] == ["0", "10", "2", "0.0", "1", "0.0"]
    assert cells(lane0)[6].strip().endswith("is its last")
    assert cells(lane7)[6].strip() == "there is no block"
    assert result.stdout.endswith("2 blocks with 10 records removed, 0.0 MiB.\n")
    assert values_of(journal) == [b"10", b"11"]
    again = invoke(ledger_url, *arguments)
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (
        0,
        "0 blocks with 0 records removed, 0.0 MiB.",
    )


def test_why_nothing_is_removed_is_told(journal: Journal, ledger_url: str) -> None:
    failed = read(ledger_url, journal, 2, 4, 11, 12, fails=True)

    def because(*more: str) -> str:
        result = invoke(
            ledger_url, "journal", "prune", journal.storage.url, "--dry-run", "--older-than", *more
        )
        return cells(result.stdout.splitlines()[1])[6].strip()

    assert because("0s") == f"orders: batch {failed[:8]} is failed"
    with Ledger.open(ledger_url) as ledger:
        ledger.take(failed, "me", 1_000)
        assert because("0s") == f"orders: batch {failed[:8]} is backfilling"
        ledger.backfilled(failed, "me")
    assert because("7 days") == "the next block is too young"
    assert because("0s", "--without", "orders", "--unread") == "the last block of a lane stays"


def test_one_lane_is_pruned_without_a_gate_that_reads_others_only(
    journal: Journal, ledger_url: str
) -> None:
    with journal.writer(7) as writer:
        writer.append(numbered(0, 2))
        writer.append(numbered(2, 4))
    read(ledger_url, journal, 0, 2, 12)
    arguments = ["journal", "prune", journal.storage.url, "--older-than", "0s", "--lane", "7"]
    held = invoke(ledger_url, *arguments)
    assert cells(held.stdout.splitlines()[1])[6].strip() == "orders has read nothing of it yet"
    result = invoke(ledger_url, *arguments, "--without", "orders", "--unread")
    assert result.stdout.endswith("1 block with 2 records removed, 0.0 MiB.\n")
    assert journal.bounds() == {0: (0, 12), 7: (2, 4)}


def test_what_is_removed_is_told_as_json(journal: Journal, ledger_url: str) -> None:
    last = read(ledger_url, journal, 5, 12)
    sizes = [block.stored_bytes for block in journal.blocks(0)]
    result = invoke(
        ledger_url, "journal", "prune", journal.storage.url, "--older-than", "0s", "--json"
    )
    lane0, lane7 = map(json.loads, result.stdout.splitlines())
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
        "needed_by": {
            "gate": "orders",
            "partition": 0,
            "until": 5,
            "schedule_id": last,
            "status": "success",
        },
    }
    assert (lane7["lane"], lane7["kept"], lane7["needed_by"]) == (7, None, None)
