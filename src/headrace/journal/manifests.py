"""Manifests of a lane, written before the commit: the blocks of a batch, and their offsets.

A batch is written in two phases. Its blocks are staged first, each a file without an offset. Then a
manifest names them with the headers that they get: from the moment at which it is durable, the
batch is written. Each block is then given its header, and its name in the lane. After a crash in
between, the lane's next writer finishes that.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

from headrace.errors import CorruptionError
from headrace.journal.block import BlockHeader, decode_header
from headrace.journal.lane_files import LaneFiles
from headrace.journal.names import END, key_of, manifest_name, staged_folder
from headrace.journal.storage.local import LocalStorage


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A block's file in the folder of staged blocks, and the header that it gets."""

    name: str
    header: BlockHeader


@dataclass(frozen=True, slots=True)
class Manifest:
    """The blocks of a batch, in order; at least one."""

    key: str
    blocks: tuple[StagedBlock, ...]

    @property
    def first(self) -> int:
        """The batch's first offset."""
        return self.blocks[0].header.first

    @property
    def until(self) -> int:
        """The offset after its last."""
        return self.blocks[-1].header.until

    def encode(self) -> bytes:
        """As it is stored."""
        blocks = [{"name": each.name, "header": each.header.encode().hex()} for each in self.blocks]
        return json.dumps({"key": self.key, "blocks": blocks}).encode()

    @classmethod
    def decode(cls, text: bytes, place: str) -> Self:
        """Parse a stored manifest; CorruptionError if it is none."""
        try:
            values = json.loads(text)
            blocks = tuple(_block(each, place) for each in values["blocks"])
            manifest = cls(str(values["key"]), blocks)
            manifest_name(manifest.key)
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(place) from error
        if not blocks:
            raise _damaged(place)
        return manifest


def path_of(files: LaneFiles, name: str) -> str:
    """Return the path of a file in the folder of a lane's staged blocks."""
    return f"{staged_folder(files.lane)}/{name}"


def manifests(files: LaneFiles) -> dict[str, Manifest]:
    """Return a lane's manifests, by batch key, in the order of their offsets; all are durable."""
    found = []
    for name in files.storage.names(staged_folder(files.lane)):
        if key_of(name) is not None:
            path = path_of(files, name)
            text = files.storage.read(path).to_pybytes()
            found.append(Manifest.decode(text, files.shown(path)))
    return {each.key: each for each in sorted(found, key=lambda each: each.first)}


def complete(files: LaneFiles) -> None:
    """Bring every block of every manifest into the lane, in order; the caller has its lock.

    It can be called again after a crash or an error. Outside a directory there is nothing to do.

    Raises:
        CorruptionError: A manifest is damaged, or does not belong to the lane as it is.
        OSError: The storage fails.
    """
    storage = files.storage
    if not isinstance(storage, LocalStorage):
        return
    found = manifests(files)
    if not found:
        return
    index = files.index()
    end, marks = files.last_end(index).until, list(index.marks)
    for manifest in found.values():
        for block in manifest.blocks:
            # A block that begins below the end exists, or did until it was pruned or set aside.
            if block.header.first > end:
                raise CorruptionError(
                    f"{files.shown(path_of(files, manifest_name(manifest.key)))} goes on at offset"
                    f" {block.header.first}, but lane {files.lane} ends at {end}; put back the"
                    " blocks between."
                )
            if block.header.first == end:
                staged, path = path_of(files, block.name), files.path(end)
                end = block.header.until
                outdated = [files.path(each, END) for each in marks[:-1]]
                try:
                    storage.place(
                        staged, path, block.header.encode(), files.path(end, END), outdated
                    )
                except FileNotFoundError:
                    raise CorruptionError(
                        f"{files.shown(path)} is gone, although it was written with the batch"
                        f" {manifest.key}; put it back, or let `headrace journal repair` declare"
                        " its offsets lost."
                    ) from None
                marks = [*marks[-1:], end]


def _block(values: Any, place: str) -> StagedBlock:
    name, header = values["name"], bytes.fromhex(values["header"])
    if type(name) is not str or "/" in name:
        raise TypeError
    return StagedBlock(name, decode_header(header, None, place))


def _damaged(place: str) -> CorruptionError:
    return CorruptionError(
        f"{place} is damaged: it does not say which blocks it is about; set it aside only if the"
        " records of its batch are all in the lane, or are not needed."
    )
