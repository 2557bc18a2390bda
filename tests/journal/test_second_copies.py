"""Damaged blocks and packs: what has a whole copy is restored, and nothing else is given up."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from tests.journal.samples import (
    append,
    folder,
    journal_at,
    numbered,
    numbers,
    records,
    values_of,
)
from tests.services.examples import examples

from headrace.core.ranges import OffsetRange
from headrace.journal import (
    Journal,
    JournalFindingKind,
    Records,
    lost_records,
    repair,
    restored_records,
    verify,
)
from headrace.journal.block import HEADER_BYTES, encode
from headrace.journal.lane_files import LaneFiles
from headrace.journal.packs import Packer, read_pack
from headrace.journal.second_copies import block_of
from headrace.journal.storage.local import LocalStorage

BLOCKS: Final = 20
RECORDS: Final = 20
COUNT: Final = BLOCKS * RECORDS


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Twenty blocks of twenty records, and a pack of them all."""
    made = journal_at(tmp_path / "orders")
    append(made, *[RECORDS] * BLOCKS)
    assert packs(made) == [f"{0:020d}-{COUNT:020d}.pack"]
    return made


def packs(journal: Journal) -> list[str]:
    return sorted(path.name for path in (folder(journal).parent / ".packs-0").glob("*.pack"))


def block(journal: Journal, number: int) -> Path:
    return folder(journal) / f"{number * RECORDS:020d}.block"


def pack(journal: Journal) -> Path:
    [name] = packs(journal)
    return folder(journal).parent / ".packs-0" / name


def flip(path: Path, at: int) -> None:
    """Another bit at a place, under the same names."""
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


DAMAGE: Final[dict[str, Callable[[Path], object]]] = {
    "magic": lambda path: flip(path, 0),
    "header": lambda path: flip(path, 50),
    "records": lambda path: flip(path, HEADER_BYTES + 40),
    "end": lambda path: flip(path, -1),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: HEADER_BYTES + 1]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
}


@pytest.mark.integration
@pytest.mark.parametrize("number", [0, 7, BLOCKS - 1])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_block_is_restored_from_its_pack(journal: Journal, how: str, number: int) -> None:
    before = {each.name: each.read_bytes() for each in folder(journal).glob("*.block")}
    DAMAGE[how](block(journal, number))
    found = verify(journal)
    assert not found.whole
    is_last = number == BLOCKS - 1
    if not (is_last and how == "deleted"):  # which the mark has, under its own name
        [finding] = [each for each in found.findings if each.kind is not JournalFindingKind.COPY]
        assert f"`headrace journal repair` restores {RECORDS} of its records" in finding.reason
    mended = repair(journal)
    assert (restored_records(mended), lost_records(mended)) == (RECORDS, 0)
    assert verify(journal).findings == (), "the mark too, which was damaged with the last block"
    assert values_of(journal) == numbers(range(COUNT))
    assert packs(journal), "the other copy is still there"
    assert {e.name: e.read_bytes() for e in folder(journal).glob("*.block")} == before
    assert repair(journal) == ()


@pytest.mark.parametrize("how", DAMAGE)
def test_a_pack_is_made_again_from_its_blocks(journal: Journal, how: str) -> None:
    before = pack(journal).read_bytes()
    path = pack(journal)
    DAMAGE[how](path)
    if how == "deleted":
        assert verify(journal).findings == ()  # there may be none: most lanes have few
        return
    [finding] = verify(journal).findings
    assert (finding.kind, finding.path) == (JournalFindingKind.COPY, f".packs-0/{path.name}")
    assert not verify(journal).whole
    assert [each.kind for each in repair(journal)] == [JournalFindingKind.COPY]
    assert path.read_bytes() == before
    assert verify(journal).findings == ()


@dataclass(frozen=True)
class Damages:
    """Damages of some blocks, and of the pack if it is damaged."""

    blocks: dict[int, str]
    pack: str | None


DAMAGES: Final = st.builds(
    Damages,
    st.dictionaries(st.integers(0, BLOCKS - 1), st.sampled_from(sorted(DAMAGE))),
    st.none() | st.sampled_from(sorted(DAMAGE)),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "orders"
    append(journal_at(path), *[RECORDS] * BLOCKS)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"{number}" for number in range(10_000))


@pytest.mark.integration
@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=DAMAGES)
@example(damages=Damages({18: "empty", 19: "deleted"}, "deleted"))
def test_what_is_lost_is_what_had_no_whole_copy(
    whole: Path, paths: Iterator[Path], damages: Damages
) -> None:
    path = next(paths) / "orders"
    _copied(whole, path)
    journal = journal_at(path)
    for number, how in damages.blocks.items():
        DAMAGE[how](block(journal, number))
    if damages.pack is not None:
        DAMAGE[damages.pack](pack(journal))
    # The mark is a second name of the last block: it has the block if that name alone is gone.
    by_mark = {BLOCKS - 1} if damages.blocks.get(BLOCKS - 1) == "deleted" else set[int]()
    kept = set(range(BLOCKS)) - (damages.blocks.keys() - by_mark if damages.pack else set())
    is_damaged = bool(damages.blocks or damages.pack not in {None, "deleted"})
    assert verify(journal).whole is not is_damaged

    mended = repair(journal)
    after = verify(journal)
    ranges = [range(n * RECORDS, (n + 1) * RECORDS) for n in sorted(kept)]
    assert values_of(journal) == numbers(*ranges)
    lost = {offset for each in journal.lost(0) for offset in range(each.first, each.until)}
    assert lost == set(range(COUNT)) - {offset for each in ranges for offset in each}
    assert lost_records(mended) == len(lost)
    assert restored_records(mended) == RECORDS * len(damages.blocks.keys() & kept)
    assert after.whole
    assert {each.kind for each in after.findings} <= {JournalFindingKind.LOST}
    assert repair(journal) == ()
    with journal.writer(0) as writer:
        assert writer.append(numbered(0, 1)).start == COUNT
    assert verify(journal).whole


def _copied(whole: Path, path: Path) -> None:
    """A copy of a journal, in which the mark is a second name of the last block too."""
    shutil.copytree(whole, path)
    mark, last = path / "0" / f"{COUNT:020d}.end", path / "0" / f"{COUNT - RECORDS:020d}.block"
    mark.unlink()
    mark.hardlink_to(last)


def test_a_last_block_that_was_replaced_is_restored_from_the_mark(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "orders")
    append(journal, 3, 7)
    path = folder(journal) / f"{3:020d}.block"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    assert restored_records(mended := repair(journal)) == 7
    assert [each.kind for each in mended] == [JournalFindingKind.RESTORED]
    assert path.read_bytes() == data
    assert verify(journal).findings == ()


def test_a_pack_of_another_life_of_the_lane_restores_nothing(tmp_path: Path) -> None:
    """The lane alone was put back from a backup, and written on: other records, same offsets."""
    journal = journal_at(tmp_path / "orders")
    append(journal, *[1] * 10)
    shutil.copytree(folder(journal), tmp_path / "backup")
    append(journal, *[1] * 10)
    packs_before = tmp_path / "packs"
    shutil.copytree(folder(journal).parent / ".packs-0", packs_before)
    shutil.rmtree(folder(journal))
    shutil.copytree(tmp_path / "backup", folder(journal))
    with journal.writer(0) as writer:
        for number in range(10, 13):
            writer.append(Records.of([b"other %d" % number], timestamp_ms=1))
    assert packs(journal) == [f"{0:020d}-{10:020d}.pack"], "what reached beyond the end is gone"
    shutil.rmtree(folder(journal).parent / ".packs-0")
    shutil.copytree(packs_before, folder(journal).parent / ".packs-0")  # and may be put back too
    for number in (4, 11):
        (folder(journal) / f"{number:020d}.block").write_bytes(b"")
    mended = repair(journal)
    assert (restored_records(mended), lost_records(mended)) == (1, 1)
    assert values_of(journal) == [*numbers(range(10)), b"other 10", b"other 12"]
    assert [(each.first, each.until) for each in journal.lost(0)] == [(11, 12)]


def test_where_a_restored_block_is_other_bytes_it_stands_for_the_same(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "orders")
    append(journal, *[3] * 10, compression="zstd")
    path = folder(journal) / f"{9:020d}.block"
    before = path.read_bytes()
    path.write_bytes(b"")
    assert restored_records(repair(journal)) == 3
    assert path.read_bytes() != before
    assert verify(journal).findings == ()
    assert values_of(journal) == numbers(range(30))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=st.lists(records(least=1), min_size=1, max_size=6))
def test_each_block_of_a_pack_has_all_that_it_had(
    paths: Iterator[Path], blocks: list[Records]
) -> None:
    journal = journal_at(next(paths) / "orders")
    assert isinstance(journal.storage, LocalStorage)
    made, at, previous = [], 0, 0
    for each in blocks:
        encoded = encode(
            each,
            journal_id=journal.identity.id,
            writer=bytes(16),
            lane=0,
            first=at,
            previous=previous,
        )
        made.append((encoded.header, each))
        at, previous = encoded.header.until, encoded.header.checksum
    files = LaneFiles(journal.storage, journal.identity, 0)
    Packer(files, journal.storage, "lz4").write(made)
    whole = read_pack(files, 0, at)
    for header, each in made:
        again = block_of(whole, header.first, header.until)
        assert again.header.checksum == header.checksum
        assert (again.header.previous, again.header.raw_bytes) == (
            header.previous,
            header.raw_bytes,
        )
        journal.storage.create_folder("0")
        journal.storage.put(files.path(header.first), again.parts)
        assert journal.records(0, header.first).batch == each.batch


def test_damage_is_found_where_a_pack_hid_it_from_readers(journal: Journal) -> None:
    flip(block(journal, 9), HEADER_BYTES + 3)
    offsets = OffsetRange(journal.name, 0, 0, COUNT)
    assert sum(batch.num_rows for batch in journal.read(offsets)) == COUNT
    assert not verify(journal).whole
