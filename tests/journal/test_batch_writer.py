"""A batch is in its lane whole and once, whatever crashes, and whoever runs it again."""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from tests.journal.samples import NOW_MS, numbered, values_of
from tests.journal.shim import EVERY_SIXTH_OR_EACH, Fast, Files, Mark, Recorder, crashes
from tests.journal.stories import again, on_disk, opened

from headrace.core.ranges import OffsetRange
from headrace.errors import (
    CorruptionError,
    HeadraceError,
    JournalError,
    LaneTakenError,
    OptionError,
)
from headrace.journal import Journal, verify
from headrace.journal.batch_writer import BatchWriter, new_attempt, stage
from headrace.journal.storage.local import LocalStorage
from headrace.source.log import HEADERS

KEYS = ("a", "b")


def rows(*values: str) -> pa.RecordBatch:
    """Return the batch that a task is given."""
    count = len(values)
    return pa.record_batch(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "headers": pa.nulls(count, HEADERS),
        }
    )


def staged(journal: Journal, *tasks: pa.RecordBatch) -> list[str]:
    """Stage these records, one task each; return the names of the files."""
    attempt = new_attempt()
    return [
        name
        for number, batch in enumerate(tasks)
        for name in stage(journal, 0, attempt, number, [batch], timestamp_ms=NOW_MS)
    ]


def write(journal: Journal, key: str, attempt: int, *, settled: Sequence[str] = ()) -> None:
    """Run a batch, which has more records with every attempt, in two tasks."""
    with BatchWriter(journal, 0) as writer:
        writer.forget(settled)
        if key in writer.written:
            return
        first = rows(*(f"{key}{attempt}.{number}" for number in range(attempt)))
        writer.commit(key, staged(journal, first, rows(f"{key}{attempt}.last")))


def whole(key: str, attempt: int) -> list[str]:
    """Return the values that a batch's attempt writes."""
    return [*(f"{key}{attempt}.{number}" for number in range(attempt)), f"{key}{attempt}.last"]


def values_in(journal: Journal) -> list[str]:
    return [value.decode() for value in values_of(journal)]


def attempts_in(values: list[str]) -> dict[str, int]:
    """Which attempt of each batch is there; each must be whole, and there once."""
    found: dict[str, int] = {}
    while values:
        key, attempt = values[0][0], int(values[0][1])
        expected = whole(key, attempt)
        assert key not in found, f"{key} is there twice"
        assert values[: len(expected)] == expected
        found[key], values = attempt, values[len(expected) :]
    return found


def life(recorder: Recorder, attempt: int = 1) -> None:
    """Two batches are run; the ledger knows of the first before the second begins."""
    journal = again(lambda: opened(recorder.base, recorder))
    done = {mark.value for mark in recorder.told if mark.what == "settled"}
    if "a" not in done:
        run(recorder, journal, "a", attempt)
        recorder.mark("settled", "a")
    run(recorder, journal, "b", attempt, settled=("a",))


def run(
    recorder: Recorder, journal: Journal, key: str, attempt: int, *, settled: Sequence[str] = ()
) -> None:
    try:
        write(journal, key, attempt, settled=settled)
    except JournalError:
        write(journal, key, attempt + 1, settled=settled)
    recorder.mark("written", key)
    recorder.mark("seen", tuple(again(lambda: values_in(journal))))


def violations(base: Path, marks: list[Mark]) -> Iterator[str]:
    """Yield the violated conditions after a new process has run the unsettled batches again."""
    settled = [mark.value for mark in marks if mark.what == "settled"]
    seen = next((mark.value for mark in reversed(marks) if mark.what == "seen"), ())
    assert isinstance(seen, tuple)
    try:
        journal = opened(base, Fast())
        for key in KEYS:
            if key not in settled:
                write(journal, key, 7)
        write(journal, "c", 1)
        values = values_in(journal)
        if tuple(values[: len(seen)]) != seen:
            yield f"{seen} was there, and {values} is"
        found = attempts_in(values)
        if set(found) != {*KEYS, "c"}:
            yield f"it has {found}"
        if any(found[str(mark.value)] == 7 for mark in marks if mark.what == "written"):
            yield f"what was written was run again: {found}"
        if findings := verify(journal).findings:
            yield str(findings)
    except (HeadraceError, AssertionError) as error:
        yield f"{type(error).__name__}: {error}"


def explored(
    recorder: Recorder, scratch: Path, *, since: str = "", within: int | None = None
) -> Iterator[str]:
    for files, marks in crashes(recorder, since=since, within=within):
        with on_disk(files, scratch) as base:
            yield from violations(base, marks)


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


@pytest.mark.integration
def test_no_crash_loses_a_batch_or_writes_it_twice(tmp_path: Path) -> None:
    recorder = Recorder(folder(tmp_path, "base"))
    life(recorder)
    assert list(explored(recorder, tmp_path / "after")) == []


@pytest.mark.nightly
def test_no_crash_of_a_recovery_does_either(tmp_path: Path) -> None:
    recorder = Recorder(folder(tmp_path, "base"))
    life(recorder)
    seen: set[Files] = set()
    for files, marks in crashes(recorder):
        if files in seen:
            continue
        seen.add(files)
        if len(seen) % 20:
            continue  # a twentieth of the states: each is crashed at every moment of its recovery
        with on_disk(files, tmp_path / "first") as base:
            recovery = Recorder(base, told=marks)
            life(recovery, attempt=3)
        assert list(explored(recovery, tmp_path / "second")) == []


@pytest.mark.integration
@EVERY_SIXTH_OR_EACH
def test_no_crash_does_after_any_call_has_failed(tmp_path: Path, every: int) -> None:
    count = Recorder(folder(tmp_path, "count"))
    life(count)
    assert count.calls > 50
    for fault in range(random.randrange(every), count.calls, every):
        recorder = Recorder(folder(tmp_path, f"base{fault}"), fault=fault)
        life(recorder)
        found = list(explored(recorder, tmp_path / "after", since="failed", within=12))
        assert found == [], f"after call {fault} has failed"
        shutil.rmtree(recorder.base)


@pytest.mark.integration
def test_a_defect_is_found_by_these(tmp_path: Path) -> None:
    """A writer that forgets what it has decided when the blocks are in the lane."""

    class Forgetful(BatchWriter):
        def commit(self, key: str, names: Sequence[str]) -> OffsetRange:
            offsets = super().commit(key, names)
            self.forget([key])
            return offsets

    recorder = Recorder(folder(tmp_path, "base"))
    with patch(f"{__name__}.BatchWriter", Forgetful):
        life(recorder)
        assert any("twice" in found for found in explored(recorder, tmp_path / "after"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(str(tmp_path / "orders"), create=True)


def test_a_batch_whose_blocks_cannot_be_named_is_written_and_read_later(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    with BatchWriter(journal, 0) as writer:
        names = staged(journal, rows("x"))
        with patch.object(LocalStorage, "place", side_effect=OSError("no room")):
            assert writer.commit("k", names).until == 1
    assert "not yet to be read there: no room" in caplog.text
    assert journal.lane_bounds(0) == (0, 0)
    with journal.writer(0) as other:  # any writer finishes it
        other.append(numbered(1, 3))
    assert values_in(journal) == ["x", "1", "2"]


def test_nobody_else_has_the_lane_meanwhile(journal: Journal) -> None:
    with BatchWriter(journal, 0), pytest.raises(LaneTakenError, match="is being written by"):
        BatchWriter(journal, 0)
    with BatchWriter(journal, 0), pytest.raises(LaneTakenError):
        journal.writer(0)


def test_what_was_staged_and_never_decided_is_removed(journal: Journal, tmp_path: Path) -> None:
    with BatchWriter(journal, 0):
        staged(journal, rows("x"))
    with BatchWriter(journal, 0) as writer:
        assert writer.written == ()
    assert list((tmp_path / "orders/.staged-0").iterdir()) == []
    assert verify(journal).findings == ()


def test_what_is_pruned_is_not_brought_back(journal: Journal) -> None:
    write(journal, "a", 1)
    journal.remove_before(0, 2)
    write(journal, "b", 1)
    assert values_in(journal) == whole("b", 1)


def test_blocks_are_neither_tiny_nor_huge(journal: Journal) -> None:
    with BatchWriter(journal, 0) as writer:
        small = [rows(str(n)) for n in range(5)]
        names = list(stage(journal, 0, new_attempt(), 0, small, timestamp_ms=NOW_MS))
        assert len(names) == 1
        writer.commit("k", names)
    assert values_in(journal) == list("01234")


def test_a_damaged_manifest_is_told(journal: Journal, tmp_path: Path) -> None:
    write(journal, "a", 1)
    (tmp_path / "orders/.staged-0/a.manifest").write_text('{"key": "a", "blocks": []}')
    with pytest.raises(CorruptionError, match=r"a\.manifest is damaged"):
        BatchWriter(journal, 0)


def test_a_manifest_beyond_the_end_is_told(journal: Journal, tmp_path: Path) -> None:
    write(journal, "a", 1)
    write(journal, "b", 1)
    for block in (tmp_path / "orders/0").glob("*.block"):
        block.unlink()
    (tmp_path / "orders/.staged-0/a.manifest").unlink()
    with pytest.raises(CorruptionError, match=r"goes on at offset 2, but lane 0 ends at 0"):
        BatchWriter(journal, 0)


def test_a_key_that_is_none_is_refused(journal: Journal) -> None:
    with BatchWriter(journal, 0) as writer, pytest.raises(OptionError, match="cannot be used"):
        writer.commit("../k", staged(journal, rows("x")))
