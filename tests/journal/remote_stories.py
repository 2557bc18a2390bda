"""Tests of every journal that is reached over a network, whatever it is kept in."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.journal.queries import Query
from tests.journal.samples import append, numbered, numbers, values_of

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, JournalError, LaneTakenError
from headrace.journal import Journal, JournalFindingKind, LaneWriter, repair, verify


@dataclass(frozen=True)
class Remote:
    """A place of journals.

    Attributes:
        url: A journal's, called orders; there is none yet.
        files: The place's, for fsspec.
        root: The journal's path there.
        step: The method of ``files`` that gives a file its name.
        op: The first argument of that, if it is called for other things too.
    """

    url: str
    files: Any
    root: str
    step: str
    op: str | None = None

    def path(self, name: str) -> str:
        """Return the path of a file of lane 0."""
        return f"{self.root}/0/{name}"

    def names(self) -> list[str]:
        """The files of lane 0."""
        return [name.rpartition("/")[2] for name in self.files.ls(f"{self.root}/0", detail=False)]


class Faulty:
    """Files of a place where the next one that is given a name is not, or without an answer."""

    def __init__(self, remote: Remote, files: Any) -> None:
        self._remote = remote
        self._files = files
        self.after: str | None = None

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._files, name)
        return partial(self._give, there) if name == self._remote.step else there

    def _give(self, give: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._remote.op not in (None, arguments[0]):
            return give(*arguments, **options)
        after, self.after = self.after, None
        if after == "nothing":
            raise TimeoutError("timed out")
        answer = give(*arguments, **options)
        if after == "done":
            raise TimeoutError("timed out")
        if after == "twice":  # as a client library does whose first answer was lost
            answer = give(*arguments, **options)
        return answer


class RemoteStories:
    """Tests, for a module that has a fixture ``remote``."""

    @pytest.fixture
    def journal(self, remote: Remote) -> Journal:
        """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0."""
        made = Journal.open(remote.url, create=True)
        append(made, 3, 7, 2)
        return made

    @pytest.fixture
    def faulty(self, remote: Remote, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Faulty:
        faulty = Faulty(remote, getattr(journal.storage, "_files"))  # noqa: B009
        monkeypatch.setattr(journal.storage, "_files", faulty)
        return faulty

    @pytest.fixture
    def writer(self, journal: Journal, faulty: Faulty) -> Iterator[LaneWriter]:
        # A writer that is left open may write its mark when the next test's folder is made.
        with journal.writer(0) as writer:
            yield writer

    def test_there_is_no_journal_where_none_was_made(self, remote: Remote) -> None:
        with pytest.raises(JournalError, match=f"There is no journal {re.escape(remote.url)}"):
            Journal.open(remote.url)

    def test_a_name_that_is_taken_is_not_given_again(
        self, remote: Remote, journal: Journal
    ) -> None:
        taken = remote.path("00000000000000000010.segment")
        before, names = remote.files.cat_file(taken), sorted(remote.names())
        with pytest.raises(FileExistsError):
            journal.storage.put("0/00000000000000000010.segment", [b"another"])
        with pytest.raises(FileExistsError):
            journal.storage.set_aside(
                "0/00000000000000000003.segment", "0/00000000000000000010.segment"
            )
        assert remote.files.cat_file(taken) == before
        assert sorted(remote.names()) == names, "what was written for it is gone"
        assert values_of(journal) == numbers(range(12))

    def test_a_part_of_a_file_is_read_alone(self, journal: Journal) -> None:
        storage = journal.storage
        storage.create_folder("1")
        storage.put("1/file", [b"01234", b"56789"])
        storage.put("1/empty", [])
        assert storage.read("1/file") == b"0123456789"
        assert storage.read("1/file", 3, 4) == b"3456"
        assert storage.read("1/file", 8, 40) == b"89"
        assert storage.read("1/file", 10, 4) == storage.read("1/empty", 0, 4) == b""
        assert (storage.synced_size("1/file"), storage.synced_size("1/empty")) == (10, 0)
        for size in (None, 4):
            with pytest.raises(FileNotFoundError):
                storage.read("1/none", 0, size)
        storage.remove("1", ["none", "file"])
        assert storage.names("1") == ["empty"]

    def test_what_was_appended_is_there(self, remote: Remote, journal: Journal) -> None:
        again = Journal.open(f"{remote.url}/", create=True)
        assert (again.name, again.id) == ("orders", journal.id)
        assert again.storage.url == remote.url
        assert again.lanes() == [0]
        assert again.bounds() == {0: (0, 12)}
        assert values_of(again) == numbers(range(12))
        blocks = again.blocks(0)
        assert [(block.first, block.until) for block in blocks] == [(0, 3), (3, 10), (10, 12)]
        assert all(block.stored_bytes > 128 and block.created_ms > 0 for block in blocks)
        (batch,) = again.read(OffsetRange("orders", 0, 4, 6), ["offset", "value"])
        assert batch.to_pydict() == {"offset": [4, 5], "value": [b"4", b"5"]}
        with again.writer(0) as writer:
            assert writer.append(numbered(12, 13)) == OffsetRange("orders", 0, 12, 13)

    def test_of_two_writers_one_stops(self, remote: Remote, journal: Journal) -> None:
        """Nobody holds a lock; the one whose block is there first goes on."""
        with journal.writer(0) as one, journal.writer(0) as other:
            assert one.append(numbered(12, 14)).start == 12
            displaced = f"lane 0 of the journal {re.escape(remote.url)} has another writer"
            for _ in range(2):
                with pytest.raises(LaneTakenError, match=f"(?i){displaced}"):
                    other.append(numbered(12, 15))
            assert one.append(numbered(14, 15)).start == 14
        assert values_of(journal) == numbers(range(15))

    def test_a_block_that_got_no_name_is_not_acknowledged(
        self, journal: Journal, writer: LaneWriter, faulty: Faulty
    ) -> None:
        faulty.after = "nothing"
        with pytest.raises(JournalError, match=r"could not be made durable .*timed out"):
            writer.append(numbered(12, 14))
        assert writer.append(numbered(12, 13)).start == 12
        assert values_of(journal) == numbers(range(13))

    def test_a_block_whose_answer_was_lost_is_not_acknowledged_and_goes_before_the_next(
        self, journal: Journal, writer: LaneWriter, faulty: Faulty
    ) -> None:
        faulty.after = "done"
        with pytest.raises(JournalError, match=r"could not be made durable .*timed out"):
            writer.append(numbered(12, 14))
        assert writer.append(numbered(14, 15)).start == 14
        assert values_of(journal) == numbers(range(15))

    def test_a_block_whose_answer_was_lost_before_another_wrote_ends_the_writer(
        self, journal: Journal, writer: LaneWriter, faulty: Faulty
    ) -> None:
        faulty.after = "nothing"
        with pytest.raises(JournalError, match="could not be made durable"):
            writer.append(numbered(12, 14))
        append(journal, 1)
        with pytest.raises(LaneTakenError, match="has another writer"):
            writer.append(numbered(13, 14))

    def test_a_block_that_is_sent_twice_is_acknowledged(
        self, journal: Journal, writer: LaneWriter, faulty: Faulty
    ) -> None:
        faulty.after = "twice"
        assert writer.append(numbered(12, 14)) == OffsetRange("orders", 0, 12, 14)
        assert writer.append(numbered(14, 15)).start == 14
        assert values_of(journal) == numbers(range(15))

    def test_blocks_are_pruned(self, remote: Remote, journal: Journal) -> None:
        assert journal.remove_before(0, 11) == 10
        assert journal.bounds() == {0: (10, 12)}
        assert values_of(journal) == numbers(range(10, 12))
        assert journal.remove_before(0, 12) == 10
        assert remote.names() == [f"{10:020d}.segment"], "it says where the lane goes on"

    def test_last_blocks_that_are_gone_are_not_written_over(
        self, remote: Remote, journal: Journal
    ) -> None:
        """Who has read them knows how far the lane had reached."""
        for first in (3, 10):
            remote.files.rm(remote.path(f"{first:020d}.segment"))
        found = [(each.kind, each.first, each.until) for each in repair(journal, {0: 12})]
        assert found == [(JournalFindingKind.GAP, 3, 12)]
        assert verify(journal).whole
        with journal.writer(0) as writer:
            assert writer.append(numbered(12, 14)).start == 12
        assert values_of(journal) == numbers(range(3), range(12, 14))

    def test_a_lane_that_is_put_back_and_written_on_is_refused_to_a_query(
        self, remote: Remote, journal: Journal
    ) -> None:
        query = Query(remote.url, maxOffsetsPerTrigger=10)
        assert [each.encode() for each in query.run()] == numbers(range(10))
        for name in remote.names():
            if int(name.partition(".")[0]) >= 10 or name.startswith(f"{3:020d}.segment"):
                remote.files.rm(remote.path(name))
        with journal.writer(0) as writer:
            writer.append(numbered(3, 6))
            writer.append(numbered(6, 12))
        assert verify(journal).whole
        with pytest.raises(DataLossError, match="is not the lane that this query has read up to"):
            query.run()

    def test_a_lane_of_which_nothing_is_left_begins_where_it_is_said_to_have_ended(
        self, remote: Remote, journal: Journal
    ) -> None:
        remote.files.rm(f"{remote.root}/0", recursive=True)
        assert repair(journal) == ()
        repair(journal, {0: 12})
        with journal.writer(0) as writer:
            assert writer.end == 12

    def test_damage_is_found_and_declared_lost(self, remote: Remote, journal: Journal) -> None:
        path = remote.path("00000000000000000003.segment")
        data = remote.files.cat_file(path)
        remote.files.pipe_file(path, data[:-1])
        found = verify(journal)
        assert [(each.kind, each.first, each.until) for each in found.findings] == [
            (JournalFindingKind.DAMAGED, 3, 10)
        ]
        assert repair(journal) == found.findings
        assert verify(journal).whole
        assert values_of(journal) == numbers(range(3), range(10, 12))
        assert remote.files.cat_file(path) == data[:-1]
        remote.files.pipe_file(remote.path("00000000000000000010.segment"), b"")
        for look in (lambda: journal.writer(0), journal.bounds):
            with pytest.raises(JournalError, match=r"0010.segment \(offset 10 of lane 0\) is dam"):
                look()
        assert repair(journal) == (), "nothing says how far the lane went"
        assert [each.first for each in repair(journal, {0: 12})] == [10]
        assert journal.bounds() == {0: (0, 12)}
