"""``headrace verify``: what it proves, what it finds, and how it ends."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from tests.cli.histories import text_of
from tests.cli.outcomes import ERROR, NOW_MS, Shop, damage, invoke, planned
from tests.journal.samples import numbered

from headrace.cli.verify_view import SENTENCES, SPANS, verification_view
from headrace.control.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.journal import Journal
from headrace.ledger import (
    Finding,
    FindingKind,
    Ledger,
    PlannedBatch,
    PlannedRange,
    Span,
    Status,
    Verification,
)
from headrace.ledger.tables import control, failure, gate


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """A ledger whose gate has processed 50 offsets in five batches."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
        for at in range(0, 50, 10):
            ledger.succeed(ledger.begin(planned(at, at + 10)).schedule_id)
    return url


def cells(line: str) -> list[str]:
    return line.rpartition(")")[2].split()


def test_a_gate_that_is_proven_is_0(ledger_url: str) -> None:
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 0
    first, _, header, span, _, *words = result.stdout.splitlines()
    assert first == "orders: proven"
    assert header.split() == ["read", "processed", "open", "dead", "lost", "missing"]
    assert span.startswith("orders-0 [0, 50) ")
    assert cells(span) == ["50", "0", "0", "0", "0"]
    said = " ".join(words)
    assert "headrace verify proves, or says where it is not so, that the batches leave out" in said
    assert "It cannot see from the ledger alone that all of these rows were changed alike" in said


def test_a_topic_that_was_made_anew_is_told_from_the_one_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
        for topic_id in ("AAAA", "BBBB"):
            batch = planned(0, 10)
            ranges = tuple(replace(each, topic_id=topic_id) for each in batch.ranges)
            ledger.succeed(ledger.begin(replace(batch, ranges=ranges)).schedule_id)
    result = invoke(url, "verify")
    assert result.exit_code == 0
    assert "orders-0 [0, 10) topic id AAAA " in result.stdout
    assert "orders-0 [0, 10) topic id BBBB " in result.stdout


def test_what_is_pruned_is_told_with_what_is_known_of_it_still(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        ledger.prune(NOW_MS * 2)
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "orders: proven"
    assert lines[2].split() == ["read", "processed", "pruned", "open", "dead", "lost", "missing"]
    assert cells(lines[3]) == ["10", "40", "0", "0", "0", "0"]
    words = " ".join(result.stdout.split())
    assert "of these offsets the batches are deleted. None was deleted before" in words
    (span,) = json.loads(invoke(ledger_url, "verify", "--json").stdout)["spans"]
    assert (span["processed"], span["pruned"]) == (10, 40)


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_open_is_3_and_each_batch_is_told(shop: Shop, width: int) -> None:
    result = invoke(shop.url, "verify", width=width)
    assert result.exit_code == 3
    assert max(map(len, result.stdout.splitlines())) <= width
    words = " ".join(result.stdout.split())
    assert "orders: no gap or overlap, but not all is processed yet, 11 dead" in words
    assert f"batch {shop.failed[:8]} with orders-0 [10, 20) is failed: PriceError: pri" in words
    assert f"batch {shop.open[:8]} with orders-0 [60, 70) is in_progress." in words
    assert f"batch {shop.bad_part[:8]} with orders-0 [50, 51) is dead: PriceError: pri" in words
    assert f"batch {shop.dead[:8]} with orders-0 [40, 50) is dead: DataLossError" in words
    assert shop.split[:8] not in words


def test_what_is_dead_or_lost_is_explained_and_told(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        key = ledger.begin(planned(60, 70)).schedule_id
        ledger.record_losses("orders", [OffsetRange("orders", 0, 50, 60)])
        ledger.fail(key, ERROR)
        ledger.take(key, "me", 1_000)
        ledger.bury(key, "me", ERROR)
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 0
    assert result.stdout.startswith("orders: proven, 10 dead, 10 lost\n")
    assert "orders-0 [50, 60) was gone before it was read." in result.stdout


def test_a_range_that_is_dropped_is_4(ledger_url: str) -> None:
    damage(ledger_url, delete(failure).where(failure.c.start_offset == 20))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    assert "orders: BROKEN" in result.stdout
    assert "gap  orders-0 [20, 30) lies between batch" in result.stdout
    assert "no batch reads it" in result.stdout


def test_a_range_that_is_shifted_is_4(ledger_url: str) -> None:
    damage(
        ledger_url,
        update(failure)
        .where(failure.c.start_offset == 20)
        .values(start_offset=17, until_offset=27),
    )
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    assert "orders-0 [17, 20) is read by both batch" in result.stdout
    assert "orders-0 [27, 30) lies between batch" in result.stdout


def test_a_part_that_is_lost_is_4(shop: Shop) -> None:
    damage(shop.url, delete(failure).where(failure.c.schedule_id == shop.good_part))
    result = invoke(shop.url, "verify")
    assert result.exit_code == 4
    assert f"orders-0 [51, 60) is in no part of batch {shop.split[:8]}" in result.stdout


def test_a_dead_batch_without_a_reason_is_4(ledger_url: str) -> None:
    damage(ledger_url, update(control).values(status=Status.DEAD))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    assert "is dead, and nothing says why." in result.stdout


def test_runs_are_told_apart_and_what_lies_between_them_is_a_note(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        ledger.succeed(ledger.begin(planned(70, 80, run_id="another run")).schedule_id)
        ledger.succeed(ledger.begin(planned(75, 80, run_id="a third run")).schedule_id)
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 0
    assert "run       read" in result.stdout
    assert "another   orders-0 [70, 80)" in result.stdout
    words = " ".join(result.stdout.split())
    assert "orders-0 [50, 70) lies between what run run and run another read" in words
    assert "orders-0 [75, 80) is read by both run another and run a third" in words


def test_the_worst_of_several_gates_is_the_exit_status(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        for gate in ("a", "b"):
            ledger.declare_gate(gate, interval_ms=1, source="kafka", estimator="pid")
        ledger.begin(planned(0, 10, gate="a"))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 3
    assert "nothing to prove yet: gate b has begun no batch" in result.stdout
    assert "orders: proven" in result.stdout
    assert invoke(ledger_url, "verify", "--gate", "orders").exit_code == 0
    damage(ledger_url, delete(failure).where(failure.c.start_offset == 20))
    assert invoke(ledger_url, "verify").exit_code == 4


def test_a_gate_that_has_begun_no_batch_has_nothing_to_prove(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
    result = invoke(url, "verify")
    assert result.exit_code == 0
    assert result.stdout.startswith("nothing to prove yet: gate orders has begun no batch\n")
    as_json = invoke(url, "verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["verdict"]) == (0, "empty")


@pytest.mark.parametrize(("column", "value"), [("status", "done"), ("kind", "batch")])
def test_a_row_that_says_what_no_batch_is_is_4_and_named(
    ledger_url: str, column: str, value: str
) -> None:
    with Ledger.open(ledger_url) as ledger:
        key = ledger.begin(planned(60, 70)).schedule_id
        ledger.fail(key, ERROR)
    damage(ledger_url, update(control).where(control.c.schedule_id == key).values({column: value}))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    words = " ".join(result.stdout.split())
    assert f"Batch {key} has the {column} {value!r}, which is none of" in words
    listed = invoke(ledger_url, "batches")
    assert isinstance(listed.exception, LedgerError)
    assert f"has the {column} {value!r}" in str(listed.exception)


def test_json_is_one_object_per_gate(shop: Shop) -> None:
    result = invoke(shop.url, "verify", "--json")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    more = {"contradictions", "notes", "proves"}
    assert told.keys() == {"gate", "verdict", "spans", "findings"} | more
    assert "It cannot see from the ledger alone" in told["proves"]
    assert (told["gate"], told["verdict"]) == ("orders", "open")
    place = {"topic", "partition", "start", "until"}
    (span,) = told["spans"]
    assert span.keys() == place | {f.name for f in fields(Span)} - {"offsets"}
    assert (span["start"], span["until"], span["processed"], span["open"]) == (0, 70, 19, 40)
    assert span["since_ms"] == NOW_MS + 1_000
    first = told["findings"][0]
    assert first.keys() == place | {f.name for f in fields(Finding)} - {"offsets"}
    assert (first["kind"], first["schedule_id"], first["status"]) == ("open", shop.failed, "failed")
    assert first["error"]["error_class"] == ERROR.error_class


def test_a_ledger_without_a_gate_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    Ledger.open(url).close()
    for arguments in ([], ["--json"], ["--gate", "orders"]):
        result = invoke(url, "verify", *arguments)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
        assert "has no gate yet, so nothing is proven" in result.stderr
        assert "a SQLite file is copied with its -wal" in result.stderr


def test_a_gate_that_the_ledger_does_not_have_is_3(ledger_url: str) -> None:
    for arguments in ([], ["--json"]):
        result = invoke(ledger_url, "verify", "--gate", "order", *arguments)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "has no gate 'order', so nothing is proven; the gates it has: or" in result.stderr


def test_the_file_of_a_ledger_that_is_copied_without_its_wal_is_3(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    Ledger.open(f"sqlite:///{path}").close()
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="kafka", estimator="pid")
        ledger.succeed(ledger.begin(planned(0, 10)).schedule_id)
        shutil.copy(path, tmp_path / "copy.db")
        assert invoke(f"sqlite:///{path}", "verify").exit_code == 0
    assert invoke(f"sqlite:///{tmp_path}/copy.db", "verify").exit_code == 3


@pytest.mark.parametrize("start", [0, 40])
def test_the_first_or_the_newest_batch_that_is_deleted_is_4(ledger_url: str, start: int) -> None:
    key = planned(start, start + 10).schedule_id
    for table in (failure, control):
        damage(ledger_url, delete(table).where(table.c.schedule_id == key))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    words = " ".join(result.stdout.split())
    assert f"missing orders-0 [{start}, {start + 10}) was planned by run run" in words
    assert "has planned 50 offsets of orders, and its batches have 40." in words
    told = json.loads(invoke(ledger_url, "verify", "--json").stdout)
    assert (told["verdict"], len(told["contradictions"])) == ("broken", 1)


def test_the_row_of_a_gate_that_is_deleted_is_4(ledger_url: str) -> None:
    damage(ledger_url, delete(gate))
    result = invoke(ledger_url, "verify")
    assert result.exit_code == 4
    assert "The row that declares the gate is not there" in " ".join(result.stdout.split())


def a_span(partition: int) -> Span:
    return Span("run", OffsetRange("orders", partition, 0, 10), 1)


def test_of_many_spans_those_are_shown_of_which_there_is_something_to_say() -> None:
    spans = [replace(a_span(number), processed=10) for number in range(500)]
    quiet = text_of(verification_view("orders", Verification(tuple(spans), ())))
    assert "500 partitions" in quiet
    assert "orders-" not in quiet
    assert "5,000" in quiet
    spans[400] = replace(a_span(400), processed=7, open=3)
    shown = text_of(verification_view("orders", Verification(tuple(spans), ())))
    assert "orders-400 [0, 10)" in shown
    assert "and 499 more" in shown
    assert "4,990" in shown
    telling = tuple(replace(a_span(number), missing=10) for number in range(500))
    shown = text_of(verification_view("orders", Verification(telling, ())))
    assert shown.count("[0, 10)") == SPANS
    assert f"and {500 - SPANS} more" in shown


def test_a_batch_with_many_ranges_is_one_sentence_and_many_batches_are_counted() -> None:
    def a_finding(batch: int, partition: int) -> Finding:
        offsets = OffsetRange("orders", partition, 0, 10)
        key = f"{batch:08}"
        return Finding(FindingKind.OPEN, offsets, "run", key, status=Status.FAILED)

    findings = [a_finding(batch, partition) for batch in range(50) for partition in range(3)]
    view = verification_view("orders", Verification((a_span(0),), tuple(findings)))
    shown = text_of(view, width=120)
    assert (
        "batch 00000007 with 30 offsets in 3 partitions, first orders-0 [0, 10), is fail" in shown
    )
    assert shown.count("open  batch") == SENTENCES
    assert f"and {50 - SENTENCES} more; --json tells them all." in shown


def test_a_journal_is_asked_where_it_ends(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 12))
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1, source="journal", estimator="pid")
        for start, until in ((3, 10), (10, 14)):
            offsets = PlannedRange(OffsetRange("orders", 0, start, until), topic_id=journal.id)
            batch = PlannedBatch("orders", "run", (offsets,), "rate", journal.storage.url)
            ledger.succeed(ledger.begin(batch).schedule_id)
            result = invoke(url, "verify", "--source", width=200)
            assert result.exit_code == (0 if until <= 12 else 4), result.stdout
    assert "has orders-0 [0, 3), which lies before all that was planned." in result.stdout
    assert (
        "The journal has orders-0 up to 12, and the ledger has batches of orders-0 [3, 14)"
        in result.stdout
    )
    assert invoke(url, "verify", "--option", "a=b").exit_code == 1
