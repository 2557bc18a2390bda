"""Whatever is deleted, cut or made longer behind a ledger's back, it is not called proven.

The ledger is damaged by plain SQL, row by row and column by column: what is to be found is known
from what was changed, and from nothing that the proof itself looks at.
"""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given
from tests.ledger.readers import Readers, Step, steps
from tests.services.examples import examples
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import (
    DeadLetter,
    DeadLetterStatus,
    ErrorReport,
    FindingKind,
    Ledger,
    PlannedBatch,
    PlannedRange,
    Verdict,
    verify,
)
from headrace.testing import ManualClock

pytestmark = pytest.mark.nightly  # each row and value in turn: it takes half a minute

GATE = "orders"
IDLE = "another"
"""A gate that has read nothing, so that nothing can be missing without it."""
ERROR = ErrorReport("ValueError", "no", "Traceback ...")
NUMBERS = {
    "batch_range": ("partition", "start_offset", "until_offset"),
    "pruned": ("partition", "start_offset", "until_offset"),
    "lost": ("from_offset", "until_offset"),
    "batch": ("planned_records",),
    "gate": ("begins", "lost_offsets"),
    "checkpoint": ("offsets", "begins"),
}
NAMES = {
    "batch": ("batch_key", "gate", "checkpoint_id", "parent"),
    "batch_range": ("batch_key", "topic", "topic_id"),
    "pruned": ("gate", "checkpoint_id", "topic", "topic_id"),
    "position": ("gate", "topic_id", "checkpoint_id"),
    "checkpoint": ("gate", "checkpoint_id", "topic", "topic_id", "begun"),
    "gate": ("name", "begun"),
}
BY_PARTITION = {
    "position": ("until_offsets",),
    "checkpoint": ("start_offsets", "until_offsets"),
}
STORIES = itertools.count()
EVIDENCE = ("gate", "batch", "batch_range", "lost", "pruned", "position", "checkpoint")


@dataclass
class Story:
    """A gate's life, written by the ledger's own methods."""

    ledger: Ledger
    clock: ManualClock
    gate: str

    def batch(self, run: str, topic_id: str | None, *ranges: tuple[int, int, int]) -> PlannedBatch:
        planned = tuple(
            PlannedRange(OffsetRange("orders", partition, start, until), topic_id=topic_id)
            for partition, start, until in ranges
        )
        return PlannedBatch(self.gate, run, planned, "rate", "localhost:9092")

    def process(self, run: str, topic_id: str | None, *ranges: tuple[int, int, int]) -> str:
        key = self.ledger.batches.begin(self.batch(run, topic_id, *ranges)).batch_key
        self.clock.now_ms += 1_000
        self.ledger.batches.succeed(key)
        return key

    def lose(self, topic_id: str, start: int, until: int) -> None:
        lost = [OffsetRange("orders", 0, start, until)]
        self.ledger.history.record_losses(self.gate, lost, {"orders": topic_id})

    def isolate(self, run: str, topic_id: str, start: int, until: int) -> None:
        """Split a batch of two partitions, and bury its first record."""
        whole = self.batch(run, topic_id, (0, start, until), (1, start, until))
        key = self.ledger.batches.begin(whole).batch_key
        self.ledger.batches.attach(key, 1, owner="me", lease_ms=60_000)
        parts = [
            self.batch(run, topic_id, (0, start, start + 1)),
            self.batch(run, topic_id, (0, start + 1, until), (1, start, until)),
        ]
        bad, good = self.ledger.batches.split(key, parts, "me", 60_000)
        letter = DeadLetter("orders", 0, start, None, b"?", None, 1, 0, ERROR)
        self.ledger.dead_letters.add(bad.batch_key, letter)
        self.ledger.batches.succeed(good.batch_key)
        self.ledger.batches.succeed(key)
        self.clock.now_ms += 1_000

    def run(self) -> None:
        """Losses, isolation, a recreated topic, fresh checkpoints, old brokers, old history."""
        self.lose("A", 0, 5)
        self.process("first", "A", (0, 5, 10), (1, 0, 10))
        self.isolate("first", "A", 10, 20)
        self.process("first", "A", (0, 20, 30))
        for letter in self.ledger.dead_letters.oldest(gate_name=self.gate):
            self.ledger.dead_letters.resolve(
                letter.dead_letter_id, DeadLetterStatus.DROPPED, "as agreed"
            )
        self.ledger.history.prune(self.clock.now_ms - 1_500)
        self.lose("A", 30, 40)
        self.process("first", "A", (0, 40, 50), (1, 20, 25))
        self.process("first", "A", (0, 50, 60))
        self.process("first", "B", (0, 0, 7), (1, 0, 7))
        crashed = self.batch("first", "B", (0, 7, 9))
        self.ledger.batches.begin(crashed)
        self.ledger.batches.begin(crashed)
        self.ledger.batches.succeed(crashed.batch_key)
        self.isolate("second", "B", 3, 8)
        self.process("second", "B", (1, 8, 9))
        self.process("of an old broker", None, (0, 0, 10), (1, 0, 4))
        self.process("of an old broker", None, (0, 10, 20))
        last = self.process("of an old broker", None, (0, 20, 21), (1, 4, 5))
        self.ledger.batches.begin(self.batch("of an old broker", None, (0, 20, 21), (1, 4, 5)))
        assert self.ledger.batches.get(last)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a healthy ledger."""
    path = tmp_path_factory.mktemp("healthy") / "headrace.db"
    clock = ManualClock()
    with new_ledger(f"sqlite:///{path}", clock=clock) as ledger:
        for gate in (GATE, IDLE):
            ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
        Story(ledger, clock, GATE).run()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file.execute("PRAGMA journal_mode = DELETE")
    return path


def rows_of(path: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as file:
        file.row_factory = sqlite3.Row
        return [dict(row) for row in file.execute(" ".join(['SELECT rowid AS "#", * FROM', table]))]


def deletions(path: Path, table: str) -> Iterator[str]:
    for row in rows_of(path, table):
        if row.get("name") == IDLE:
            continue
        yield " ".join(["DELETE FROM", table, "WHERE rowid =", str(row["#"])])


def changes(path: Path, table: str) -> Iterator[str]:
    """Every column that says what was read, with every value that is near to what it is."""
    rows = rows_of(path, table)
    for row in rows:
        if row.get("name") == IDLE:
            continue
        to: list[tuple[str, str]] = []
        for column in NUMBERS.get(table, ()):
            to += [(column, f'"{column}" + 1'), (column, f'"{column}" - 1')]
        for column in NAMES.get(table, ()):
            others = {other[column] for other in rows} - {row[column], None}
            to += [(column, repr(value)) for value in sorted({*others, "another"})]
            if column == "begun":
                to.append((column, "NULL"))
        for column in BY_PARTITION.get(table, ()):
            by_partition = json.loads(row[column])
            for partition, offset in by_partition.items():
                rest = {key: value for key, value in by_partition.items() if key != partition}
                for changed in (rest, *({**rest, partition: offset + by} for by in (-1, 1))):
                    to.append((column, f"'{json.dumps(changed)}'"))
            to.append((column, f"""'{json.dumps({**by_partition, "7": 3})}'"""))
        for column, value in to:
            if column in ("begun", "begins") and row["begins"] < max(r["begins"] for r in rows):
                continue  # of a checkpoint that the gate has left, nothing follows from it
            row_number = str(row["#"])
            yield " ".join(
                ["UPDATE OR IGNORE", table, "SET", column, "=", value, "WHERE rowid =", row_number]
            )


def no_numbers(path: Path) -> Iterator[str]:
    """Every number of a table's first row that says what was read, as a text and as a fraction."""
    others = {"batch": ("created_time_ms",), "lost": ("partition",)}
    for table, columns in NUMBERS.items():
        row = next(row for row in rows_of(path, table) if row.get("name") != IDLE)
        where = ["WHERE rowid =", str(row["#"])]
        for column in (*columns, *others.get(table, ())):
            for value in ("'x'", "0.5"):
                yield " ".join(["UPDATE", table, "SET", column, "=", value, *where])


def verdicts(path: Path) -> set[Verdict]:
    with Ledger.open(f"sqlite:///{path}", create=False) as ledger:
        names = {gate.name for gate in ledger.gates.all()} | set(ledger.history.undeclared_gates())
        return {verify(ledger, name).verdict for name in names}


def test_the_ledger_is_proven_as_it_is(healthy: Path) -> None:
    with Ledger.open(f"sqlite:///{healthy}", create=False) as ledger:
        found = verify(ledger, GATE)
    assert (found.contradictions, found.verdict) == ((), Verdict.PROVEN)
    for table in EVIDENCE:
        assert rows_of(healthy, table), f"there is something to damage in {table}"


@pytest.mark.parametrize(
    ("table", "foreign_keys"), [("batch", "ON"), *((table, "OFF") for table in EVIDENCE)]
)
def test_a_row_that_is_deleted_or_changed_is_found(
    healthy: Path, tmp_path: Path, table: str, foreign_keys: str
) -> None:
    tried, unseen = 0, []
    for statement in [*deletions(healthy, table), *changes(healthy, table)]:
        damaged = tmp_path / "damaged.db"
        shutil.copy(healthy, damaged)
        with closing(sqlite3.connect(damaged, isolation_level=None)) as file:
            file.execute(f"PRAGMA foreign_keys = {foreign_keys}")
            try:
                changed = file.execute(statement).rowcount
            except sqlite3.IntegrityError:
                continue
        if changed:
            tried += 1
            if verdicts(damaged) <= {Verdict.PROVEN, Verdict.EMPTY}:
                unseen.append(statement)
    assert unseen == []
    assert tried or foreign_keys == "ON"


def test_what_is_no_number_is_named_with_its_row(healthy: Path, tmp_path: Path) -> None:
    key = rows_of(healthy, "batch_range")[0]["batch_key"]
    sentences = set()
    for statement in no_numbers(healthy):
        damaged = tmp_path / "damaged.db"
        shutil.copy(healthy, damaged)
        with closing(sqlite3.connect(damaged, isolation_level=None)) as file:
            file.execute(statement)
        with Ledger.open(f"sqlite:///{damaged}", create=False) as ledger:
            try:
                found = verify(ledger, GATE)
            except LedgerError as error:
                sentences.add(str(error))
            else:
                assert found.contradictions, statement
    assert (
        f"The end of a range of orders of batch {key} is 'x', which is no whole number, so the row"
        " was changed or damaged; restore the ledger from a copy."
    ) in sentences
    assert all(each.count(". ") == 0 and each.endswith(".") for each in sentences), sentences


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps())
def test_whatever_becomes_of_batches_no_row_speaks_against_another(
    ledger: Ledger, story: list[Step]
) -> None:
    number = next(STORIES)
    names = (f"a{number}", f"b{number}")
    readers = Readers(ledger, f"topic {number}", names)
    for step in story:
        readers.step(step)
    for name in names:
        found = verify(ledger, name)
        assert found.contradictions == ()
        kinds = {finding.kind for finding in found.findings}
        assert not kinds & {FindingKind.MISSING, FindingKind.UNPLANNED}


def test_a_gate_that_runs_meanwhile_is_proven(ledger: Ledger) -> None:
    """A batch is begun after each look that the proof takes at the ledger."""
    begun = 0

    def begin(look: Any) -> Any:
        def looking(*arguments: Any) -> Any:
            nonlocal begun
            found = look(*arguments)
            begun += 1
            ranges = (PlannedRange(OffsetRange("orders", 0, begun, begun + 1), topic_id="A"),)
            ledger.batches.begin(PlannedBatch("orders", "run", ranges, "rate", ""))
            return found

        return looking

    class Running:
        """A store of the ledger, which goes on."""

        def __init__(self, store: object) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return begin(getattr(self._store, name))

    running = SimpleNamespace(
        batches=Running(ledger.batches),
        history=Running(ledger.history),
        dead_letters=Running(ledger.dead_letters),
        missed=Running(ledger.missed),
    )
    for _ in range(3):
        found = verify(cast("Ledger", running), "orders")
        assert (found.contradictions, found.verdict) == (
            (),
            Verdict.OPEN if found.spans else Verdict.EMPTY,
        )
        assert {each.kind for each in found.findings} <= {FindingKind.OPEN}
