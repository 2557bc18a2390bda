"""Power failures at any moment: what was acknowledged or seen stays, and all of it is whole."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.journal.shim import EVERY_SIXTH_OR_EACH, Change, Recorder, Sync, SyncFolder, Write
from tests.journal.stories import append, explored, explored_twice, life, opened

from headrace.errors import JournalError
from headrace.journal import Journal
from headrace.journal.block import Part
from headrace.journal.storage.local import AppendedFile, LocalStorage, write_all

pytestmark = pytest.mark.integration  # each state of a disk after a crash: it takes half a minute


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


def new_base(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"base{number}"
    folder.mkdir()
    return folder


def test_no_crash_loses_what_was_acknowledged(base: Path, tmp_path: Path) -> None:
    recorder = Recorder(base)
    life(recorder)
    kinds = {type(operation) for operation in recorder.log}
    assert {Change, Write, Sync, SyncFolder} <= kinds
    assert list(explored(recorder, tmp_path)) == []


@pytest.mark.nightly
@EVERY_SIXTH_OR_EACH
def test_no_crash_of_a_recovery_does_either(base: Path, tmp_path: Path, every: int) -> None:
    recorder = Recorder(base)
    life(recorder)
    assert list(explored_twice(recorder, tmp_path, every)) == []


@EVERY_SIXTH_OR_EACH
def test_no_crash_does_after_any_call_has_failed(tmp_path: Path, every: int) -> None:
    """Each call of one life fails once; that life goes on, and crashes some operations later.

    The remains of the failure are then synced, and it is any life again.
    """
    whole = Recorder(new_base(tmp_path, 0))
    life(whole)
    assert whole.calls > 50
    for fault in range(random.randrange(every), whole.calls, every):
        recorder = Recorder(new_base(tmp_path, fault + 1), fault=fault)
        life(recorder)
        found = list(explored(recorder, tmp_path, since="failed", within=20))
        assert found == [], f"after call {fault} has failed"


class Onlooker:
    """Looks at a journal once, after so many operations of its writer."""

    def __init__(self, after: int, storage: type[LocalStorage] = LocalStorage) -> None:
        self._after = after
        self._storage = storage
        self.recorder: Recorder | None = None

    def __call__(self, count: int) -> None:
        if self.recorder is not None and count == self._after:
            recorder, self.recorder = self.recorder, None
            storage = self._storage(recorder.base / "a/orders", recorder)
            try:
                _, end = Journal.in_storage(storage, "orders").lane_bounds(0)
            except JournalError:
                return  # there is no journal yet
            recorder.mark("seen", end)


def watched(tmp_path: Path, storage: type[LocalStorage] = LocalStorage) -> Iterator[str]:
    """Yield the violated conditions if a reader looks once, at any moment of a life."""
    whole = Recorder(new_base(tmp_path, 0))
    life(whole)
    for after in range(1, len(whole.log)):
        look = Onlooker(after, storage)
        recorder = Recorder(new_base(tmp_path, after), between=look)
        look.recorder = recorder
        life(recorder)
        yield from explored(recorder, tmp_path, since="seen", within=20)


def test_no_crash_takes_back_what_a_reader_has_seen(tmp_path: Path) -> None:
    assert list(watched(tmp_path)) == []


# The tests below plant defects: a test of crashes that does not find them proves nothing.


class NoFolderSync(Recorder):
    def sync_folder(self, path: Path) -> None:
        pass


class NoSync(Recorder):
    def sync(self, descriptor: int) -> None:
        pass


class NoSyncOfTheRoot(Recorder):
    def sync_folder(self, path: Path) -> None:
        if path.name != "orders":
            super().sync_folder(path)


class NoSyncAboveTheRoot(Recorder):
    def sync_folder(self, path: Path) -> None:
        if path.name in ("orders", "0"):
            super().sync_folder(path)


@pytest.mark.parametrize("disk", [NoFolderSync, NoSync, NoSyncOfTheRoot, NoSyncAboveTheRoot])
def test_a_sync_that_is_left_out_is_found(disk: type[Recorder], base: Path, tmp_path: Path) -> None:
    recorder = disk(base)
    journal = opened(base, recorder)
    recorder.mark("made", journal.id)
    append(journal, recorder, 2)
    assert any(explored(recorder, tmp_path))


class AcknowledgedUnsynced(AppendedFile):
    """A file whose bytes are acknowledged when they are written."""

    def append(self, parts: Sequence[Part]) -> None:
        write_all(self._disk, self._descriptor or 0, parts)
        self._size += sum(memoryview(part).nbytes for part in parts)


class AppendingUnsynced(LocalStorage):
    def begin(self, path: str) -> AppendedFile:
        file = super().begin(path)
        file.__class__ = AcknowledgedUnsynced
        return file


class BeginningUnsynced(LocalStorage):
    """A segment is appended to before its name is durable."""

    def begin(self, path: str) -> AppendedFile:
        where = self._root / path
        return AppendedFile(self._disk, where, self._disk.create(where), 0)


class PruningInAnyOrder(LocalStorage):
    def remove(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self._disk.unlink(self._root / folder / name)
        self._disk.sync_folder(self._root / folder)


@pytest.mark.parametrize("storage", [AppendingUnsynced, BeginningUnsynced, PruningInAnyOrder])
def test_an_order_that_is_wrong_is_found(
    storage: type[LocalStorage], base: Path, tmp_path: Path
) -> None:
    recorder = Recorder(base)
    life(recorder, storage)
    assert any(explored(recorder, tmp_path))


class PlanningWithoutSync(LocalStorage):
    def synced_size(self, path: str) -> int:
        return (self._root / path).stat().st_size


def test_a_look_at_what_is_not_durable_is_found(tmp_path: Path) -> None:
    assert any(watched(tmp_path, PlanningWithoutSync))


class Retrying(Recorder):
    """Takes a sync that has failed for one that is done, as a second one on the same file would."""

    def sync(self, descriptor: int) -> None:
        try:
            super().sync(descriptor)
        except OSError:
            return


@pytest.mark.nightly
def test_a_failed_sync_that_is_tried_again_is_found(tmp_path: Path) -> None:
    def found() -> Iterator[str]:
        for fault in range(30):
            recorder = Retrying(new_base(tmp_path, fault), fault=fault)
            life(recorder)
            yield from explored(recorder, tmp_path)

    assert any(found())
