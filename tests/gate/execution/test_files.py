"""The handler of the documentation that writes a folder for each batch, over what parts wrote."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.docs.pages import ROOT, blocks

from headrace.gate.control.parts import WHOLE, above
from headrace.gate.execution.batch import Batch
from headrace.gate.ledger.records import part_key

ANOTHER = "b" * 32
KEYS = {part: part_key("a" * 32, part) for part in (WHOLE, "0", "00", "01", "010", "1", "10")}


@pytest.mark.parametrize("path", [WHOLE, "0", "01"])
def test_a_batch_or_a_part_replaces_each_folder_that_has_records_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (it for it in blocks(ROOT / "docs/sinks.md", "python") if "write_files" in it.text)
    names: dict[str, Any] = {}
    exec(block.text, names)  # noqa: S102
    for key in {*KEYS.values(), ANOTHER} - {KEYS[path]}:
        Path(f"out/batch={key}").mkdir(parents=True)  # its handler raised after the write
    parents = tuple(KEYS[parent] for parent in above(path))
    writer = SimpleNamespace(parquet=lambda folder: Path(folder).mkdir())
    df = SimpleNamespace(write=SimpleNamespace(mode=lambda _mode: writer))
    names["write_files"](df, Batch(KEYS[path], None, (), 1, "live", 1, parent_keys=parents))
    has_others = {
        key for part, key in KEYS.items() if not (part.startswith(path) or path.startswith(part))
    }
    left = {folder.name.removeprefix("batch=") for folder in Path("out").iterdir()}
    assert left == {KEYS[path], ANOTHER, *has_others}
